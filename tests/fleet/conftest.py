"""Runs the command as a user types it, in a fresh folder."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.commands import Commands, Finished


@pytest.fixture
def run(commands: Commands, tmp_path: Path) -> Callable[..., Finished]:
    """``run("analyze", "fleet.csv", ...)`` in ``tmp_path``."""
    return partial(commands.run, tmp_path)

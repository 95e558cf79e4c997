"""Runs the command as a user types it, in a fresh folder."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    error: str


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Finished]:
    """``run("analyze", "fleet.csv", ...)`` in ``tmp_path``, wide enough that nothing wraps."""

    def run_command(*arguments: str, timeout: float = 280) -> Finished:
        done = subprocess.run(
            [sys.executable, "-m", "sojourn", *arguments],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    return run_command

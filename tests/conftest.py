"""Settings shared by all tests."""

import contextlib
import gc
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.commands import Commands
from tests.compiling_once import compile_one_at_a_time

# Threads that wait for each other crawl where other programs run; children inherit this.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("sojourn", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("sojourn")

compile_one_at_a_time()
gc.disable()  # while modules are imported and tests are collected: all of it stays

# Started in the background, a shell's children ignore Ctrl-C; the commands under test must not.
with contextlib.suppress(ValueError):
    signal.signal(signal.SIGINT, signal.default_int_handler)

EXACT = Path(__file__).parent / "reference" / "exact.json"
"""Networks with their exact throughput, means, bounds and gradients, to all digits of a double."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``exact`` runs once for each network of the reference file."""
    if "exact" not in metafunc.fixturenames:
        return
    cases: list[dict[str, Any]] = json.loads(EXACT.read_text())
    metafunc.parametrize("exact", cases, ids=[case["name"] for case in cases])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who works in several processes comes first, so that one test uses those of another.

    Mypy comes last: beside the tests it checks the package, and what it found is used again.
    """
    items.sort(
        key=lambda item: (
            item.get_closest_marker("processes") is None,
            "test_typing" in item.nodeid,
        )
    )


def pytest_collection_finish() -> None:
    """From here on garbage is collected, but not sought in what was imported."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    with Commands.started() as started:
        yield started

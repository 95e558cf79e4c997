"""Settings shared by all tests."""

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("sojourn", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("sojourn")

# Started in the background, a shell's children ignore Ctrl-C; the commands under test must not.
with contextlib.suppress(ValueError):
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``exact`` runs once for each network of the reference file."""
    if "exact" not in metafunc.fixturenames:
        return
    folder = os.environ.get("SOJOURN_REFERENCE", str(ROOT.parent / "shared" / "reference"))
    path = Path(folder) / "exact.json"
    if not path.exists():
        reason = "exact.json not found: set SOJOURN_REFERENCE to its folder"
        metafunc.parametrize("exact", [pytest.param(None, marks=pytest.mark.skip(reason=reason))])
        return
    cases: list[dict[str, Any]] = json.loads(path.read_text())
    metafunc.parametrize("exact", cases, ids=[case["name"] for case in cases])

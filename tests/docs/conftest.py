"""The documentation, built once as ``make docs`` builds it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import browser

__all__ = ["browser"]

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pages; warnings are errors."""
    pytest.importorskip("furo")
    pytest.importorskip("myst_parser")
    out = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(out / "trees"), str(DOCS), str(out / "html")],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    return out / "html"

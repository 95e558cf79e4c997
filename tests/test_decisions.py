"""The kept results of benchmarks/decisions.py are what the documentation shows."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "decisions"


@pytest.fixture(scope="module")
def decisions() -> ModuleType:
    spec = importlib.util.spec_from_file_location("decisions", ROOT / "benchmarks" / "decisions.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["decisions"] = module
    spec.loader.exec_module(module)
    return module


def test_the_documentation_shows_what_is_kept(decisions: ModuleType) -> None:
    page = (ROOT / "docs" / "strategies.md").read_text(encoding="utf-8")
    for table in decisions.tables(RESULTS):
        assert table in page


def test_there_are_a_dozen_settings(decisions: ModuleType, tmp_path: Path) -> None:
    kept = {path.stem for path in RESULTS.glob("*.json")}
    assert kept == set(decisions.settings(tmp_path, "digits"))
    assert len(kept) >= 12

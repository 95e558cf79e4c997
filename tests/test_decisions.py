"""The kept results of benchmarks/decisions.py are what the documentation shows."""

import importlib.util
import json
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
    wanted = [set(decisions.settings(tmp_path, data)) for data in decisions.HORIZONS]
    assert kept == set.union(*wanted)
    assert len(kept) >= 12


README_SETTINGS = {
    "Dirichlet": "digits-dirichlet-three-clusters-exponential",
    "two labels each": "digits-labels-three-clusters-exponential",
    "data go with speed": "digits-by-speed-three-clusters-exponential",
}
README_STRATEGIES = {
    "never-queue, capped weights, adaptive steps": "never-queue, capped, adaptive",
    "never-queue, half debiased, adaptive steps": "never-queue, half debiased, adaptive",
    "never-queue (plain asynchronous SGD)": "never-queue",
    "the paper's routing, constants measured": "the paper's routing",
}


def test_the_readme_says_who_is_ahead_as_the_kept_results_do() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    (start,) = (i for i, line in enumerate(lines) if line.startswith("| test loss, three clusters"))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[start : start + 10]]
    heads = rows[0][1:]
    assert heads == list(README_SETTINGS)
    kept = {
        head: json.loads((RESULTS / f"{README_SETTINGS[head]}.json").read_text())["by_strategy"]
        for head in heads
    }
    assert len(rows[2:]) == 8
    for name, *cells in rows[2:]:
        for head, cell in zip(heads, cells, strict=True):
            found = kept[head][README_STRATEGIES.get(name, name)]["loss"]
            digits = f"{found:.3f}" if found < 1 else f"{found:.2f}"
            assert cell.strip("*") == digits.removeprefix("0"), f"{name}, {head}"
            least = min(row["loss"] for row in kept[head].values())
            assert cell.startswith("**") == (found == least), f"{name}, {head}"

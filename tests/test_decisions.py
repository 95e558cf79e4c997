"""The kept results of benchmarks/decisions.py are what the documentation shows."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "decisions"


def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def decisions() -> ModuleType:
    return benchmark("decisions")


def test_the_documentation_shows_what_is_kept(decisions: ModuleType) -> None:
    page = (ROOT / "docs" / "strategies.md").read_text(encoding="utf-8")
    for table in decisions.tables(RESULTS):
        assert table in page


NO_SETTING = {"edge", "picks"}
"""Results that are not of one of the settings."""
EARLIER = {f"digits-dirichlet-links-{law}" for law in ("exponential", "deterministic")}
"""Grids with links of an earlier set of candidates, without local work per client."""


def test_saved_results_are_of_settings_that_can_be_run_again(
    decisions: ModuleType, tmp_path: Path
) -> None:
    saved = {path.stem for path in RESULTS.glob("*.json")} - NO_SETTING
    wanted = {data: set(decisions.settings(tmp_path, data)) for data in decisions.HORIZONS}
    assert saved - EARLIER <= set.union(*wanted.values())
    assert saved >= set.union(*(own for data, own in wanted.items() if data != "fresh"))
    assert len(wanted["small"]) == 16
    fleets = [name for _, name, _ in decisions.SMALL]
    linked = [name for name in fleets if decisions.SMALL_FLEETS[name][0].uplink is not None]
    assert (len(set(linked)), len(linked)) == (4, 8)


def test_picks_are_judged_on_seeds_on_which_nothing_was_chosen(decisions: ModuleType) -> None:
    picks = json.loads((RESULTS / decisions.PICKS).read_text())
    chosen = {*decisions.SCREEN, *decisions.SEEDS, *decisions.FURTHER}
    for name, pick in picks.items():
        grid = json.loads((RESULTS / f"{name}.json").read_text())
        judged = pick["provenance"]["inputs"]["seeds"]
        assert judged == list(decisions.JUDGED)
        assert chosen.isdisjoint(judged)
        known = [target["target"] for target in grid["targets"]]
        assert [target["target"] for target in pick["targets"]] in ([], known)
        assert pick["baselines"].keys() == grid["baselines"].keys()
        assert pick["regret"] == pytest.approx(pick["loss"] / pick["best_loss"] - 1.0)
        if pick["pick"] == pick["best"]:
            assert pick["loss"] == pick["best_loss"], name


def test_the_readme_and_the_documentation_show_what_each_factor_is_worth() -> None:
    factors = benchmark("factors")
    results = factors.read_results()
    assert sum(name.startswith("no-links") for name in results) >= 2
    assert sum(name.startswith("links") for name in results) >= 2
    assert factors.readme_table(results) in (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "strategies.md").read_text(encoding="utf-8")
    for table in factors.tables():
        assert table in page
    for name, result in results.items():
        assert result["provenance"]["inputs"]["seeds"] == list(factors.SEEDS), name
        assert len(result["strategies"]) == 88, name

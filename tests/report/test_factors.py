"""What each factor is worth, and other conditions, on the page of a run."""

import json
from pathlib import Path

import pytest

from sojourn.report.runs import report_of
from sojourn.report.tuned import conditions_section, factors_section, halving_section
from sojourn.runs.folder import Run, RunFolder
from tests.runs.test_factors import factorial


def entries(levels):
    for name in levels:
        server, steps, debias = name.split()
        rule = {"name": "async-sgd", "server": {"name": server}, "local-steps": int(steps)}
        yield {"name": name, "policy": "never-queue", "rule": rule | {"debias": float(debias)}}


def test_a_factorial_experiment_has_a_section_with_its_effects():
    histories, levels = factorial()
    summary = {"strategies": list(entries(levels))}
    section = factors_section(Run("mine", tuple(histories), {}, summary, {}, Path("mine")), 1)
    assert section is not None
    rows = {row[0]: row for row in section.tables[0].rows}
    assert rows["local steps: 10"][1] == "1"
    assert section.tables[0].columns[2] == "difference, final accuracy, points"
    assert float(rows["local steps: 10"][2]) == pytest.approx(20.0, abs=2.0)
    assert [rows[name][-1] for name in ("optimiser: adam", "weighting: debias 1")] == ["yes", "no"]
    assert "10 instead of 1: +20.5 points" in section.finding


def test_strategies_that_were_not_crossed_have_none():
    histories, levels = factorial()
    chosen = list(levels)[:2]
    few = tuple(run for run in histories if run.strategy in chosen)
    summary = {"strategies": [e for e in entries(levels) if e["name"] in chosen]}
    assert factors_section(Run("mine", few, {}, summary, {}, Path("mine")), 1) is None


def test_the_page_of_a_tuning_has_the_factors_of_its_first_rung_and_other_conditions(
    tuned_folder: Path,
) -> None:
    path = RunFolder(tuned_folder).tuning_path
    tuning = json.loads(path.read_text(encoding="utf-8"))
    scores = {("a", "plain"): 1.0, ("a", "adam"): 0.5, ("b", "plain"): 2.0, ("b", "adam"): 1.0}
    tuning["levels"] = {f"{r} {s}": {"rule": r, "server": s} for r, s in scores}
    tuning["race"][0]["candidates"] = sorted(
        (
            {"name": f"{r} {s}", "learning_rate": rate, "score": score * rate}
            for (r, s), score in scores.items()
            for rate in (1.0, 3.0)
        ),
        key=lambda entry: entry["score"],
    )
    tuning["conditions"] = [
        {"condition": "conditions are as assumed", "scores": {"a, 1": 0.5, "b, 1": 1.0}},
        {"condition": "link times are deterministic", "scores": {"a, 1": None, "b, 1": 2.0}},
    ]
    path.write_text(json.dumps(tuning), encoding="utf-8")
    RunFolder(tuned_folder).ledger.path.unlink(missing_ok=True)  # edited above
    run = RunFolder(tuned_folder).read()
    section = factors_section(run, 1)
    assert section is not None
    found = {row[0]: row[1:] for row in section.tables[0].rows}
    assert found == {"rule: b": ("a", "2", "2"), "server: plain": ("adam", "2", "2")}, "no test"
    section = conditions_section(run, 1)
    assert section is not None
    assert section.tables[0].rows == (
        ("conditions are as assumed", "0.5 *", "1"),
        ("link times are deterministic", "diverged", "2 *"),
    )
    titles = [section.title for section in report_of([tuned_folder]).sections]
    assert {"What each factor is worth", "What the answer depends on"} <= set(titles)


def test_no_page_shows_an_interpolated_time(tuned_folder: Path) -> None:
    """Pilot runs are ranked by times between evaluations: pages show how they compare, not when."""
    path = RunFolder(tuned_folder).tuning_path
    tuning = json.loads(path.read_text(encoding="utf-8"))
    tuning["criterion"] = "time to 80%"
    for rung in tuning["race"]:
        for place, entry in enumerate(rung["candidates"]):
            entry["score"] = 32.0 * (1.0 + 0.5 * place)
    tuning["conditions"] = [
        {"condition": "conditions are as assumed", "scores": {"a, 1": 32.0, "b, 1": 48.0}},
        {"condition": "link times are deterministic", "scores": {"a, 1": 64.0, "b, 1": 32.0}},
    ]
    path.write_text(json.dumps(tuning), encoding="utf-8")
    RunFolder(tuned_folder).ledger.path.unlink(missing_ok=True)  # edited above
    run = RunFolder(tuned_folder).read()
    halving = halving_section(run, 1)
    (view,) = halving.figures[0].views
    assert view.y_label == "time to 80% (smallest = 1) on held-out data"
    assert {y for series in view.series for y in series.y if y == y} == {1.0, 1.5, 2.0}
    tried = halving.tables[1]
    assert {row[0]: row[-1] for row in tried.rows} == {
        "square-root": "1",
        "uniform": "1.5",
        "balanced": "2",
    }
    shown = report_of([tuned_folder]).sections
    cells = [
        cell for section in shown for table in section.tables for row in table.rows for cell in row
    ]
    assert not [cell for cell in cells if str(cell).startswith(("32", "48", "64"))]
    section = conditions_section(run, 1)
    assert section is not None
    assert [row[1:] for row in section.tables[0].rows] == [("1 *", "1.5"), ("2", "1 *")]

"""Verdicts follow from statements, whatever a file claims."""

import json
import math
from pathlib import Path

import pytest

from reproduction.command import STYLES
from reproduction.verdict import Compared, Finding, Outcome, Statement
from sojourn.errors import InvalidFile
from sojourn.figures.figure import Figure, Series, Table, View


def finding(*outcomes: Outcome) -> Finding:
    statements = tuple(Statement("says", "found", outcome) for outcome in outcomes)
    return Finding("1", "title", "source", "checked", "paper", statements)


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (("reproduces", "reproduces"), "reproduces"),
        (("reproduces", "does not reproduce"), "reproduces in part"),
        (("does not reproduce",), "does not reproduce"),
        (("does not reproduce", "inconclusive"), "does not reproduce where conclusive"),
        (("data not found", "does not reproduce"), "does not reproduce where conclusive"),
        (("reproduces", "inconclusive", "does not reproduce"), "reproduces in part"),
        (("inconclusive", "reproduces"), "reproduces where conclusive"),
        (("data not found", "reproduces"), "reproduces where conclusive"),
        (("inconclusive", "data not found"), "inconclusive"),
        (("data not found",), "data not found"),
        ((), "inconclusive"),
    ],
)
def test_the_verdict_follows_from_the_statements(
    outcomes: tuple[Outcome, ...], verdict: str
) -> None:
    assert finding(*outcomes).verdict == verdict


@pytest.mark.parametrize("open_ones", [1, 17])
def test_open_statements_hedge_either_verdict_alike(open_ones: int) -> None:
    untold: tuple[Outcome, ...] = ("inconclusive",) * open_ones
    for decided in ("reproduces", "does not reproduce"):
        hedged = finding(decided, *untold).verdict
        assert hedged == f"{decided} where conclusive"
        assert hedged in STYLES


def test_a_verdict_written_by_hand_has_no_effect(tmp_path: Path) -> None:
    path = finding("does not reproduce").write(tmp_path)
    values = json.loads(path.read_text())
    values["verdict"] = "reproduces"
    path.write_text(json.dumps(values))
    assert Finding.read(tmp_path).verdict == "does not reproduce"


def test_an_invented_outcome_is_refused(tmp_path: Path) -> None:
    path = finding("reproduces").write(tmp_path)
    path.write_text(path.read_text().replace('"outcome": "reproduces"', '"outcome": "proved"'))
    with pytest.raises(InvalidFile, match="'proved' is no outcome"):
        Finding.read(tmp_path)


def test_a_finding_has_one_line_per_curve_and_is_read_back(tmp_path: Path) -> None:
    curve = Series("a", [0.0, 1.0, 2.0], [0.123456, 0.5, math.nan], low=[0.1] * 3, high=[0.6] * 3)
    figure = Figure("f", "Title", "words", (View("rounds", "accuracy", (curve, curve)),))
    table = Table(("strategy", "accuracy"), (("a", "50.0"), ("b", "49.0")), title="t")
    compared = Compared("over b", "points", 1.0, -0.5, 2.5, 6)
    told = Statement("says", "found", "reproduces", compared=(compared,), needs=7)
    whole = Finding("3", "t", "s", "c", "quick", (told,), figures=(figure,), tables=(table,))
    lines = whole.write(tmp_path).read_text(encoding="utf-8").splitlines()
    assert sum("[0.0, 1.0, 2.0]" in line for line in lines) == 2
    assert sum('"over b"' in line for line in lines) == 1
    assert len(lines) < 60
    again = Finding.read(tmp_path)
    assert (again.statements, again.tables) == (whole.statements, whole.tables)
    (series, _) = again.figures[0].views[0].series
    assert series.y[:2].tolist() == [0.1235, 0.5]
    assert math.isnan(series.y[2])


def test_the_tally_counts() -> None:
    told = finding("reproduces", "does not reproduce", "reproduces")
    assert told.tally == "3 statements: 2 reproduced, 1 not reproduced"

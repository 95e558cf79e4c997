"""Verdicts follow from statements, whatever a file claims."""

import json
from pathlib import Path

import pytest

from sojourn.cli.reproduce import STYLES
from sojourn.errors import InvalidFile
from sojourn.reproduce.verdict import Finding, Outcome, Statement


def finding(*outcomes: Outcome) -> Finding:
    statements = tuple(Statement("says", "found", outcome) for outcome in outcomes)
    return Finding("1", "title", "source", "checked", "paper", statements)


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (("reproduces", "reproduces"), "reproduces"),
        (("reproduces", "does not reproduce"), "reproduces in part"),
        (("does not reproduce",), "does not reproduce"),
        (("does not reproduce", "cannot be told here"), "does not reproduce, as far as told"),
        (("data not found", "does not reproduce"), "does not reproduce, as far as told"),
        (("reproduces", "cannot be told here", "does not reproduce"), "reproduces in part"),
        (("cannot be told here", "reproduces"), "reproduces, as far as told"),
        (("data not found", "reproduces"), "reproduces, as far as told"),
        (("cannot be told here", "data not found"), "cannot be told here"),
        (("data not found",), "data not found"),
        ((), "cannot be told here"),
    ],
)
def test_the_verdict_follows_from_the_statements(
    outcomes: tuple[Outcome, ...], verdict: str
) -> None:
    assert finding(*outcomes).verdict == verdict


@pytest.mark.parametrize("open_ones", [1, 17])
def test_open_statements_hedge_either_verdict_alike(open_ones: int) -> None:
    untold: tuple[Outcome, ...] = ("cannot be told here",) * open_ones
    for decided in ("reproduces", "does not reproduce"):
        hedged = finding(decided, *untold).verdict
        assert hedged == f"{decided}, as far as told"
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


def test_the_tally_counts() -> None:
    told = finding("reproduces", "does not reproduce", "reproduces")
    assert told.tally == "3 statements: 2 reproduced, 1 not reproduced"

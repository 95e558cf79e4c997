"""Every figure and numbered result of the paper has a row, every row a status, and statuses follow results."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reproduction.claims import read_claims
from reproduction.kept import all_findings, findings_in
from reproduction.statements import (
    COLUMNS,
    GIVEN,
    STATEMENTS,
    read_statements,
    rows,
    statements_table,
)
from reproduction.training import read_training
from reproduction.verdict import OUTCOMES, Compared, Finding, Statement
from sojourn._support.configuration import Table
from sojourn.cli import app
from sojourn.errors import InvalidFile

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "paper" / "results" / "standard"
NUMBERED = [
    *(f"Figure {number}" for number in range(1, 12)),
    *(f"Equation {number}" for number in range(1, 13)),
    *(f"Algorithm {number}" for number in (1, 2)),
    "Proposition 2.1",
    "Theorem 3.1",
    "Proposition 4.1",
    "Proposition 4.2",
    *("Lemma D.1", "Corollary D.2", "Lemma D.3", "Lemma D.4", "Lemma D.5"),
    *("Proposition G.1", "Proposition G.2", "Proposition H.1", "Proposition H.2"),
]
"""All of the paper's, appendices included."""


def test_every_figure_and_numbered_result_of_the_paper_has_a_row() -> None:
    named = {result for row in read_statements() for result in row.results}
    assert named == set(NUMBERED)


def test_there_are_sixty_two_rows_or_more_and_none_without_a_status() -> None:
    made = rows(all_findings(RESULTS), read_statements())
    assert len(made) >= 62
    assert all(row.status for row in made)
    inconclusive = {
        row.status for row in made if "CIFAR" in row.size and row.status == "inconclusive"
    }
    assert inconclusive, "CIFAR at this size decides nothing"


def test_rows_name_tests_and_statements_that_exist() -> None:
    words: dict[str, set[str]] = {}
    for claim in read_claims():
        said = {says.text for says in claim.says.values()}
        if claim.computes == "training":
            asked = read_training(Table(dict(claim.parameters.values), claim.parameters.where))
            said |= {f"{comparison.says}." for comparison in asked.comparisons}
        words[claim.number] = said
    for row in read_statements():
        assert all((ROOT / test).exists() for test in row.tests), row.tests
        if row.claim:
            assert set(row.says) <= words[row.claim], row.says
            assert row.derived is None or row.derived.says in words[row.claim]


def test_every_statement_of_a_claim_about_the_paper_is_in_some_row() -> None:
    """Claim 10 is ours."""
    named = {(row.claim, says) for row in read_statements() for says in row.says}
    for finding in findings_in(RESULTS):
        for statement in finding.statements:
            assert (finding.claim, statement.says) in named, statement.says


def _finding(*statements: Statement, reduced: str = "") -> Finding:
    return Finding("3", "t", "s", "c", "paper", statements, reduced=reduced)


def test_a_status_follows_the_results() -> None:
    (row,) = [row for row in read_statements() if row.line == 557 and "throughout" in row.quote]
    compared = (Compared("over uniform", "points", 1.0, -1.0, 3.0, 6),)
    told = Statement(row.says[0], "f", "reproduces", about="a", compared=compared, size="small")
    for outcome in OUTCOMES:
        (made,) = rows([_finding(replace(told, outcome=outcome))], [row])
        assert made.status == outcome
    (both,) = rows([_finding(told, replace(told, outcome="does not reproduce"))], [row])
    assert (both.status, both.size) == ("reproduces in part", "small")
    (none,) = rows([], [row])
    assert none.status == "not run"
    not_made = replace(told, outcome="inconclusive", compared=())
    (none,) = rows([_finding(not_made)], [row])
    assert none.status == "not run"
    (later,) = rows([_finding(not_made), _finding(told)], [row])
    assert (later.status, later.pairs) == ("reproduces", "6")
    (first,) = rows([_finding(replace(told, outcome="does not reproduce")), _finding(told)], [row])
    assert first.status == "does not reproduce"


@pytest.mark.parametrize(
    ("low", "high", "reduced", "status"),
    [
        (11.0, 14.0, "", "reproduces"),
        (2.0, 6.0, "", "does not reproduce"),
        (2.0, 14.0, "", "inconclusive"),
        (2.0, 6.0, "small", "inconclusive"),
    ],
)
def test_a_gain_is_judged_by_an_interval_and_never_at_a_reduced_size(
    low: float, high: float, reduced: str, status: str
) -> None:
    (row,) = [row for row in read_statements() if row.line == 93]
    assert row.derived is not None
    compared = Compared("over uniform", "points", (low + high) / 2, low, high, 10)
    one = Statement(row.derived.says, "found", "reproduces", compared=(compared,))
    (made,) = rows([_finding(one, reduced=reduced)], [row])
    assert (made.status, made.pairs) == (status, "10")


def test_a_row_that_rests_on_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "statements.toml"
    for text in (
        "",
        'status = "proved"',
        'claim = "3"',
        'tests = ["a"]\nclaim = "3"\nsays = ["b"]',
    ):
        path.write_text(f'[[statement]]\nline = 1\nquote = "q"\nwhere = "w"\n{text}\n')
        with pytest.raises(InvalidFile, match=r"give 'claim'|must be one of"):
            read_statements(path)
    assert STATEMENTS.is_file()
    assert "not run" in GIVEN


def test_the_command_prints_every_row_of_the_saved_results() -> None:
    ran = CliRunner().invoke(
        app, ["reproduce", "--statements", "--out", str(RESULTS)], env={"COLUMNS": "2000"}
    )
    assert ran.exit_code == 0, ran.output
    table = statements_table(all_findings(RESULTS))
    assert table.columns == COLUMNS
    for row in table.rows:
        assert any(row[1] in line and row[3] in line for line in ran.output.splitlines()), row

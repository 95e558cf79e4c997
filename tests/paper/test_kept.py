"""The tables about the paper come from the files of the reproduction that is kept."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from reproduction.claims import read_claims
from reproduction.kept import (
    ACCURACY,
    accuracies,
    filled,
    findings_in,
    main,
    runs,
    statements,
    summary,
    verdicts,
)
from reproduction.run import RECORD, Reproduction
from reproduction.verdict import Compared, Finding, Statement
from sojourn.errors import InvalidFile
from sojourn.figures.figure import Table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "paper" / "results"


@pytest.mark.parametrize("page", ["docs/paper.md", "experiments/paper/README.md"])
def test_the_numbers_of_a_page_are_those_of_the_kept_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "<!-- reproduction standard: verdicts -->" in text
    assert filled(text, RESULTS) == text


def test_what_is_kept_is_small_and_says_where_it_comes_from() -> None:
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 4_000_000
    for record in RESULTS.glob(f"*/{RECORD}"):
        for finding in findings_in(record.parent):
            assert finding.provenance["sojourn"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A reproduction with one claim of theory, really computed, and one of training, invented."""
    work = Reproduction.prepare(read_claims(["4"]), scale="quick", out=tmp_path, jobs=1)
    list(work.run(lambda line: None))
    compared = Compared("over uniform", "points", 5.0, 4.0, 6.0, 4)
    told = Statement("a", "b", "reproduces", compared=(compared,))
    rows = (("p*G", "0.01", "81.4 ± 0.2"), ("uniform", "0.01", "75.5 ± 1.5"))
    table = Table(("strategy", "learning rate", ACCURACY), rows, title="Fashion-MNIST, Dirichlet")
    open_one = Statement("c", "d", "inconclusive")
    finding = Finding(
        *("3", "Accuracy", "s", "c", "quick"), (told, open_one), reduced="small", tables=(table,)
    )
    finding.write(tmp_path / "claim-3")
    return tmp_path


def test_tables_say_what_the_files_say(folder: Path) -> None:
    assert [finding.claim for finding in findings_in(folder)] == ["3", "4"]
    assert (
        "of 2 statements about training 1 were run, and 1 of these are conclusive at 95 %"
        in summary(folder)
    )
    rows = verdicts(folder).splitlines()
    assert rows[2] == "| 3 Accuracy | reproduces where conclusive | 1 |  | 1 | reduced |"
    assert rows[3].startswith("| 4 ")
    assert rows[3].endswith("| full size |")
    assert accuracies(folder).splitlines() == [
        "| routing | Fashion-MNIST, Dirichlet, per round |",
        "| --- | --- |",
        "| p\\*G | 81.4 ± 0.2 |",
        "| uniform | 75.5 ± 1.5 |",
    ]
    assert statements(folder).splitlines()[2:] == ["| a |  | b | reproduces |"]


def test_runs_of_a_full_size_cell_are_tabled_from_its_history() -> None:
    folder = RESULTS / "kmnist-three-clusters-3000-units"
    last = {}
    for path in sorted(RESULTS.glob(f"{folder.name}*/history.jsonl")):
        found = {}
        for line in path.read_text().splitlines():
            row = json.loads(line)
            found[row["strategy"], row["seed"]] = row
        assert not found.keys() & last.keys(), "a seed that was run twice"
        last |= found
    by_strategy: dict[str, list[dict[str, Any]]] = {}
    for (strategy, _), row in last.items():
        by_strategy.setdefault(strategy, []).append(row)
    table = runs(folder).splitlines()
    assert len(table) == 2 + len(by_strategy)
    for line, rows in zip(table[2:], by_strategy.values(), strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rounds = sum(row["round"] for row in rows) / len(rows)
        assert cells[1:4] == [str(len(rows)), f"{rounds:,.0f}", "3,000"]
        ended = [100 * row["test_accuracy"] for row in rows]
        mean, *error = map(float, cells[4].split(" ± "))
        assert mean == pytest.approx(statistics.mean(ended), abs=0.051)
        expected = [statistics.stdev(ended) / len(rows) ** 0.5] if len(rows) > 1 else []
        assert error == pytest.approx(expected, abs=0.051)


def test_blocks_are_written_anew_and_the_rest_is_left(folder: Path) -> None:
    page = folder / "page.md"
    page.write_text(
        f"before\n<!-- reproduction {folder.name}: verdicts -->\nstale text\n<!-- end -->\nafter\n"
    )
    main(str(folder.parent), str(page))
    text = page.read_text()
    assert "stale text" not in text
    assert text.startswith(
        f"before\n<!-- reproduction {folder.name}: verdicts -->\n| claim | verdict"
    )
    assert text.endswith("|\n<!-- end -->\nafter\n")
    assert filled(text, folder.parent) == text
    page.write_text(f"<!-- reproduction {folder.name}: verdicts of claim 4 -->\n<!-- end -->")
    main(str(folder.parent), str(page))
    assert "| 4 " in page.read_text() and "| 3 " not in page.read_text()


def test_unknown_blocks_and_empty_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="no block 'poem'"):
        filled(f"<!-- reproduction {folder.name}: poem -->\n<!-- end -->", folder.parent)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidFile, match="holds no finding"):
        findings_in(tmp_path / "empty")

"""The tables of `docs/paper.md`, written from the files of saved reproductions.

``python -m reproduction.kept RESULTS FILE...`` writes them between the comments of each file.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from reproduction.estimate import in_words
from reproduction.figures import read_figures
from reproduction.palette import marked_label
from reproduction.run import read_record
from reproduction.statements import statements_table
from reproduction.training import read_finding
from reproduction.verdict import OUTCOMES, Finding
from sojourn._support.estimate import Estimate
from sojourn._support.files import replacing
from sojourn.errors import InvalidFile
from sojourn.figures.figure import Table
from sojourn.runs.folder import RunFolder
from sojourn.runs.history import History

ACCURACY = "accuracy over the last tenth, %"
SHOWN = {"3": "per round", "6": "per time", "10": "own learning rates"}
"""The claims whose accuracies are tabled, and what is said of them."""
_BLOCK = re.compile(
    r"(<!-- reproduction ([\w-]+): (\w+)(?: of claim (\d+))? -->\n).*?(<!-- end -->)", re.DOTALL
)


def findings_in(folder: Path, claim: str | None = None) -> list[Finding]:
    """What was found about every claim, in order, or about one."""
    found = [read_finding(path) for path in folder.glob(f"claim-{claim or '*'}") if path.is_dir()]
    if not found:
        raise InvalidFile(f"{folder}: holds no finding. Give a folder of 'sojourn reproduce'.")
    return sorted(found, key=lambda finding: int(finding.claim))


MORE = "-more"
"""A folder with this behind its name has findings about statements that were added later."""


def all_findings(folder: Path, claim: str | None = None) -> list[Finding]:
    """The findings in a folder, and behind them those that were made later for statements it lacks."""
    later = folder.with_name(f"{folder.name}{MORE}")
    return findings_in(folder, claim) + (findings_in(later, claim) if later.is_dir() else [])


def summary(folder: Path, claim: str | None = None) -> str:
    """How the reproduction was made, how long it took, and how much of the training was told."""
    record = read_record(folder)
    about_training = [
        statement
        for finding in findings_in(folder, claim)
        for statement in finding.statements
        if finding.reduced or statement.compared
    ]
    outcomes = Counter(statement.outcome for statement in about_training)
    looked_at = sum(bool(statement.compared) for statement in about_training)
    told = outcomes["reproduces"] + outcomes["does not reproduce"]
    jobs = record["provenance"]["inputs"]["jobs"]
    budget = record.get("processor_seconds")
    paid = "" if budget is None else f" and {in_words(budget)} of processor"
    return (
        f"`sojourn reproduce --scale {record['scale']}` with {jobs} job{'s' if jobs > 1 else ''}"
        f"{paid} for training, {in_words(record['elapsed_seconds'])} by the clock: of "
        f"{len(about_training)} statements about training {looked_at} were run, and {told} of "
        f"these are conclusive at 95 %, {outcomes['reproduces']} as claimed."
    )


def verdicts(folder: Path, claim: str | None = None) -> str:
    """A row for every claim: its verdict, and how its statements came out."""
    rows = []
    for finding in findings_in(folder, claim):
        outcomes = Counter(statement.outcome for statement in finding.statements)
        cells = (str(outcomes[outcome] or "") for outcome in OUTCOMES[:3])
        name = f"{finding.claim} {finding.title}"
        rows.append((name, finding.verdict, *cells, finding.rests_on))
    columns = ("claim", "verdict", "reproduced", "not", "inconclusive", "rests on")
    return _markdown(columns, rows)


def accuracies(folder: Path, claim: str | None = None) -> str:
    """Final test accuracy of every strategy in the cells of the claims that are shown."""
    columns: dict[str, dict[str, str]] = {}
    for finding in findings_in(folder, claim):
        for table in finding.tables if finding.claim in SHOWN else ():
            columns[f"{table.title}, {SHOWN[finding.claim]}"] = _accuracy_by_strategy(table)
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [(name, *(column.get(name, "") for column in columns.values())) for name in names]
    return _markdown(("routing", *columns), rows)


def statements(folder: Path, claim: str | None = None) -> str:
    """Every statement about training that was run: what was found, and the outcome."""
    rows = [
        (statement.says.rstrip("."), statement.about, statement.found, statement.outcome)
        for finding in findings_in(folder, claim)
        for statement in finding.statements
        if statement.compared
    ]
    return _markdown(("statement", "about", "found", "outcome"), rows)


def paper(folder: Path, claim: str | None = None) -> str:
    """Every statement of the paper: its words, where they are, the status and what it rests on."""
    table = statements_table(all_findings(folder, claim))
    return _markdown(table.columns, table.rows)


def figures(folder: Path, claim: str | None = None) -> str:
    """The paper's figures: how many drawings stand beside each, of which claim, and what is ours."""
    found = findings_in(folder, claim)
    rows = []
    for figure in read_figures():
        drawn = [(one.claim, f) for one in found for f in one.figures if figure.has(f)]
        claims = ", ".join(dict.fromkeys(number for number, _ in drawn)) or "not run"
        rows.append(
            (
                f"{figure.number}, line {figure.line}: {figure.title}",
                figure.printed,
                "; ".join(figure.ours),
                claims,
                str(len(drawn)),
            )
        )
    columns = ("figure", "what the paper says about it", "ours", "claim", "drawings")
    return _markdown(columns, rows)


def runs(folder: Path, claim: str | None = None) -> str:
    """A row for every strategy in a folder of `sojourn train`: its runs, their length, how accurate.

    Runs of other seeds may be in folders of their own, whose names begin with this one's.
    """
    by_strategy: dict[str, list[History]] = {}
    for place in sorted(folder.parent.glob(f"{folder.name}*")):
        for history in RunFolder(place).histories:
            by_strategy.setdefault(history.strategy, []).append(history)
    rows = [
        (
            marked_label(strategy),
            str(len(histories)),
            f"{np.mean([history.round[-1] for history in histories]):,.0f}",
            f"{np.mean([history.time[-1] for history in histories]):,.0f}",
            f"{Estimate.from_samples([100 * history.final_accuracy for history in histories]):.1f}",
            f"{Estimate.from_samples([100 * history.mean_accuracy for history in histories]):.1f}",
        )
        for strategy, histories in by_strategy.items()
    ]
    columns = (
        "routing",
        "seeds",
        "rounds",
        "time units",
        "final test accuracy, %",
        "mean over time, %",
    )
    return _markdown(columns, rows)


BLOCKS: dict[str, Callable[[Path, str | None], str]] = {
    "summary": summary,
    "verdicts": verdicts,
    "accuracies": accuracies,
    "statements": statements,
    "paper": paper,
    "figures": figures,
    "runs": runs,
}


def filled(text: str, results: Path) -> str:
    """``text`` with every marked block as the files of the runs in ``results`` have it.

    A block stands between ``<!-- reproduction RUN: NAME -->`` and ``<!-- end -->``; NAME may be followed by
    ``of claim NUMBER``.
    """

    def block(match: re.Match[str]) -> str:
        if match[3] not in BLOCKS:
            raise InvalidFile(f"there is no block '{match[3]}': choose among {', '.join(BLOCKS)}")
        return f"{match[1]}{BLOCKS[match[3]](results / match[2], match[4])}\n{match[5]}"

    return _BLOCK.sub(block, text)


def _accuracy_by_strategy(table: Table) -> dict[str, str]:
    place = table.columns.index(ACCURACY)
    return {row[0]: row[place] for row in table.rows}


def _markdown(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('*', chr(92) + '*').replace('|', chr(92) + '|') for cell in line)} |"
        for line in lines
    )


def main(results: str, *paths: str) -> None:
    """Write the blocks of these files anew."""
    for path in map(Path, paths):
        text = filled(path.read_text(encoding="utf-8"), Path(results))
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

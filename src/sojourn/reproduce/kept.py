"""The tables of the README and the docs, taken from the files of reproductions that are kept.

``python -m sojourn.reproduce.kept RESULTS FILE...`` writes them between the marks of each file.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from sojourn.errors import InvalidFile
from sojourn.figure import Table
from sojourn.files import replacing
from sojourn.reproduce.estimate import in_words
from sojourn.reproduce.palette import marked_label
from sojourn.reproduce.run import read_record
from sojourn.reproduce.verdict import OUTCOMES, Finding
from sojourn.runfolder import RunFolder

ACCURACY = "accuracy over the last tenth, %"
SHOWN = {"3": "per round", "6": "per time", "10": "own learning rates"}
"""The claims whose accuracies are tabled, and what is said of them."""
_BLOCK = re.compile(
    r"(<!-- reproduction ([\w-]+): (\w+)(?: of claim (\d+))? -->\n).*?(<!-- end -->)", re.DOTALL
)


def findings_in(folder: Path, claim: str | None = None) -> list[Finding]:
    """What was found about every claim, in order, or about one."""
    found = [Finding.read(path) for path in folder.glob(f"claim-{claim or '*'}") if path.is_dir()]
    if not found:
        raise InvalidFile(f"{folder}: holds no finding. Give a folder of 'sojourn reproduce'.")
    return sorted(found, key=lambda finding: int(finding.claim))


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
        f"these are told at 95 %, {outcomes['reproduces']} as claimed."
    )


def verdicts(folder: Path, claim: str | None = None) -> str:
    """A row for every claim: its verdict, and how its statements came out."""
    rows = []
    for finding in findings_in(folder, claim):
        outcomes = Counter(statement.outcome for statement in finding.statements)
        cells = (str(outcomes[outcome] or "") for outcome in OUTCOMES[:3])
        rows.append((f"{finding.claim} {finding.title}", finding.verdict, *cells))
    return _markdown(("claim", "verdict", "reproduced", "not", "cannot be told"), rows)


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


def runs(folder: Path, claim: str | None = None) -> str:
    """A row for every run in a folder of `sojourn train`: how long it was, and how accurate."""
    rows = [
        (
            marked_label(history.strategy),
            f"{history.round[-1]:,}",
            f"{history.time[-1]:,.0f}",
            f"{100 * history.final_accuracy:.1f}",
            f"{100 * history.mean_accuracy:.1f}",
        )
        for history in RunFolder(folder).histories
    ]
    columns = ("routing", "rounds", "units of time", "final test accuracy, %", "mean over time, %")
    return _markdown(columns, rows)


BLOCKS: dict[str, Callable[[Path, str | None], str]] = {
    "summary": summary,
    "verdicts": verdicts,
    "accuracies": accuracies,
    "statements": statements,
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
        f"| {' | '.join(cell.replace('*', chr(92) + '*') for cell in line)} |" for line in lines
    )


def main(results: str, *paths: str) -> None:
    """Write the blocks of these files anew."""
    for path in map(Path, paths):
        text = filled(path.read_text(encoding="utf-8"), Path(results))
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""``sojourn compare``: strategies seed by seed, with tests, for a terminal, a spreadsheet, a paper."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sojourn.cli import app
from sojourn.cli.inputs import print_table, printed, say_next, screen
from sojourn.errors import InvalidFile
from sojourn.estimate import plus_minus
from sojourn.files import replacing

if TYPE_CHECKING:
    from sojourn.history import History
    from sojourn.report.comparison import Comparison, Paired, Spread, TimeTo


@app.command()
def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of train, tune or deploy.")
    ],
    against: Annotated[
        str | None,
        typer.Option(help="The strategy to compare with.", show_default="(the first)"),
    ] = None,
    target: Annotated[
        list[float] | None,
        typer.Option(
            help="Time to this accuracy, loss or metric.", show_default="(the run's targets)"
        ),
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write all numbers as CSV.")] = None,
    latex: Annotated[
        Path | None, typer.Option(help="Write a table for a paper (booktabs).")
    ] = None,
) -> None:
    """Compare strategies with paired tests over seeds.

    Runs of the same seed saw the same data, first weights and service times: their differences are
    tested, which needs fewer seeds. Times that were not reached count as longer than the run.

    Example: sojourn compare runs/mine --against uniform --csv table.csv
    """
    from sojourn.report.comparison import compare as compare_runs, to_csv, to_latex

    runs, targets = _read(folders)
    found = compare_runs(runs, target or targets, against)
    for path, text in ((csv, to_csv), (latex, to_latex)):
        if path is not None:
            with replacing(path) as temporary:
                temporary.write_text(text(found), encoding="utf-8")
    _show(found)
    for path in filter(None, (csv, latex)):
        typer.echo(f"written to {path}")
    say_next("report", folders[0], note=f"or sojourn figure {folders[0]}")


def _read(folders: Sequence[Path]) -> "tuple[dict[str, Sequence[History]], list[float]]":
    """The runs of all strategies in the folders, named after both where there are several."""
    from sojourn.runfolder import RunFolder

    runs: dict[str, Sequence[History]] = {}
    targets: set[float] = set()
    for folder in folders:
        if not RunFolder(folder).has_histories:
            raise InvalidFile(
                f"{folder}: no history.jsonl in it. Give a folder written by 'train'."
            )
        run = RunFolder(folder).read()
        targets |= set(run.targets)
        for history in run.histories:
            name = history.strategy if len(folders) == 1 else f"{run.name}: {history.strategy}"
            runs[name] = [*runs.get(name, []), history]
    return runs, sorted(targets)


def _show(found: "Comparison") -> None:
    measure = found.measure
    console = screen()
    table = Table(box=None, header_style="bold", pad_edge=False)
    heads = ["seeds", f"final {measure.name}", "mean", f"minus {found.reference}", "95 %", "p"]
    heads += [f"to {measure.target(time.target)}" for time in found.rows[0].times]
    table.add_column("strategy", overflow="fold")
    for head in heads:
        table.add_column(escape(head), justify="right")
    for row in found.rows:
        lost = f" ({row.diverged} diverged)" if row.diverged else ""
        table.add_row(
            escape(row.name),
            f"{len(row.seeds)}{lost}",
            _spread(row.final, measure.percent),
            _spread(row.mean, measure.percent),
            *_difference(row.paired, measure.percent),
            *(_time(time) for time in row.times),
        )
    print_table(console, table)
    console.print(
        "± standard deviation over seeds; p: paired t-test over common seeds, after Holm's "
        "correction; times: median, with how many runs reached the target if not all did.",
        highlight=False,
    )


def _spread(spread: "Spread", percent: bool) -> str:
    if math.isnan(spread.mean):
        return "-"
    return plus_minus(spread.mean, spread.deviation, ".1%" if percent else ".4g")


def _difference(paired: "Paired | None", percent: bool) -> tuple[str, str, str]:
    if paired is None or math.isnan(paired.difference):
        return "-", "-", "-"
    scale, form = (100.0, "+.1f") if percent else (1.0, "+.3g")
    low, high = scale * paired.low, scale * paired.high
    margin = "-" if math.isnan(low) else f"{low:{form}} to {high:{form}}"
    p = "-" if math.isnan(paired.adjusted) else f"{paired.adjusted:.2g}"
    return f"{scale * paired.difference:{form}}", margin, p


def _time(time: "TimeTo") -> str:
    if time.reached == 0:
        return f"> {printed(time.horizon)}"
    middle = printed(time.median) if math.isfinite(time.median) else f"> {printed(time.horizon)}"
    return middle if time.reached == time.runs else f"{middle} ({time.reached} of {time.runs})"

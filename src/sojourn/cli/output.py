"""What commands print alike: tables, verdicts, the next command."""

import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeAlias

import numpy as np
import typer
from numpy.typing import ArrayLike
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from sojourn._support.csv_table import write_csv
from sojourn._support.numbers import number, unbroken
from sojourn.errors import UnknownName
from sojourn.fleet import Fleet
from sojourn.types import FloatArray

if TYPE_CHECKING:
    from sojourn.report.verdict import Verdict

ClassRow: TypeAlias = Mapping[str, float | str]
"""What is known of a class of clients, by column: its ``name``, and numbers."""
INTERRUPTED = 130
CHOSEN = "green"
"""The colour of the row that is chosen; yellow is for caution, and nothing else is coloured."""
MOST_ROWS = 40
"""Classes up to which all are printed."""
FEW_ROWS = 10
"""How many are printed below the quantiles of more."""
QUANTILES = {"least": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95}
QUANTILES["most"] = 1.0


def say_first(text: str) -> None:
    """Say on a terminal what is being done, before anything slow is imported or computed."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)


def say_above(text: str) -> None:
    """Say something on standard error while a bar is shown there: above it, not behind it."""
    sys.stderr.write(
        f"{text}\n"
    )  # typer.echo has a stream of its own, of which the bar knows nothing


def stop_interrupted(text: str) -> NoReturn:
    """Say how to go on after Ctrl-C, and end as the shell expects of a command that it ended."""
    typer.secho(f"interrupted. {text}", fg="yellow", err=True)
    raise typer.Exit(INTERRUPTED) from None


def say_next(*words: str | Path, note: str = "") -> None:
    """End a command with the one to type now; not on standard output, which programs read.

    What follows the colon can be copied into a shell as it is: a note stands behind a #.
    """
    line = shlex.join(["sojourn", *map(str, words)])
    typer.echo(f"Next: {line}{f'  # {note}' if note else ''}", err=True)


def say_verdict(verdict: "Verdict", console: Console) -> None:
    """Print what to use, why, and the strategies by group; words wrap, and never inside "a ± b"."""
    title, *lines = verdict.lines
    console.print(Text(title, style="bold"))
    for line in lines:
        # A command is copied whole, however long it is.
        text = line if line.startswith("Next: ") else wrapped(line, console.width)
        console.print(text, markup=False, soft_wrap=True)


def marked(name: str, pick: str) -> str:
    """A name for the first column of a table, with a star after the pick, coloured or not."""
    return f"{escape(name)} *" if name == pick else escape(name)


def wrapped(text: str, width: int) -> str:
    """Text in lines of at most ``min(width, 100)`` letters, without a break inside "a ± b", "5 %"
    or a name.

    >>> print(wrapped("it ends at 0.1178 ± 0.0065", 20))
    it ends at
    0.1178 ± 0.0065
    """
    lines = textwrap.wrap(
        unbroken(text, "\0"), min(width, 100), break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\0", " ")


def printed(value: float) -> str:
    """A number for a table of theory, which is compared to more digits than a measurement.

    >>> printed(0.123456), printed(47_968.4), printed(2e9)
    ('0.1235', '47,970', '2e9')
    """
    return number(value, 4)


def page_line(page: Path) -> str:
    """The address of a page, which terminals open on a click."""
    return f"Page: {page.resolve().as_uri()}"


def plain_table(names: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """A table without lines: columns of ``names``, then of ``numbers``, aligned to the right.

    A name that does not fit goes on in the next line, between words.
    """
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    for heading in names:
        table.add_column(escape(heading), overflow="fold")
    for heading in numbers:
        table.add_column(escape(heading), justify="right")
    return table


def print_table(console: Console, table: Table, drop: Sequence[str] = ()) -> None:
    """Print a table with every name and number in full.

    On a terminal that is too narrow headings and names go on in the next line, between words, and
    columns move together. Then the columns headed ``drop`` are left out, the first one first, until
    the rest fits, and a line says so. What still does not fit stands in a further block, with the
    names before it; in a file or a pipe lines are as long as they need to be.
    """
    gap = table.padding[1] + table.padding[3]
    columns = [_Fitted(column, *_widths(column, console.width)) for column in table.columns]
    natural = sum(one.most for one in columns) + gap * (len(columns) - 1)
    if natural <= console.width or not console.is_terminal:
        _print_columns(console, table, [(one.column, one.most) for one in columns])
        return
    if sum(one.least for one in columns) + gap * (len(columns) - 1) > console.width:
        gap, table.padding = 1, (0, 1, 0, 0)
    left_out: list[str] = []
    for heading in drop:
        if sum(one.least for one in columns) + gap * (len(columns) - 1) <= console.width:
            break
        columns = [one for one in columns if one.column.header != heading]
        left_out.append(heading)
    names, *others = columns
    room = console.width - names.least
    for block in _blocks([one.least + gap for one in others], room):
        chosen = [names, *(others[k] for k in block)]
        spare = console.width - sum(one.least for one in chosen) - gap * (len(chosen) - 1)
        shown = []
        for one in chosen:
            more = max(0, min(spare, one.most - one.least))
            shown.append((one.column, one.least + more))
            spare -= more
        _print_columns(console, table, shown)
    if left_out:
        plural = "" if len(left_out) == 1 else "s"
        note = f"left out for want of room, column{plural}: {', '.join(left_out)}"
        console.print(wrapped(note, console.width), markup=False)


class _Fitted(NamedTuple):
    """A column of a table, and how narrow and how wide it may be."""

    column: Column
    least: int
    most: int


NAME_WIDTH = 24
"""Letters of a name that stand in one line, if it has so many, however narrow the terminal is."""


def _widths(column: Column, width: int) -> tuple[int, int]:
    """The least and the greatest width of a column: headings, and names that fold, may be broken."""
    heading = str(column.header)
    entries = [
        cell if isinstance(cell, Text) else Text.from_markup(str(cell)) for cell in column.cells
    ]
    most = max([len(heading), *(text.cell_len for text in entries)])
    if column.overflow == "fold":
        words = [len(word) for text in entries for word in text.plain.split()]
        least = max([min(most, NAME_WIDTH), min(width // 2, max(words, default=0))])
    else:
        least = max((text.cell_len for text in entries), default=0)
    return max([least, *(min(most, len(word)) for word in heading.split())]), most


def _print_columns(console: Console, table: Table, widths: Sequence[tuple[Column, int]]) -> None:
    """Print these columns of a table, each as wide as is given."""
    gap = table.padding[1] + table.padding[3]
    part = Table(
        box=None, header_style=table.header_style, padding=table.padding, pad_edge=table.pad_edge
    )
    part.rows = table.rows
    part.columns = [
        replace(column, _index=place, width=width) for place, (column, width) in enumerate(widths)
    ]
    part.width = sum(width for _, width in widths) + gap * (len(widths) - 1)
    console.print(part, crop=False)


def _blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Columns in their order, as many together as ``room`` has place for.

    >>> _blocks([4, 4, 4, 9], 8)
    [[0, 1], [2], [3]]
    """
    blocks: list[list[int]] = [[]]
    used = 0
    for k, width in enumerate(widths):
        if blocks[-1] and used + width > room:
            blocks.append([])
            used = 0
        blocks[-1].append(k)
        used += width
    return blocks


def screen() -> Console:
    """Standard output, coloured only where the text says so."""
    return Console(highlight=False)


def grouped_text(original: Fleet, grouped: Fleet, tolerance: float) -> str:
    """What grouping did to a fleet."""
    return (
        f"{original.classes} speeds taken as {grouped.classes} classes: every client is within "
        f"{tolerance:.2g} of its class."
    )


def in_order(
    rows: Sequence[ClassRow], column: str | None, columns: Sequence[str]
) -> list[ClassRow]:
    """Rows with the largest of ``column`` first, by name alphabetically, as they are if ``None``.

    >>> rows = [{"name": "b", "rate": 1.0}, {"name": "a", "rate": 2.0}]
    >>> [row["name"] for row in in_order(rows, "rate", ["rate"])]
    ['a', 'b']
    """
    if column is None:
        return list(rows)
    column = column.replace("-", "_")
    if column == "name":
        return sorted(rows, key=lambda row: str(row["name"]))
    if column not in columns:
        raise UnknownName("column", column, ["name", *columns])
    return sorted(rows, key=lambda row: -float(row[column]))


def class_rows(fleet: Fleet, columns: Mapping[str, FloatArray]) -> list[ClassRow]:
    """Every class of a fleet: its name, its count, and its entry of each of ``columns``."""
    return [
        {
            "name": fleet.label(k),
            "count": int(fleet.counts[k]),
            **{name: float(values[k]) for name, values in columns.items()},
        }
        for k in range(fleet.classes)
    ]


def show_classes(
    rows: Sequence[ClassRow],
    shown: Mapping[str, str],
    console: Console,
    *,
    in_full: str,
    percent: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> None:
    """Print a line per class, or quantiles over clients and some lines where there are many.

    Rows have a ``name``, a ``count`` and the columns that ``shown`` gives headings for. ``in_full``
    says where all of them are to be had; ``percent`` are columns printed as percentages, ``drop``
    headings left out first where there is no room.
    """

    def cell(column: str, entry: float | str) -> str:
        value = float(entry)
        if column not in percent:
            return printed(value)
        return f"{value:.1%}" if value >= 5e-4 or value == 0.0 else f"{100.0 * value:.1g}%"

    cut = len(rows) > MOST_ROWS
    if cut:
        counts = np.array([row["count"] for row in rows], dtype=np.float64)
        table = plain_table(["clients"], list(shown))
        by_column = {
            column: np.quantile(
                [float(row[column]) for row in rows],
                list(QUANTILES.values()),
                weights=counts,
                method="inverted_cdf",
            )
            for column in shown.values()
        }
        for k, quantile in enumerate(QUANTILES):
            table.add_row(
                quantile, *(cell(column, values[k]) for column, values in by_column.items())
            )
        print_table(console, table, drop)
        console.print()
    table = plain_table(["class"], ["clients", *shown])
    for row in rows[: FEW_ROWS if cut else len(rows)]:
        cells = (cell(column, row[column]) for column in shown.values())
        table.add_row(escape(str(row["name"])), f"{row['count']:,}", *cells)
    print_table(console, table, drop)
    if cut:
        console.print(f"... and {len(rows) - FEW_ROWS} more classes: {in_full}")


def write_clients(
    fleet: Fleet, columns: Mapping[str, ArrayLike], path: Path, *, one_by_one: bool
) -> None:
    """A CSV with what the fleet's own file says and what was found of each.

    A line per client, numbered where their class has several, if ``one_by_one``, else one per class
    with its ``count``. ``columns`` has an entry per line; a column of the file's own that is called
    like one of them is marked.
    """
    lines = np.repeat(np.arange(fleet.classes), fleet.counts if one_by_one else 1)
    names = [fleet.label(k) for k in lines.tolist()]
    described: dict[str, Sequence[float]] = {"service_rate": fleet.service_rates[lines].tolist()}
    if one_by_one:
        first = np.cumsum(fleet.counts) - fleet.counts
        member = np.arange(lines.size) - first[lines] + 1
        several = (fleet.counts > 1)[lines]
        names = [
            f"{name} {number}" if many else name
            for name, number, many in zip(names, member.tolist(), several.tolist(), strict=True)
        ]
    else:
        described["count"] = fleet.counts.tolist()
    extra = {
        f"{name} (given)" if name in columns else name: [entries[k] for k in lines.tolist()]
        for name, entries in fleet.extra.items()
    }
    computed = {name: np.asarray(values).tolist() for name, values in columns.items()}
    written = {"name": names, **described, **extra, **computed}
    write_csv(path, written, zip(*written.values(), strict=True))

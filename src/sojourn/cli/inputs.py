"""What several commands take and print alike."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from sojourn.errors import InvalidInput
from sojourn.files import is_file
from sojourn.network import BUILT_IN_FLEETS

WRITTEN = ("out", "page", "clients", "figure")
"""Options that name a file to be written."""
CHOSEN = "green"
"""The colour of the row that is chosen; yellow is for caution, and nothing else is coloured."""

FleetArgument = Annotated[
    str,
    typer.Argument(
        metavar="FLEET",
        help="CSV with a column service_rate and, optionally, count and name; or a built-in fleet: "
        + ", ".join(BUILT_IN_FLEETS)
        + ".",
    ),
]


def sparing_inputs(command: Callable[..., None]) -> Callable[..., None]:
    """A command that refuses to write over one of the files that it reads."""

    @wraps(command)
    def spared(**given: Any) -> None:
        read = [v for name, v in given.items() if name not in WRITTEN and isinstance(v, str | Path)]
        for name in WRITTEN:
            out = given.get(name)
            if isinstance(out, Path) and any(_is_same_file(out, path) for path in read):
                raise InvalidInput(
                    f"--{name} {out} is read by this command and would be lost: give another name"
                )
        command(**given)

    return spared


def _is_same_file(one: Path, other: str | Path) -> bool:
    return is_file(one) and is_file(other) and one.samefile(other)


def say_next(*words: str | Path, note: str = "") -> None:
    """End a command with the one to type now; not on standard output, which programs read.

    What follows the colon can be copied into a shell as it is: a note stands behind a #.
    """
    line = shlex.join(["sojourn", *map(str, words)])
    typer.echo(f"Next: {line}{f'  # {note}' if note else ''}", err=True)


def printed(value: float) -> str:
    """A number for a table: four significant digits, plainly written where that is short.

    >>> printed(0.123456), printed(47_968.4), printed(7.395e5), printed(2e9)
    ('0.1235', '47,970', '739,500', '2e+09')
    """
    if not np.isfinite(value):
        return str(value)
    if 1e4 <= abs(value) < 1e7:
        return f"{float(f'{value:.4g}'):,.0f}"
    return f"{value:.4g}"


def print_table(console: Console, table: Table) -> None:
    """Print a table with every name and number in full.

    On a terminal, columns that do not fit beside the others stand in a further block, with the names
    before them; in a file or a pipe lines are as long as they need to be.
    """
    for column in table.columns:
        words = [Text(word) for word in str(column.header).split()]
        entries = [
            cell if isinstance(cell, Text) else Text.from_markup(str(cell)) for cell in column.cells
        ]
        if column.overflow == "fold":  # such a name may go on in the next line, between words
            entries = [Text(word) for text in entries for word in text.plain.split()]
        column.min_width = max((text.cell_len for text in [*words, *entries]), default=0)
    least = Measurement.get(console, console.options.update(max_width=10_000), table).minimum
    if least <= console.width:
        console.print(table, crop=False)
        return
    if not console.is_terminal:
        table.width = least
        console.print(table, crop=False)
        return
    gap = table.padding[1] + table.padding[3]
    names, *others = table.columns
    for block in _blocks(
        [(c.min_width or 0) + gap for c in others], console.width - (names.min_width or 0) - gap
    ):
        part = Table(box=None, header_style=table.header_style, padding=table.padding)
        part.pad_edge, part.rows = table.pad_edge, table.rows
        kept = [names, *(others[k] for k in block)]
        part.columns = [
            replace(column, _index=place, width=column.min_width)
            for place, column in enumerate(kept)
        ]
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


ServerRateOption = Annotated[
    float | None,
    typer.Option(
        help="Updates per unit of time that the server can make, one after the other; it takes no "
        "time if left out. Times on links are the fleet's columns downlink and uplink; how long clients "
        "are there and away, mean_up and mean_down."
    ),
]

OpenOption = Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")]
PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="Where to listen on 127.0.0.1; 0 takes a free port.")
]

JobsOption = Annotated[int, typer.Option(help="Processes on this machine.")]
EngineOption = Annotated[str, typer.Option(help="local, or dask.")]
SchedulerOption = Annotated[
    str | None, typer.Option(help="Address of the Dask scheduler, such as tcp://host:8786.")
]
DataDirOption = Annotated[
    Path | None, typer.Option(help="Where data sets are sought before $SOJOURN_DATA.")
]

"""Tables with a line per class of clients: printed in part, told by quantiles, written in full."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import ArrayLike
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sojourn.cli.inputs import print_table, printed
from sojourn.errors import UnknownName
from sojourn.files import replacing
from sojourn.network import Fleet

MOST_ROWS = 40
"""Classes up to which all are printed."""
FEW_ROWS = 10
"""How many are printed below the quantiles of more."""
QUANTILES = {"least": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95}
QUANTILES["most"] = 1.0

GroupOption = Annotated[
    float | None,
    typer.Option(help="Treat clients whose speeds differ by less than this as one class."),
]


def sort_option(columns: Sequence[str]) -> Any:
    """The option ``--sort`` of a command whose table has these columns."""
    offered = ", ".join(columns)
    return typer.Option(help=f"Largest first by one of: {offered}; or by name.", show_default=False)


def grouped_text(original: Fleet, grouped: Fleet, tolerance: float) -> str:
    """What grouping did to a fleet."""
    return (
        f"{original.classes} speeds taken as {grouped.classes} classes: every client is within "
        f"{tolerance:.2g} of its class."
    )


def in_order(
    rows: Sequence[Mapping[str, Any]], column: str | None, columns: Sequence[str]
) -> list[Mapping[str, Any]]:
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


def show_classes(
    rows: Sequence[Mapping[str, Any]],
    shown: Mapping[str, str],
    console: Console,
    *,
    in_full: str,
    percent: Sequence[str] = (),
) -> None:
    """Print a line per class, or quantiles over clients and some lines where there are many.

    Rows have a ``name``, a ``count`` and the columns that ``shown`` gives headings for. ``in_full``
    says where all of them are to be had; ``percent`` are columns printed as percentages.
    """

    def cell(column: str, value: float) -> str:
        if column not in percent:
            return printed(value)
        return f"{value:.1%}" if value >= 5e-4 or value == 0.0 else f"{100.0 * value:.1g}%"

    cut = len(rows) > MOST_ROWS
    if cut:
        counts = np.array([row["count"] for row in rows], dtype=np.float64)
        table = _table("clients", shown)
        by_column = {
            column: weighted_quantiles([row[column] for row in rows], counts, QUANTILES.values())
            for column in shown.values()
        }
        for k, quantile in enumerate(QUANTILES):
            table.add_row(
                quantile, *(cell(column, values[k]) for column, values in by_column.items())
            )
        print_table(console, table)
        console.print()
    table = _table("class", {"clients": "count", **shown})
    for row in rows[: FEW_ROWS if cut else len(rows)]:
        cells = (cell(column, row[column]) for column in shown.values())
        table.add_row(escape(str(row["name"])), str(row["count"]), *cells)
    print_table(console, table)
    if cut:
        console.print(f"... and {len(rows) - FEW_ROWS} more classes: {in_full}")


def weighted_quantiles(
    values: ArrayLike, counts: ArrayLike, levels: Sequence[float] | Any
) -> list[float]:
    """The values at which the given fractions of the clients are reached.

    >>> weighted_quantiles([3.0, 1.0], [1, 9], [0.0, 0.5, 0.9, 1.0])
    [1.0, 1.0, 1.0, 3.0]
    """
    order = np.argsort(np.asarray(values), kind="stable")
    reached = np.cumsum(np.asarray(counts)[order])
    places = np.searchsorted(reached, np.array(list(levels)) * reached[-1] * (1.0 - 1e-12))
    return [float(np.asarray(values)[order][place]) for place in places]


def _table(first: str, columns: Mapping[str, str]) -> Table:
    table = Table(first, *columns, box=None, header_style="bold", padding=(0, 1, 0, 0))
    table.pad_edge = False
    for column in table.columns[1:]:
        column.justify = "right"
    return table


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
    given: dict[str, Sequence[Any]] = {"service_rate": fleet.service_rates[lines].tolist()}
    if one_by_one:
        first = np.cumsum(fleet.counts) - fleet.counts
        member = np.arange(lines.size) - first[lines] + 1
        several = (fleet.counts > 1)[lines]
        names = [
            f"{name} {number}" if many else name
            for name, number, many in zip(names, member.tolist(), several.tolist(), strict=True)
        ]
    else:
        given["count"] = fleet.counts.tolist()
    own = {
        f"{name} (given)" if name in columns else name: [entries[k] for k in lines.tolist()]
        for name, entries in fleet.extra.items()
    }
    found = {name: np.asarray(values).tolist() for name, values in columns.items()}
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["name", *given, *own, *found])
        writer.writerows(zip(names, *given.values(), *own.values(), *found.values(), strict=True))

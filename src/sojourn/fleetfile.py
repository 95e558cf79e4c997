"""Fleets on disk: CSV with a line per class, every mistake told with its line."""

import csv
import difflib
import io
import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.csvrows import as_number, check_text
from sojourn.errors import InvalidFile, UnknownName
from sojourn.files import read_text
from sojourn.fleetcolumns import OPTIONAL_COLUMNS, limits, outside
from sojourn.types import FloatArray

COLUMNS = ("service_rate", "count", "name", "law", *OPTIONAL_COLUMNS)
MOST_COLUMNS = 1000


class Columns(NamedTuple):
    """What a file tells of a fleet; ``extra`` are columns that mean something to its owner alone."""

    rates: FloatArray
    counts: FloatArray | None
    names: list[str] | None
    law: list[str] | None
    optional: dict[str, FloatArray]
    extra: dict[str, list[str]]


def read_columns(path: str | os.PathLike[str]) -> Columns:
    """The columns of a CSV file, checked."""
    where = str(path)
    header, columns, lines = _read_rows(where)
    rates = _numbers(columns["service_rate"], lines, "service_rate", where)
    _check(rates, rates > 0, lines, "service_rate must be positive and finite", where)
    counts = None
    if "count" in header:
        counts = _numbers(columns["count"], lines, "count", where)
        whole = (counts > 0) & (counts == np.floor(counts))
        _check(counts, whole, lines, "count must be whole and at least 1", where)
    optional = {}
    for name in (name for name in OPTIONAL_COLUMNS if name in header):
        values = optional[name] = _numbers(columns[name], lines, name, where)
        good = np.ones(values.size, dtype=np.bool_)
        good[outside(name, values)] = False
        _check(values, good, lines, limits(name), where)
    for line, law in zip(lines, columns.get("law", []), strict="law" in columns):
        if not law:
            raise InvalidFile(f"{where}, line {line}: the law is missing, such as exponential")
    extra = {name: columns[name] for name in header if name not in COLUMNS}
    return Columns(rates, counts, columns.get("name"), columns.get("law"), optional, extra)


def _read_rows(where: str) -> tuple[list[str], dict[str, list[str]], list[int]]:
    """The first line, the fields below it by column, and the lines that they stand on."""
    try:
        rows = list(csv.reader(io.StringIO(read_text(where), newline="")))
    except csv.Error as error:
        raise InvalidFile(f"{where}: not a CSV file ({error})") from error
    if not rows or not any(field.strip() for field in rows[0]):
        raise InvalidFile(f"{where}: empty. The first line must name the columns: service_rate")
    header = [field.strip() for field in rows[0]]
    check_text(header, f"{where}, line 1")
    if len(header) > MOST_COLUMNS:
        raise InvalidFile(f"{where}: {len(header)} columns, where at most {MOST_COLUMNS} are read")
    for column in header:
        if misspelt(column, header):
            raise InvalidFile(
                f"{where}: {UnknownName('column', column, COLUMNS)} Call a column of your own "
                "something less alike."
            )
    if not all(header):
        raise InvalidFile(f"{where}: column {header.index('') + 1} has no name in the first line")
    if len(set(header)) != len(header):
        raise InvalidFile(f"{where}: a column stands twice in the first line")
    if "service_rate" not in header:
        near = difflib.get_close_matches("service_rate", header, n=1, cutoff=0.4)
        hint = f": is it '{near[0]}'?" if near else ""
        raise InvalidFile(f"{where}: there is no column service_rate in the first line{hint}")
    columns: dict[str, list[str]] = {name: [] for name in header}
    lines: list[int] = []
    for line, row in enumerate(rows[1:], start=2):
        if not any(field.strip() for field in row):
            continue
        if len(row) != len(header):
            raise InvalidFile(
                f"{where}, line {line}: {len(row)} fields where the first line has {len(header)}"
            )
        check_text(row, f"{where}, line {line}")
        lines.append(line)
        for name, field in zip(header, row, strict=True):
            columns[name].append(field.strip())
    if not lines:
        raise InvalidFile(f"{where}: no clients: there is no line below the column names")
    return header, columns, lines


def misspelt(column: str, header: list[str]) -> bool:
    """Whether a column that means nothing here was meant to be one of ours that is not there.

    >>> misspelt("counts", ["service_rate", "counts"]), misspelt("Service Rate", ["Service Rate"])
    (True, True)
    >>> misspelt("country", ["service_rate", "country"]), misspelt("lat", ["service_rate", "lat"])
    (False, False)
    """
    if column in COLUMNS:
        return False
    plain = "_".join(column.lower().replace("-", " ").split())
    return any(
        plain.removesuffix("s") == known or _distance(plain, known) <= len(known) // 4
        for known in COLUMNS
        if known not in header and abs(len(plain) - len(known)) <= len(known)
    )


def _distance(one: str, other: str) -> int:
    """How many letters must be added, left out or changed to make one word the other."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        above, row = row, [i]
        for j, wanted in enumerate(other, start=1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (letter != wanted)))
    return row[-1]


def _check(
    values: FloatArray, good: NDArray[np.bool_], lines: list[int], rule: str, where: str
) -> None:
    wrong = np.flatnonzero(~(np.isfinite(values) & good))
    if wrong.size:
        i = int(wrong[0])
        raise InvalidFile(f"{where}, line {lines[i]}: {rule}; it is {values[i]:g}")


def _numbers(fields: list[str], lines: list[int], name: str, where: str) -> FloatArray:
    try:
        if any("_" in field for field in fields):
            raise ValueError(f"a {name} with an underscore")
        return np.array(fields, dtype=np.float64)
    except ValueError:
        for line, field in zip(lines, fields, strict=True):
            try:
                as_number(field)
            except ValueError:
                raise InvalidFile(
                    f"{where}, line {line}: {name} must be a number; it is '{field}'"
                ) from None
        raise

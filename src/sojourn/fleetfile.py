"""Fleets on disk: CSV with a line per class, every mistake told with its line."""

import csv
import io
import os

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import InvalidFile, UnknownName
from sojourn.files import read_text
from sojourn.fleetcolumns import LARGEST_ENTRY, OPTIONAL_COLUMNS, outside
from sojourn.types import FloatArray

COLUMNS = ("service_rate", "count", "name", *OPTIONAL_COLUMNS)


def read_columns(
    path: str | os.PathLike[str],
) -> tuple[FloatArray, FloatArray | None, list[str] | None, dict[str, FloatArray]]:
    """Service rates, counts, names and optional columns of a CSV file, where there is a column."""
    where = str(path)
    header, columns, lines = _read_rows(where)
    rates = _numbers(columns["service_rate"], lines, "service_rate", where)
    _check(rates, rates > 0, lines, "service_rate must be positive and finite", where)
    counts = None
    if "count" in header:
        counts = _numbers(columns["count"], lines, "count", where)
        whole = (counts > 0) & (counts % 1 == 0)
        _check(counts, whole, lines, "count must be whole and at least 1", where)
    optional = {}
    for name in (name for name in OPTIONAL_COLUMNS if name in header):
        values = optional[name] = _numbers(columns[name], lines, name, where)
        good = np.ones(values.size, dtype=np.bool_)
        good[outside(values)] = False
        _check(values, good, lines, f"{name} must lie between 0 and {LARGEST_ENTRY:g}", where)
    return rates, counts, columns.get("name"), optional


def _read_rows(where: str) -> tuple[list[str], dict[str, list[str]], list[int]]:
    """The first line, the fields below it by column, and the lines that they stand on."""
    try:
        rows = list(csv.reader(io.StringIO(read_text(where), newline="")))
    except csv.Error as error:
        raise InvalidFile(f"{where}: not a CSV file ({error})") from error
    if not rows or not any(field.strip() for field in rows[0]):
        raise InvalidFile(f"{where}: empty. The first line must name the columns: service_rate")
    header = [field.strip() for field in rows[0]]
    for column in header:
        if column not in COLUMNS:
            raise InvalidFile(f"{where}: {UnknownName('column', column, COLUMNS)}")
    if len(set(header)) != len(header):
        raise InvalidFile(f"{where}: a column stands twice in the first line")
    if "service_rate" not in header:
        raise InvalidFile(f"{where}: there is no column service_rate in the first line")
    columns: dict[str, list[str]] = {name: [] for name in header}
    lines: list[int] = []
    for line, row in enumerate(rows[1:], start=2):
        if not any(field.strip() for field in row):
            continue
        if len(row) != len(header):
            raise InvalidFile(
                f"{where}, line {line}: {len(row)} fields where the first line has {len(header)}"
            )
        lines.append(line)
        for name, field in zip(header, row, strict=True):
            columns[name].append(field.strip())
    if not lines:
        raise InvalidFile(f"{where}: no clients: there is no line below the column names")
    return header, columns, lines


def _check(
    values: FloatArray, good: NDArray[np.bool_], lines: list[int], rule: str, where: str
) -> None:
    wrong = np.flatnonzero(~(np.isfinite(values) & good))
    if wrong.size:
        i = int(wrong[0])
        raise InvalidFile(f"{where}, line {lines[i]}: {rule}; it is {values[i]:g}")


def _numbers(fields: list[str], lines: list[int], name: str, where: str) -> FloatArray:
    try:
        return np.array(fields, dtype=np.float64)
    except ValueError:
        for line, field in zip(lines, fields, strict=True):
            try:
                float(field)
            except ValueError:
                raise InvalidFile(
                    f"{where}, line {line}: {name} must be a number; it is '{field}'"
                ) from None
        raise

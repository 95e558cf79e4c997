"""Tables in CSV files; every error names the file and the line."""

import csv
import difflib
import io
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sojourn._support.files import DIRECTIONS, read_text, replacing
from sojourn.errors import InvalidFile, UnknownName
from sojourn.types import FloatArray

CONTROL = re.compile(f"[\x00-\x1f\x7f-\x9f{DIRECTIONS}]")
MOST_COLUMNS = 1000
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
Row = tuple[str, dict[str, str]]
"""The file and line of a row, in words, and its fields by column."""


@dataclass(frozen=True, eq=False)
class CsvTable:
    """The fields of a CSV file by column, and the line of each row."""

    path: str
    columns: dict[str, list[str]]
    lines: list[int]

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """The file and line of a row, for messages."""
        return f"{self.path}, line {self.lines[row]}"

    def rows(self) -> Iterator[Row]:
        """The rows one after the other."""
        for row, fields in enumerate(zip(*self.columns.values(), strict=True)):
            yield self.where(row), dict(zip(self.columns, fields, strict=True))

    def numbers(self, name: str) -> FloatArray:
        """A column of numbers; ``InvalidFile`` with the line of the first field that is none."""
        fields = self.columns[name]
        try:
            if not any("_" in field for field in fields):
                return np.array(fields, dtype=np.float64)
        except ValueError:
            pass
        return np.array([_number(field, name, self.where(row)) for row, field in enumerate(fields)])


def read_csv(
    path: str | os.PathLike[str],
    known: Sequence[str],
    *,
    required: Sequence[str] = (),
    may_add: Callable[[str, Sequence[str]], bool] | None = None,
    advice: str = "",
) -> CsvTable:
    """The table in a CSV file whose first line names columns among ``known``.

    Lines without any field are left out. A column that is not ``known`` is refused unless
    ``may_add(column, header)``. ``advice`` is a sentence about the ``required`` columns.
    """
    try:
        parsed = csv.reader(io.StringIO(read_text(path), newline=""))
        rows = [(number, row) for number, row in enumerate(parsed, 1) if any(map(str.strip, row))]
    except csv.Error as error:
        raise InvalidFile(f"{path}: not a CSV file ({error})") from error
    if not rows:
        first = ", ".join(required or known[:1])
        raise InvalidFile(f"{path}: empty. The first line must name the columns: {first}")
    header = [field.strip() for field in rows[0][1]]
    _check_header(header, str(path), known, required, may_add, advice)
    columns: dict[str, list[str]] = {name: [] for name in header}
    lines = []
    for number, row in rows[1:]:
        if len(row) != len(header):
            raise InvalidFile(
                f"{path}, line {number}: {len(row)} fields where the first line has {len(header)}"
            )
        check_text(row, f"{path}, line {number}")
        lines.append(number)
        for name, field in zip(header, row, strict=True):
            columns[name].append(field.strip())
    return CsvTable(str(path), columns, lines)


def write_csv(
    path: str | os.PathLike[str], columns: Iterable[str], rows: Iterable[Iterable[object]]
) -> None:
    """Write rows below the names of their columns."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def _check_header(
    header: list[str],
    path: str,
    known: Sequence[str],
    required: Sequence[str],
    may_add: Callable[[str, Sequence[str]], bool] | None,
    advice: str,
) -> None:
    for mark, name in SEPARATORS.items():
        if len(header) == 1 and mark in header[0]:
            raise InvalidFile(
                f"{path}: its fields are separated by {name}: write commas between them, and points in "
                "numbers"
            )
    check_text(header, f"{path}, line 1")
    if len(header) > MOST_COLUMNS:
        raise InvalidFile(f"{path}: {len(header)} columns, where at most {MOST_COLUMNS} are read")
    if not all(header):
        raise InvalidFile(f"{path}: column {header.index('') + 1} has no name in the first line")
    if len(set(header)) != len(header):
        raise InvalidFile(f"{path}: a column stands twice in the first line")
    for column in header:
        if column in known or (may_add is not None and may_add(column, header)):
            continue
        hint = " Give a column of your own a less similar name." if may_add is not None else ""
        raise InvalidFile(f"{path}: {UnknownName('column', column, known)}{hint}")
    for column in required:
        if column not in header:
            near = difflib.get_close_matches(column, header, n=1, cutoff=0.4)
            hint = f": is it '{near[0]}'?" if near else ""
            end = f"{'' if hint else '.'} {advice}" if advice else ""
            raise InvalidFile(f"{path}: there is no column {column} in the first line{hint}{end}")


def check_text(row: Sequence[str], where: str) -> None:
    """``InvalidFile`` if a field holds control characters: devices choose their own names.

    >>> check_text(["phone", "Gerät", "電話"], "line 2")
    """
    for field in row:
        if not field.isprintable() and CONTROL.search(field):
            raise InvalidFile(f"{where}: {ascii(field)[:60]} holds control characters")


def as_number(field: str) -> float:
    """The number that a field holds; ``ValueError`` also for underscores, which only Python reads.

    >>> as_number(" 1e3")
    1000.0
    """
    if "_" in field:
        raise ValueError(f"'{field}' is no number")
    return float(field)


def _number(field: str, name: str, where: str) -> float:
    try:
        return as_number(field)
    except ValueError:
        raise InvalidFile(f"{where}: {name} must be a number; it is '{field}'") from None


def number_in(field: str, name: str, where: str) -> float:
    """A finite number, or ``InvalidFile`` with the line."""
    if not field:
        raise InvalidFile(f"{where}: {name} is missing")
    value = _number(field, name, where)
    if not math.isfinite(value):
        raise InvalidFile(f"{where}: {name} must be finite; it is {field}")
    return value


def put_in_order(intervals: Mapping[str, list[tuple[float, float, str]]]) -> None:
    """Sort every device's (from, until, where) in place; ``InvalidFile`` where two overlap."""
    for device, spans in intervals.items():
        spans.sort()
        for (_, end, _), (begin, _, where) in pairwise(spans):
            if begin < end:
                raise InvalidFile(f"{where}: {device} comes before it has gone, at {end:g}")


def class_in(field: str, labels: Sequence[str], where: str) -> int:
    """A class of a fleet by name or by number from 1, as its place from 0.

    >>> class_in("2", ["slow", "fast"], "line 3")
    1
    """
    if field in labels:
        return list(labels).index(field)
    if field.isdecimal() and len(field) < 19 and 1 <= int(field) <= len(labels):
        return int(field) - 1
    raise InvalidFile(f"{where}: {UnknownName('class', field, labels)}")

"""Tables in CSV files, every mistake told with its line."""

import csv
import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from sojourn.errors import InvalidFile, UnknownName
from sojourn.files import read_text

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
Row = tuple[str, dict[str, str]]
"""Where a row stands, in words, and its fields by column."""


def read_rows(
    path: str | os.PathLike[str], known: Sequence[str], *, required: Sequence[str] = ()
) -> list[Row]:
    """The rows below the first line, which names columns among ``known``; empty lines are left out."""
    try:
        lines = csv.reader(io.StringIO(read_text(path), newline=""))
        rows = [(number, row) for number, row in enumerate(lines, 1) if any(row)]
    except csv.Error as error:
        raise InvalidFile(f"{path}: not a CSV file ({error})") from error
    header = [field.strip() for field in rows[0][1]] if rows else []
    for column in header:
        if column not in known:
            raise InvalidFile(f"{path}: {UnknownName('column', column, known)}")
    for column in required:
        if column not in header:
            raise InvalidFile(f"{path}: there is no column {column} in the first line")
    found = []
    for number, row in rows[1:]:
        where = f"{path}, line {number}"
        if len(row) != len(header):
            raise InvalidFile(f"{where}: {len(row)} fields where the first line has {len(header)}")
        check_text(row, where)
        found.append((where, {k: field.strip() for k, field in zip(header, row, strict=True)}))
    return found


def check_text(row: Sequence[str], where: str) -> None:
    """``InvalidFile`` if a field holds characters that control a terminal; devices name themselves.

    >>> check_text(["phone", "Gerät", "電話"], "line 2")
    """
    for field in row:
        if not field.isprintable() and CONTROL.search(field):
            raise InvalidFile(f"{where}: {ascii(field)[:60]} holds control characters")


def as_number(field: str) -> float:
    """The number that a field holds; underscores, which only Python reads, make it none.

    >>> as_number(" 1e3")
    1000.0
    """
    if "_" in field:
        raise ValueError(f"'{field}' is no number")
    return float(field)


def number_in(field: str, name: str, where: str) -> float:
    """A finite number, or ``InvalidFile`` with the line."""
    if not field:
        raise InvalidFile(f"{where}: the {name} is missing")
    try:
        value = as_number(field)
    except ValueError:
        raise InvalidFile(f"{where}: the {name} must be a number; it is '{field}'") from None
    if not math.isfinite(value):
        raise InvalidFile(f"{where}: the {name} must be finite; it is {field}")
    return value


def put_in_order(intervals: Mapping[str, list[tuple[float, float, str]]]) -> None:
    """Sort every device's (from, until, where) in place; ``InvalidFile`` where two overlap."""
    for device, own in intervals.items():
        own.sort()
        for (_, end, _), (begin, _, where) in pairwise(own):
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

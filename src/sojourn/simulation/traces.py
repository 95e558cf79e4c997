"""Observed service times from a CSV file, as a service-time law."""

import csv
import io
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.files import read_text
from sojourn.network import Fleet
from sojourn.simulation.laws import Laws, ServiceLaw, Trace, as_laws


def read_laws(
    given: Laws, fleet: Fleet, where: str = "law", folder: Path | None = None
) -> tuple[ServiceLaw, ...]:
    """`as_laws`, where ``{"name": "trace", "file": "durations.csv"}`` is a law, too.

    Files and modules are sought in ``folder``.

    >>> read_laws(["deterministic", "exponential"], Fleet([1.0, 2.0]))
    (Law('deterministic'), Law('exponential'))
    """
    if not isinstance(given, list | tuple):
        return _observed(given, fleet, folder) or as_laws(given, where, folder)
    laws: list[Any] = []
    for k, one in enumerate(given):
        traces = _observed(one, fleet, folder)
        laws.append(traces[k % len(traces)] if traces else one)
    return as_laws(laws, where, folder)


def _observed(given: Any, fleet: Fleet, folder: Path | None) -> tuple[Trace, ...]:
    """The durations in the file that a table names, if it names one."""
    if not isinstance(given, Mapping) or given.get("name") != "trace" or "file" not in given:
        return ()
    if set(given) != {"name", "file"}:
        raise InvalidInput(f"a trace is {{name, file}} and nothing else; it is {dict(given)}")
    return read_trace((folder or Path()) / str(given["file"]), fleet)


SHORTEST, LONGEST = 1e-100, 1e100
"""Durations between which sums and ratios do not overflow."""


def read_trace(path: str | os.PathLike[str], fleet: Fleet) -> tuple[Trace, ...]:
    """Durations observed, in a column ``duration``, as laws to draw from with replacement.

    A column ``class`` says to which class of the fleet each belongs, by name or number (from 1);
    without it all classes share the durations, and one law. Each class is rescaled so that its mean stays
    1/mu: the trace gives the shape, the fleet the speed. A missing, negative or unreadable duration
    raises ``InvalidFile`` with its line.
    """
    try:
        lines = csv.reader(io.StringIO(read_text(path), newline=""))
        rows = [(number, row) for number, row in enumerate(lines, 1) if any(row)]
    except csv.Error as error:
        raise InvalidFile(f"{path}: not a CSV file ({error})") from error
    header = [field.strip() for field in rows[0][1]] if rows else []
    for column in header:
        if column not in ("class", "duration"):
            raise InvalidFile(f"{path}: {UnknownName('column', column, ['class', 'duration'])}")
    if "duration" not in header:
        raise InvalidFile(f"{path}: there is no column duration in the first line")
    by_class = "class" in header
    labels = [fleet.label(k) for k in range(fleet.classes)]
    observed: list[list[float]] = [[] for _ in labels] if by_class else [[]]
    for number, row in rows[1:]:
        where = f"{path}, line {number}"
        if len(row) != len(header):
            raise InvalidFile(f"{where}: {len(row)} fields where the first line has {len(header)}")
        fields = {name: field.strip() for name, field in zip(header, row, strict=True)}
        k = _class_index(fields["class"], labels, where) if by_class else 0
        observed[k].append(_duration(fields["duration"], where))
    for k, durations in enumerate(observed):
        if not durations:
            whom = f" for {labels[k]}" if by_class else ""
            raise InvalidFile(f"{path}: there are no durations{whom}")
    return tuple(Trace(durations) for durations in observed)


def _class_index(field: str, labels: list[str], where: str) -> int:
    if field in labels:
        return labels.index(field)
    if field.isdecimal() and len(field) < 19 and 1 <= int(field) <= len(labels):
        return int(field) - 1
    raise InvalidFile(f"{where}: {UnknownName('class', field, labels)}")


def _duration(field: str, where: str) -> float:
    if not field:
        raise InvalidFile(f"{where}: the duration is missing")
    try:
        value = float(field)
    except ValueError:
        raise InvalidFile(f"{where}: the duration must be a number; it is '{field}'") from None
    if not (math.isfinite(value) and value > 0):
        raise InvalidFile(f"{where}: the duration must be positive and finite; it is {value:g}")
    if not SHORTEST <= value <= LONGEST:
        raise InvalidFile(
            f"{where}: the duration must lie between {SHORTEST:g} and {LONGEST:g}; it is {value:g}"
        )
    return value

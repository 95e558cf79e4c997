"""When clients are there, and how their speeds change: values, and the CSV files they are read from."""

import math
import os
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sojourn._support.csv_table import class_in, number_in, put_in_order, read_csv, write_csv
from sojourn.errors import InvalidFile, InvalidInput, reading
from sojourn.fleet.fleet import Fleet
from sojourn.types import FloatArray

_Pairs = tuple[tuple[tuple[float, float], ...], ...]


def _pairs(rows: Any, otherwise: str) -> _Pairs:
    """Rows of two numbers each; ``otherwise`` is what to say if they are none."""
    try:
        return tuple(tuple((float(a), float(b)) for a, b in row) for row in rows)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(otherwise) from None


@dataclass(frozen=True, init=False)
class Hours:
    """When devices are there: intervals from 0 to ``period``, over and over again.

    ``devices[j]`` lists the intervals (from, until) of device j, in order and apart from each other.
    Client i has the hours of device i modulo their number.

    >>> Hours([[(0, 8), (20, 24)], [(9, 17)]], period=24).availability.round(4).tolist()
    [0.5, 0.3333]
    """

    devices: _Pairs
    period: float

    def __init__(self, devices: object, period: float) -> None:
        rows = _pairs(devices, "hours must be a list per device of intervals (from, until)")
        if not rows:
            raise InvalidInput("hours must have at least one device")
        if not (math.isfinite(period) and period > 0.0):
            raise InvalidInput(f"the period of hours must be positive and finite; it is {period!r}")
        for number, intervals in enumerate(rows, 1):
            flat = [time for interval in intervals for time in interval]
            if not flat:
                raise InvalidInput(f"device {number} of the hours is never there: leave it out")
            ordered = all(a < b for a, b in intervals) and flat == sorted(flat)
            if not ordered or flat[0] < 0.0 or flat[-1] > period:
                raise InvalidInput(
                    f"the intervals of device {number} must lie between 0 and the period, {period:g}, "
                    "in order, each ending after it begins and before the next begins"
                )
        object.__setattr__(self, "devices", rows)
        object.__setattr__(self, "period", float(period))

    @property
    def availability(self) -> FloatArray:
        """The share of the time that every device is there."""
        return np.array([sum(b - a for a, b in rows) / self.period for rows in self.devices])

    def __repr__(self) -> str:
        return f"Hours({len(self.devices)} devices, period {self.period:g})"


@dataclass(frozen=True, init=False)
class Drift:
    """How speeds change: from each of ``times`` on, they are multiplied by the factor beside it.

    ``steps[k]`` lists (time, factor) for class k of the fleet; one list serves all classes. Before the
    first time the factor is 1; the last one stays.

    >>> Drift([[(100.0, 0.5)]])
    Drift(1 change of 1 class)
    """

    steps: _Pairs

    def __init__(self, steps: object) -> None:
        rows = _pairs(steps, "drift must be a list per class of (time, factor)")
        if not rows:
            raise InvalidInput("drift must have a list of (time, factor) for at least one class")
        for pairs in rows:
            times = [t for t, _ in pairs]
            if any(b <= a for a, b in pairwise(times)) or any(
                not (math.isfinite(t) and t >= 0.0) for t in times
            ):
                raise InvalidInput("the times of a drift must rise from 0 or later, and be finite")
            for _, factor in pairs:
                if not (math.isfinite(factor) and factor > 0.0):
                    raise InvalidInput(
                        f"the factors of a drift must be positive and finite; one is {factor!r}"
                    )
        object.__setattr__(self, "steps", rows)

    def __repr__(self) -> str:
        changes, classes = sum(map(len, self.steps)), len(self.steps)
        plural = ("" if changes == 1 else "s"), ("" if classes == 1 else "es")
        return f"Drift({changes} change{plural[0]} of {classes} class{plural[1]})"


def as_hours(given: Hours | ArrayLike | dict[str, object] | None) -> Hours | None:
    """Hours as they are, or from the table that `hours_table` makes."""
    if given is None or isinstance(given, Hours):
        return given
    if isinstance(given, dict) and set(given) == {"devices", "period"}:
        return Hours(given["devices"], given["period"])  # type: ignore[arg-type]
    raise InvalidInput("hours must be Hours(devices, period), or read by read_hours")


def as_drift(given: Drift | ArrayLike | None) -> Drift | None:
    """Drift as it is, or from its steps."""
    return given if given is None or isinstance(given, Drift) else Drift(given)


def read_hours(path: str | os.PathLike[str], *, period: float | None = None) -> Hours:
    """When devices are there: columns ``device``, ``from`` and ``until``, one line per interval.

    They repeat after ``period``, by default the file's column ``period``, the same on every line,
    else the latest time in the file. Client i keeps the hours of the device that stands i-th in the
    file, and so on over and over.
    """
    needed = ("device", "from", "until")
    rows = list(read_csv(path, (*needed, "period"), required=needed).rows())
    devices: dict[str, list[tuple[float, float, str]]] = {}
    for where, fields in rows:
        begin, end = (number_in(fields[name], name, where) for name in ("from", "until"))
        if not 0.0 <= begin < end:
            raise InvalidFile(
                f"{where}: from must be 0 or more and before until; they are {begin:g} and {end:g}"
            )
        devices.setdefault(fields["device"], []).append((begin, end, where))
        if period is None and "period" in fields:
            period = number_in(fields["period"], "period", where)
        if "period" in fields and fields["period"] != rows[0][1]["period"]:
            raise InvalidFile(
                f"{where}: the period must be the same on every line; it is {fields['period']}, and "
                f"{rows[0][1]['period']} in the first"
            )
    if not devices:
        raise InvalidFile(f"{path}: no hours: there is no line below the column names")
    put_in_order(devices)
    latest = max(intervals[-1][1] for intervals in devices.values())
    intervals = [[(a, b) for a, b, _ in own] for own in devices.values()]
    with reading(path):
        return Hours(intervals, latest if period is None else period)


def write_hours(hours: Hours, path: str | os.PathLike[str]) -> None:
    """Write hours so that `read_hours` reads them back."""
    rows = (
        (number, begin, end, hours.period)
        for number, intervals in enumerate(hours.devices, 1)
        for begin, end in intervals
    )
    write_csv(path, ("device", "from", "until", "period"), rows)


def read_drift(path: str | os.PathLike[str], fleet: Fleet) -> Drift:
    """How speeds change: columns ``time``, ``speed`` (a factor) and, optionally, ``class``.

    From each time on the speeds of the class (by name, or number from 1; without the column, of all)
    are the fleet's times the factor: a few lines for a piecewise constant drift, or a trace.
    """
    rows = list(read_csv(path, ("time", "speed", "class"), required=("time", "speed")).rows())
    if not rows:
        raise InvalidFile(f"{path}: no drift: there is no line below the column names")
    labels = [fleet.label(k) for k in range(fleet.classes)]
    by_class = "class" in rows[0][1]
    steps: list[list[tuple[float, float]]] = [[] for _ in labels] if by_class else [[]]
    for where, fields in rows:
        k = class_in(fields["class"], labels, where) if by_class else 0
        time, factor = (number_in(fields[name], name, where) for name in ("time", "speed"))
        if time < 0.0 or (steps[k] and time <= steps[k][-1][0]):
            raise InvalidFile(f"{where}: times must rise from 0 or later; this one is {time:g}")
        if factor <= 0.0:
            raise InvalidFile(f"{where}: the speed must be above 0; it is {factor:g}")
        steps[k].append((time, factor))
    return Drift(steps)

"""Hours and drifts on disk: CSV, every mistake told with its line."""

import os
from itertools import pairwise

from sojourn.csvrows import class_in, number_in, read_rows
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.network import Fleet
from sojourn.simulation.calendars import Drift, Hours


def read_hours(path: str | os.PathLike[str], *, period: float | None = None) -> Hours:
    """When devices are there: columns ``device``, ``from`` and ``until``, one line per interval.

    They repeat after ``period``, by default the latest time in the file. Client i keeps the hours of
    the device that stands i-th in the file, and so on over and over.
    """
    rows = read_rows(path, ("device", "from", "until"), required=("device", "from", "until"))
    devices: dict[str, list[tuple[float, float, str]]] = {}
    for where, fields in rows:
        begin, end = (number_in(fields[name], name, where) for name in ("from", "until"))
        if not 0.0 <= begin < end:
            raise InvalidFile(
                f"{where}: from must be 0 or more and before until; they are {begin:g} and {end:g}"
            )
        devices.setdefault(fields["device"], []).append((begin, end, where))
    if not devices:
        raise InvalidFile(f"{path}: no hours: there is no line below the column names")
    for device, intervals in devices.items():
        intervals.sort()
        for (_, end, _), (begin, _, where) in pairwise(intervals):
            if begin < end:
                raise InvalidFile(f"{where}: {device} comes before it has gone, at {end:g}")
    latest = max(intervals[-1][1] for intervals in devices.values())
    try:
        return Hours([[(a, b) for a, b, _ in x] for x in devices.values()], period or latest)
    except InvalidInput as error:
        raise InvalidFile(f"{path}: {error}") from error


def read_drift(path: str | os.PathLike[str], fleet: Fleet) -> Drift:
    """How speeds change: columns ``time``, ``speed`` (a factor) and, optionally, ``class``.

    From each time on the speeds of the class (by name, or number from 1; without the column, of all)
    are the fleet's times the factor: a few lines for a piecewise constant drift, or a trace.
    """
    rows = read_rows(path, ("time", "speed", "class"), required=("time", "speed"))
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

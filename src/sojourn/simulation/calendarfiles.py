"""Hours and drifts on disk: CSV, every mistake told with its line."""

import csv
import os

from sojourn.csvrows import class_in, number_in, put_in_order, read_rows
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.files import replacing
from sojourn.network import Fleet
from sojourn.simulation.calendars import Drift, Hours


def read_hours(path: str | os.PathLike[str], *, period: float | None = None) -> Hours:
    """When devices are there: columns ``device``, ``from`` and ``until``, one line per interval.

    They repeat after ``period``, by default the file's column ``period``, the same on every line,
    else the latest time in the file. Client i keeps the hours of the device that stands i-th in the
    file, and so on over and over.
    """
    needed = ("device", "from", "until")
    rows = read_rows(path, (*needed, "period"), required=needed)
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
    try:
        return Hours([[(a, b) for a, b, _ in x] for x in devices.values()], period or latest)
    except InvalidInput as error:
        raise InvalidFile(f"{path}: {error}") from error


def write_hours(hours: Hours, path: str | os.PathLike[str]) -> None:
    """Write hours so that `read_hours` reads them back."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["device", "from", "until", "period"])
        for number, intervals in enumerate(hours.devices, 1):
            writer.writerows([number, begin, end, hours.period] for begin, end in intervals)


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

"""When devices were there, as a log says, and how long they are there and away on average."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from itertools import chain, pairwise

import numpy as np

from sojourn._support.csv_table import put_in_order, read_csv
from sojourn.errors import InvalidFile
from sojourn.fleet.from_logs.columns import MISSING
from sojourn.fleet.from_logs.times import TimeReader, seconds_per_unit


@dataclass(frozen=True)
class Presence:
    """The intervals (from, until) in which one device was there, in order.

    ``stays`` says that the last one had not ended when the log did; it may end at infinity.
    """

    intervals: tuple[tuple[float, float], ...]
    stays: bool = False

    def until(self, now: float) -> "Presence":
        """The same, where an interval that had not ended ends ``now``.

        >>> Presence(((0.0, 8.0), (20.0, math.inf)), stays=True).until(30.0).intervals
        ((0.0, 8.0), (20.0, 30.0))
        """
        ended = tuple((a, b if math.isfinite(b) else max(a, now)) for a, b in self.intervals)
        return Presence(ended, self.stays)

    def within(self, begin: float, end: float) -> float:
        """How long it was there between two times.

        >>> Presence(((0.0, 8.0), (20.0, 32.0))).within(7.0, 22.0)
        3.0
        """
        return sum(max(0.0, min(b, end) - max(a, begin)) for a, b in self.intervals)


def read_presence(
    path: str | os.PathLike[str],
    *,
    now: float | None = None,
    time_format: str | None = None,
    zone: tzinfo = UTC,
) -> dict[str, Presence]:
    """Presences by device: columns ``device``, ``from`` and ``until``, a line per interval.

    Times are as in `read_log`. ``until`` is empty where the device was still there at ``now``, by
    default at the end of the log that is read beside it.
    """
    columns = ("device", "from", "until")
    table = read_csv(path, columns, required=columns)
    reader = TimeReader(time_format, zone)
    reader.learn(chain(table.columns["from"], table.columns["until"]))
    fields = {
        name: [_time(reader, given, name, table.where(row)) for row, given in enumerate(entries)]
        for name, entries in table.columns.items()
        if name != "device"
    }
    numbers = [
        value
        for name, values in fields.items()
        for value, given in zip(values, table.columns[name], strict=True)
        if not reader.is_date(given)
    ]
    unit = seconds_per_unit(np.array(numbers))
    found: dict[str, list[tuple[float, float, str]]] = {}
    for row, device in enumerate(table.columns["device"]):
        where = table.where(row)
        begin, end = (
            fields[name][row] * (1.0 if reader.is_date(table.columns[name][row]) else unit)
            for name in ("from", "until")
        )
        if not math.isfinite(begin):
            raise InvalidFile(f"{where}: from is missing")
        if not begin < end:
            raise InvalidFile(f"{where}: from must be before until; they are {begin:g} and {end:g}")
        found.setdefault(device, []).append((begin, end, where))
    if not found:
        raise InvalidFile(f"{path}: no presences: there is no line below the column names")
    put_in_order(found)
    presences = {
        device: Presence(
            tuple((begin, end) for begin, end, _ in intervals),
            stays=math.isinf(intervals[-1][1]),
        )
        for device, intervals in found.items()
    }
    if now is None:
        return presences
    latest = latest_time(presences)
    if now < latest:
        raise InvalidFile(f"{path}: now, {now:g}, is before the latest time there, {latest:g}")
    return {device: presence.until(now) for device, presence in presences.items()}


def latest_time(presences: Mapping[str, Presence]) -> float:
    """The latest time at which a device came or went."""
    times = [t for one in presences.values() for interval in one.intervals for t in interval]
    return max(time for time in times if math.isfinite(time))


def _time(reader: TimeReader, given: str, name: str, where: str) -> float:
    if given.lower() in MISSING:
        return math.inf
    try:
        return reader.parse(given)
    except (ValueError, OverflowError):
        raise InvalidFile(f"{where}: {name} must be a time; it is '{given}'") from None


def mean_times(presences: Iterable[Presence]) -> tuple[float, float] | None:
    """How long devices are there and away on average; ``None`` if none was seen to return.

    By likelihood for exponential times: the time there over how often they went, and the time
    away over how often they returned.

    >>> mean_times([Presence(((0.0, 8.0), (20.0, 32.0))), Presence(((0.0, 10.0), (14.0, 24.0)), True)])
    (13.333333333333334, 8.0)
    """
    there, away, went, returned = 0.0, 0.0, 0, 0
    for presence in presences:
        there += sum(b - a for a, b in presence.intervals)
        went += len(presence.intervals) - presence.stays
        away += sum(b - a for (_, a), (b, _) in pairwise(presence.intervals))
        returned += len(presence.intervals) - 1
    return (there / went, away / returned) if went and returned else None

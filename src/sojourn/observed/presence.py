"""When devices were there, as a log tells, and how long they come and go for."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from sojourn.csvrows import number_in, put_in_order, read_rows
from sojourn.errors import InvalidFile


@dataclass(frozen=True)
class Presence:
    """The intervals (from, until) in which one device was there, in order.

    ``stays`` says that the last one had not ended when the log did.
    """

    intervals: tuple[tuple[float, float], ...]
    stays: bool = False

    def within(self, begin: float, end: float) -> float:
        """How long it was there between two times.

        >>> Presence(((0.0, 8.0), (20.0, 32.0))).within(7.0, 22.0)
        3.0
        """
        return sum(max(0.0, min(b, end) - max(a, begin)) for a, b in self.intervals)


def read_presence(path: str | os.PathLike[str], *, now: float | None = None) -> dict[str, Presence]:
    """Presences by device: columns ``device``, ``from`` and ``until``, a line per interval.

    ``until`` is empty where the device was still there at ``now``, by default the latest time in the
    file.
    """
    columns = ("device", "from", "until")
    found: dict[str, list[tuple[float, float, str]]] = {}
    for where, fields in read_rows(path, columns, required=columns):
        begin = number_in(fields["from"], "from", where)
        end = number_in(fields["until"], "until", where) if fields["until"] else math.inf
        if not begin < end:
            raise InvalidFile(f"{where}: from must be before until; they are {begin:g} and {end:g}")
        found.setdefault(fields["device"], []).append((begin, end, where))
    if not found:
        raise InvalidFile(f"{path}: no presences: there is no line below the column names")
    put_in_order(found)
    times = [time for x in found.values() for begin, end, _ in x for time in (begin, end)]
    latest = max(time for time in times if math.isfinite(time))
    if now is not None and now < latest:
        raise InvalidFile(f"{path}: now, {now:g}, is before the latest time there, {latest:g}")
    present = latest if now is None else now
    return {
        device: Presence(
            tuple((begin, min(end, present)) for begin, end, _ in intervals),
            stays=math.isinf(intervals[-1][1]),
        )
        for device, intervals in found.items()
    }


def mean_times(presences: Iterable[Presence]) -> tuple[float, float] | None:
    """How long devices are there and away on average; ``None`` if none of them was seen to go and return.

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

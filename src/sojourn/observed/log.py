"""Logs of tasks, every mistake told with its line."""

import math
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.checks import check_scale
from sojourn.config import parse_json
from sojourn.csvrows import Row, number_in, read_rows
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.files import read_text
from sojourn.types import FloatArray

COLUMNS = ("device", "start", "end", "duration", "running")
YES, NO = ("1", "true", "yes"), ("", "0", "false", "no")


@dataclass(frozen=True, eq=False)
class Durations:
    """How long tasks of one device took, and how long those still running have taken so far."""

    finished: FloatArray
    running: FloatArray

    @property
    def total(self) -> float:
        """All time spent on tasks, :math:`T`."""
        return float(self.finished.sum() + self.running.sum())

    def joined(self, other: "Durations") -> "Durations":
        """Both, as if of one device."""
        return Durations(
            np.concatenate([self.finished, other.finished]),
            np.concatenate([self.running, other.running]),
        )


def read_log(path: str | os.PathLike[str], *, now: float | None = None) -> dict[str, Durations]:
    """Durations by device from a CSV with ``device`` and either ``start`` and ``end`` or ``duration``.

    A task without an ``end`` is still running at ``now``, by default the latest time in the log; with
    durations, a column ``running`` (yes or no) marks those that had not ended. A device works on one
    task at a time: intervals that overlap are refused, as are missing, negative and unreadable
    times, each with its line.
    """
    lines = read_rows(path, COLUMNS, required=["device"])
    columns = set(lines[0][1]) if lines else set()
    by_interval = {"start", "end"} <= columns
    if lines and by_interval == ("duration" in columns):
        raise InvalidFile(
            f"{path}: the first line must name a column device and either start and end or duration"
        )
    for where, fields in lines:
        if not fields["device"]:
            raise InvalidFile(f"{where}: the device is missing")
    if not lines:
        raise InvalidFile(f"{path}: no tasks: there is no line below the column names")
    return _by_interval(lines, now) if by_interval else _by_duration(lines)


def read_run(folder: str | os.PathLike[str]) -> dict[str, Durations]:
    """Durations by client from the ``tasks.jsonl`` of a deployment's folder.

    Tasks that were under way when the run ended are not recorded there.
    """
    path = Path(folder) / "tasks.jsonl"
    seen: dict[str, list[float]] = {}
    for number, line in enumerate(read_text(path, encoding="utf-8").splitlines(), 1):
        where = f"{path}, line {number}"
        record = parse_json(line, where)
        if not isinstance(record, dict) or not {"client", "service_seconds"} <= record.keys():
            raise InvalidFile(f"{where}: not the record of a task")
        client, seconds = str(record["client"])[:200], record["service_seconds"]
        if seconds is not None and seconds != 0:  # zero: too short for the clock to see
            seen.setdefault(client, []).append(_duration(seconds, where))
    if not seen:
        raise InvalidFile(f"{path}: no task there tells how long it took")
    return {client: Durations(np.array(times), np.zeros(0)) for client, times in seen.items()}


def _by_duration(lines: list[Row]) -> dict[str, Durations]:
    found: dict[str, tuple[list[float], list[float]]] = {}
    for where, fields in lines:
        running = fields.get("running", "").lower()
        if running not in (*YES, *NO):
            raise InvalidFile(f"{where}: running must be yes or no; it is '{running}'")
        duration = _duration(number_in(fields["duration"], "duration", where), where)
        found.setdefault(fields["device"], ([], []))[running in YES].append(duration)
    return {device: Durations(np.array(a), np.array(b)) for device, (a, b) in found.items()}


def _by_interval(lines: list[Row], now: float | None) -> dict[str, Durations]:
    tasks: dict[str, list[tuple[float, float | None, str]]] = {}
    latest = -math.inf
    for where, fields in lines:
        start = number_in(fields["start"], "start", where)
        end = number_in(fields["end"], "end", where) if fields["end"] else None
        if end is not None:
            _duration(end - start, where)
        latest = max(latest, start if end is None else end)
        tasks.setdefault(fields["device"], []).append((start, end, where))
    present = latest if now is None else now
    if not present >= latest:
        raise InvalidFile(f"now, {present:g}, is before the latest time in the log, {latest:g}")
    found = {}
    for device, intervals in tasks.items():
        intervals.sort(key=lambda task: task[0])
        for (_, end, first), (start, _, second) in pairwise(intervals):
            if end is None or start < end:
                raise InvalidFile(
                    f"{second}: {device} begins a task before the one of "
                    f"{first.rpartition(', ')[2]} has ended; a device works on one at a time"
                )
        finished = [end - start for start, end, _ in intervals if end is not None]
        running = [
            _duration(present - start, where)
            for start, end, where in intervals
            if end is None and present > start
        ]
        found[device] = Durations(np.array(finished), np.array(running))
    return found


def _duration(value: Any, where: str) -> float:
    if isinstance(value, int | float) and value <= 0:
        raise InvalidFile(f"{where}: a task must take longer than 0; this one takes {value:g}")
    try:
        return check_scale("the duration of a task", value)
    except InvalidInput as error:
        raise InvalidFile(f"{where}: {error}") from error

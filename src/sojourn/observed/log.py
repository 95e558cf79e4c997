"""Logs of tasks, every mistake told with its line."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.checks import check_scale
from sojourn.config import check_shape, parse_json
from sojourn.csvrows import Row, number_in, read_rows
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.files import read_text
from sojourn.observed.presence import Presence
from sojourn.runfolder import RunFolder
from sojourn.types import FloatArray

PARTS = ("wait", "downlink", "uplink")
"""What of a task's time is not work."""
COLUMNS = ("device", "start", "end", "duration", "running", *PARTS)
TASK = {"client": (int, str), "service_seconds": (float, None), "time?": float}
STATUS = {"clients?": [{"running?": (float, None)}]}
"""What is needed of a deployment's records and of how it stands."""
ROUNDING = 1e-12
"""Part of a time by which two may differ and be the same."""
YES, NO = ("1", "true", "yes"), ("", "0", "false", "no")


@dataclass(frozen=True, eq=False)
class Durations:
    """How long tasks of one device took, and how long those still running have taken so far.

    ``begun`` are the times at which the finished ones were begun, ``downlink`` and ``uplink`` what
    tasks spent on the way, as far as a log tells.
    """

    finished: FloatArray
    running: FloatArray
    begun: FloatArray = field(default_factory=lambda: np.zeros(0))
    downlink: FloatArray = field(default_factory=lambda: np.zeros(0))
    uplink: FloatArray = field(default_factory=lambda: np.zeros(0))

    @property
    def total(self) -> float:
        """All time spent on tasks, :math:`T`."""
        return float(self.finished.sum() + self.running.sum())

    @classmethod
    def joined(cls, those: "Sequence[Durations]") -> "Durations":
        """All of them, as if of one device."""
        names = ("finished", "running", "begun", "downlink", "uplink")
        return cls(*(np.concatenate([getattr(one, name) for one in those]) for name in names))


def read_log(
    path: str | os.PathLike[str],
    *,
    now: float | None = None,
    presence: Mapping[str, Presence] | None = None,
) -> dict[str, Durations]:
    """Durations by device from a CSV with ``device`` and either ``start`` and ``end`` or ``duration``.

    A task without an ``end`` is still running at ``now``, by default the latest time in the log; with
    durations, a column ``running`` (yes or no) marks those that had not ended. Columns ``wait`` (in the
    device's queue), ``downlink`` and ``uplink`` tell what of a task's time was not work; ``presence``
    when devices were there: while one is away it does not work, either. A device works on one
    task at a time: intervals of work that overlap are refused, as are missing, negative and unreadable
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
    if by_interval:
        return _by_interval(lines, now, presence or {})
    if presence:
        raise InvalidFile(f"{path}: presence goes with the columns start and end, not duration")
    return _by_duration(lines)


def read_run(folder: str | os.PathLike[str]) -> dict[str, Durations]:
    """Durations by client from a deployment's folder: its ``tasks.jsonl``.

    What clients are working on counts for as long as it has run, as ``status.json`` tells.
    """
    run = RunFolder(Path(folder))
    path = run.tasks_path
    seen: dict[str, tuple[list[float], list[float]]] = {}
    for number, line in enumerate(read_text(path, encoding="utf-8").splitlines(), 1):
        where = f"{path}, line {number}"
        record = parse_json(line, where)
        check_shape(record, TASK, where)
        seconds = record["service_seconds"]
        if seconds:  # zero: too short for the clock to see
            took, begun = seen.setdefault(str(record["client"])[:200], ([], []))
            took.append(_duration(seconds, where))
            if "time" in record:
                begun.append(record["time"] - seconds)
    if not seen:
        raise InvalidFile(f"{path}: no task there tells how long it took")
    running = _running(run.status_path)
    return {
        client: Durations(np.array(took), np.array(running.get(client, [])), np.array(begun))
        for client, (took, begun) in seen.items()
    }


def _running(path: Path) -> dict[str, list[float]]:
    """How long each client has been working on what it has, by its number."""
    if not path.is_file():
        return {}
    status = parse_json(read_text(path, encoding="utf-8"), str(path))
    check_shape(status, STATUS, str(path))
    clients = enumerate(status.get("clients", []))
    return {str(i): [x["running"]] for i, x in clients if x.get("running")}


def _by_duration(lines: list[Row]) -> dict[str, Durations]:
    found: dict[str, list[_Task]] = {}
    for where, fields in lines:
        running = fields.get("running", "").lower()
        if running not in (*YES, *NO):
            raise InvalidFile(f"{where}: running must be yes or no; it is '{running}'")
        duration = number_in(fields["duration"], "duration", where)
        task = _Task.of(where, fields, 0.0, duration, ended=running not in YES)
        found.setdefault(fields["device"], []).append(task)
    return {device: _durations(tasks, timed=False) for device, tasks in found.items()}


def _by_interval(
    lines: list[Row], now: float | None, presence: Mapping[str, Presence]
) -> dict[str, Durations]:
    times = []
    for where, fields in lines:
        start = number_in(fields["start"], "start", where)
        times.append((start, number_in(fields["end"], "end", where) if fields["end"] else None))
    latest = max(start if end is None else end for start, end in times)
    present = latest if now is None else now
    if not present >= latest:
        raise InvalidFile(f"now, {present:g}, is before the latest time in the log, {latest:g}")
    found: dict[str, list[_Task]] = {}
    for (where, fields), (start, end) in zip(lines, times, strict=True):
        if end is None and present == start:
            continue
        until = present if end is None else end
        task = _Task.of(where, fields, start, until, ended=end is not None)
        found.setdefault(fields["device"], []).append(task)
    for device, tasks in found.items():
        tasks.sort(key=lambda task: task.begun)
        for first, second in pairwise(tasks):
            rounding = ROUNDING * max(abs(first.until), abs(second.begun))
            if not first.ended or second.begun < first.until - rounding:
                raise InvalidFile(
                    f"{second.where}: {device} begins a task before the one of "
                    f"{first.where.rpartition(', ')[2]} has ended; a device works on one at a time"
                )
    return {
        device: _durations(tasks, timed=True, there=presence.get(device))
        for device, tasks in found.items()
    }


@dataclass(frozen=True, slots=True)
class _Task:
    """When the work of a task was begun, until when it went on, and whether it had ended by then."""

    where: str
    begun: float
    until: float
    ended: bool
    downlink: float | None
    uplink: float | None

    @classmethod
    def of(
        cls, where: str, fields: Mapping[str, str], start: float, until: float, *, ended: bool
    ) -> "_Task":
        _duration(until - start, where)
        parts = {name: _part(fields.get(name, ""), name, where) for name in PARTS}
        begun = start + (parts["downlink"] or 0.0) + (parts["wait"] or 0.0)
        last = until - (parts["uplink"] or 0.0) if ended else until
        if ended and not last > begun:
            raise InvalidFile(
                f"{where}: the task takes {until - start:g}, and wait, downlink and uplink leave no "
                "time for work"
            )
        return cls(where, begun, max(last, begun), ended, parts["downlink"], parts["uplink"])

    def work(self, there: Presence | None) -> float:
        """The time that the device worked on it."""
        time = self.until - self.begun if there is None else there.within(self.begun, self.until)
        if self.ended and not time > 0.0:
            raise InvalidFile(f"{self.where}: the device was away all the time of this task")
        return time


def _durations(tasks: list[_Task], *, timed: bool, there: Presence | None = None) -> Durations:
    worked = [(task, task.work(there)) for task in tasks]
    return Durations(
        finished=np.array([time for task, time in worked if task.ended]),
        running=np.array([time for task, time in worked if not task.ended and time > 0.0]),
        begun=np.array([task.begun for task in tasks if task.ended and timed]),
        downlink=np.array([task.downlink for task in tasks if task.downlink is not None]),
        uplink=np.array([task.uplink for task in tasks if task.uplink is not None and task.ended]),
    )


def _part(field_: str, name: str, where: str) -> float | None:
    """A time that may be missing."""
    if not field_:
        return None
    value = number_in(field_, name, where)
    if value < 0.0:
        raise InvalidFile(f"{where}: the {name} must be 0 or more; it is {value:g}")
    return value


def _duration(value: Any, where: str) -> float:
    if isinstance(value, int | float) and value <= 0:
        raise InvalidFile(f"{where}: a task must take longer than 0; this one takes {value:g}")
    try:
        return check_scale("the duration of a task", value)
    except InvalidInput as error:
        raise InvalidFile(f"{where}: {error}") from error

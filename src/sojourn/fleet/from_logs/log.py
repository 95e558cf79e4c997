"""Logs of tasks: what each device took, and an account of every row that cannot be used."""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn._support.checks import LARGEST, SMALLEST, check_scale
from sojourn._support.configuration import check_shape, parse_json
from sojourn._support.csv_table import CONTROL
from sojourn._support.files import read_text
from sojourn._support.progress import Progress, Silent
from sojourn.errors import InvalidFile, reading
from sojourn.fleet.from_logs.columns import BadRow
from sojourn.fleet.from_logs.presence import Presence
from sojourn.fleet.from_logs.rows import UNDECODED, Only, Rows, read_rows, shown_text
from sojourn.fleet.from_logs.times import (
    UNITS,
    Ambiguous,
    TimeReader,
    clock_format,
    parse_span,
    seconds_per_unit,
)
from sojourn.types import FloatArray

Flags = NDArray[np.bool_]
PARTS = ("wait", "downlink", "uplink")
"""What of a task's time is not work."""
SHORTEST = 1e-4
"""Seconds of work on a task whose record says 0, being rounded."""
LEAST_AWAY = 0.1
"""Of the time of its tasks, before a client of a deployment is said to have a link."""
TASK = {
    "client": (int, str),
    "service_seconds": (float, None),
    "computing_seconds?": (float, None),
    "time?": float,
}
STATUS = {"clients?": [{"name?": str, "running?": (float, None)}]}
"""What is needed of a deployment's records and of its status."""
ROUNDING = 1e-12
"""Relative difference within which two times are the same."""
YES, NO = ("1", "true", "yes"), ("", "0", "false", "no")
MOST_BAD = 0.05
"""Share of bad rows up to which a log is used without them."""
FAR_OUTSIDE = 60.0
"""Times the span of the log's middle half, beyond which a time comes from a wrong clock."""
FEWEST_FOR_CLOCK = 20
IMPOSSIBLE = 20.0
LEAST_SPREAD = 0.5
"""Robust standard deviations of log durations above the median from which a duration is impossible,
and the least standard deviation. A Pareto law of shape 1.2 comes to 15 in 100,000 tasks."""


COARSE = "task takes no time (are times written too coarsely?)"
OVERLAPS = "task overlaps another of its device"
BACKWARDS = "task does not end after its start"
UNRELIABLE = "most tasks of its device overlap or end before their start (wrong clock?)"
LEAST_UNRELIABLE = 3
"""Tasks of a device that overlap or end before their start, from which all of them are left out."""
LONG_RUNNING = 10.0
"""Times the longest finished task of a device, beyond which one without an end may be lost."""
MOST_NAMED = 5
NO_WORK = "wait, downlink and uplink leave no time for work"
AMBIGUOUS = "{} has the day or the month first, and nothing says which"
HINTS = {
    COARSE: "durations must be seen in the log: write its times with fractions of a second",
    OVERLAPS: "a device is taken to work on one task at a time: if tasks wait at it for their turn, say how "
    "long in a column wait; if it works on several at once, give each of its workers a name",
    BACKWARDS: "starts and ends may come from different clocks: write both by the clock of one machine, or "
    "a column duration",
    "start is not a time": "--time-format says how dates are written, such as '%d %b %y %H:%M:%S'",
    NO_WORK: "start and end must include the times on the links; if they do not, --columns "
    "downlink=,uplink= reads the log without them",
}
"""What to do if a log is refused for a reason."""


@dataclass(frozen=True, eq=False)
class Durations:
    """How long tasks of one device took, and how long those still running have taken so far.

    ``begun`` are the times at which the finished ones began, ``downlink`` and ``uplink`` the times
    that tasks spent on the way, where a log has them.
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


@dataclass(frozen=True, eq=False)
class TaskLog(Mapping[str, Durations]):
    """Durations by device, and what was left out.

    ``bad`` are the rows that could not be used; ``unfinished`` the devices without a finished task,
    which are left out; ``classes`` the classes of devices where the log names them; ``until`` the end
    of the log; ``notes`` how it was read; ``place`` what rows are counted in, lines or records.
    """

    durations: Mapping[str, Durations]
    rows: int = 0
    bad: tuple[BadRow, ...] = ()
    unfinished: tuple[str, ...] = ()
    classes: Mapping[str, str] = field(default_factory=dict)
    until: float | None = None
    notes: tuple[str, ...] = ()
    place: str = "line"

    def __getitem__(self, device: str) -> Durations:
        return self.durations[device]

    def __iter__(self) -> Iterator[str]:
        return iter(self.durations)

    def __len__(self) -> int:
        return len(self.durations)

    @property
    def reasons(self) -> dict[str, int]:
        """How many rows are bad for each reason, the most frequent first."""
        return dict(Counter(row.reason for row in self.bad).most_common())


class TooManyBadRows(InvalidFile):
    """A log has more bad rows than allowed; ``bad`` lists them."""

    def __init__(self, message: str, bad: Sequence[BadRow] = ()) -> None:
        self.bad = tuple(bad)
        super().__init__(message)


def read_log(
    path: str | os.PathLike[str],
    *,
    now: float | None = None,
    presence: Mapping[str, Presence] | None = None,
    columns: Mapping[str, str] | None = None,
    max_bad: float = MOST_BAD,
    only: Only | None = None,
    time_format: str | None = None,
    zone: tzinfo = UTC,
    progress: Progress | None = None,
) -> TaskLog:
    """Durations by device from a log with ``device`` and either ``start`` and ``end`` or ``duration``.

    The log is CSV (separated by commas, semicolons, tabs or bars), JSON (an object per line, or one
    list) or Parquet, compressed or not. Times are dates (ISO 8601 and usual others, or
    ``time_format`` as for ``strptime``; in ``zone`` where they have none), seconds, or epoch times
    in seconds, milli-, micro- or nanoseconds; other columns are ignored, ``columns`` maps our names
    to the log's, and ``only`` says which rows to read. A task without an ``end`` is still running
    at ``now``, by default the latest time in the log; with durations, a column ``running`` (yes or
    no) marks those that had not ended. Columns ``wait`` (in the device's queue), ``downlink`` and
    ``uplink`` are the parts of a task's time that are not work; ``presence`` says when devices were
    there: while away, a device does not work. A column ``class`` or ``type`` names the class of a
    device.

    A row that cannot be used (a missing or unreadable field, an end before its start, a time far
    outside the log, a duplicate, a task that overlaps others of its device) is left out and listed.
    More than a share ``max_bad`` of such rows raises ``InvalidFile`` with all reasons.
    """
    report = progress or Silent()
    report.start(f"reading {Path(path).name}")
    rows = read_rows(Path(path), columns or {}, only)
    total = len(rows.lines) + len(rows.bad)
    if not total:
        nothing = "there is no line below the column names" if only is None else f"none is {only}"
        raise InvalidFile(f"{path}: no tasks: {nothing}")
    report.start(f"checking {total:,} rows", total)
    reader = TimeReader(time_format, zone, decimal_comma=rows.decimal_comma)
    check = _Checks(rows, reader)
    if "start" in rows.columns:
        log = _by_interval(check, now, presence or {}, report)
    elif presence:
        raise InvalidFile(f"{path}: presence goes with the columns start and end, not duration")
    else:
        log = _by_duration(check)
    bad = sorted(rows.bad, key=lambda row: row.line)
    finished = {device: seen for device, seen in log.items() if seen.finished.size}
    found = TaskLog(
        finished,
        total,
        tuple(bad),
        unfinished=tuple(device for device in log if device not in finished),
        classes=check.classes(),
        until=check.until,
        notes=tuple(rows.notes),
        place=rows.place,
    )
    if len(bad) > max_bad * total or not log:
        raise TooManyBadRows(_summary(str(path), found, max_bad, {**HINTS, **rows.hints}), bad)
    if not finished:
        raise InvalidFile(f"{path}: no device has finished a task, so no rate is known")
    return found


def bad_row_lines(log: TaskLog) -> list[str]:
    """A line per reason: how many rows, and the first of them."""
    first: dict[str, BadRow] = {}
    for row in log.bad:
        first.setdefault(row.reason, row)
    return [
        f"{number:,} {reason} (first: {log.place} {first[reason].line}: "
        f"{shown_text(first[reason].text)})"
        for reason, number in log.reasons.items()
    ]


def _summary(path: str, log: TaskLog, max_bad: float, known: Mapping[str, str]) -> str:
    share = len(log.bad) / log.rows
    lines = "".join(f"\n  {line}" for line in bad_row_lines(log))
    hints = "".join(
        f"\n{known[reason]}"
        for reason, number in log.reasons.items()
        if reason in known and number > max_bad * log.rows / 2
    )
    if log and share < 0.5:
        hints += f"\n--max-bad {math.ceil(100.0 * share)}% leaves all of these rows out"
    notes = "".join(f"\n{note}" for note in log.notes)
    return (
        f"{path}: {len(log.bad):,} of {log.rows:,} rows cannot be used ({share:.1%}; --max-bad allows "
        f"{max_bad:.1%}):{lines}{hints}{notes}"
    )


class _Checks:
    """The rows of a log under inspection: each is good until one check refuses it."""

    def __init__(self, rows: Rows, reader: TimeReader) -> None:
        self.rows, self.reader = rows, reader
        self.good = np.ones(len(rows.lines), dtype=np.bool_)
        self.notes = rows.notes
        self.until: float | None = None
        self.scale = 1.0
        devices = rows.columns["device"]
        self.refuse([i for i, name in enumerate(devices) if not name], "device is missing")
        strange = [
            i
            for i, name in enumerate(devices)
            if (not name.isprintable() and CONTROL.search(name)) or UNDECODED in name
        ]
        self.refuse(strange, "device has control characters or is not UTF-8")
        alike: dict[str, list[str]] = {}
        for name in dict.fromkeys(devices):
            alike.setdefault(name.casefold(), []).append(name)
        if pairs := [names for names in alike.values() if len(names) > 1]:
            first, second = pairs[0][:2]
            self.notes.append(
                f"{len(pairs):,} names are written in several ways, such as '{first[:60]}' and "
                f"'{second[:60]}', and count as devices of their own"
            )

    def refuse(self, rows: Flags | Sequence[int], reason: str) -> None:
        """Leave rows out, a mask or their places; the first reason counts."""
        for i in np.flatnonzero(rows).tolist() if isinstance(rows, np.ndarray) else rows:
            if self.good[i]:
                self.good[i] = False
                self.rows.bad.append(BadRow(self.rows.lines[i], reason, self.rows.texts[i]))

    def places(self) -> list[int]:
        """The rows that are good so far."""
        return np.flatnonzero(self.good).tolist()

    def by_device(self) -> dict[str, list[int]]:
        """The rows of every device that are good so far."""
        found: dict[str, list[int]] = {}
        devices = self.rows.columns["device"]
        for i in self.places():
            found.setdefault(devices[i], []).append(i)
        return found

    def numbers(self, name: str, parse: Callable[[str], float], kind: str) -> FloatArray:
        """A column as numbers, ``nan`` where nothing is known; what is no number is refused."""
        values = np.full(len(self.rows.lines), math.nan)
        unreadable, ambiguous = [], []
        for i, given in enumerate(self.rows.columns.get(name, [])):
            if given:
                try:
                    values[i] = parse(given)
                except Ambiguous:
                    ambiguous.append(i)
                except (ValueError, OverflowError):
                    unreadable.append(i)
        self.refuse(unreadable, f"{name} is not {kind}")
        if ambiguous:
            form = clock_format(self.rows.columns[name][ambiguous[0]])
            self.rows.hints[AMBIGUOUS.format(name)] = (
                f"--time-format '%d/%m/%Y {form}' or '%m/%d/%Y {form}' says which"
            )
        self.refuse(ambiguous, AMBIGUOUS.format(name))
        return values

    def spans(self, name: str, scale: float = 1.0) -> FloatArray:
        """A column of durations in seconds; plain numbers count units of ``scale`` seconds."""
        unit, comma = self.rows.units.get(name, scale), self.rows.decimal_comma
        return self.numbers(name, lambda given: parse_span(given, unit, comma), "a number")

    def times(self) -> tuple[FloatArray, FloatArray]:
        """Starts and ends in seconds, whatever they are written in."""
        reader, columns = self.reader, self.rows.columns
        reader.learn(chain(columns["start"], columns["end"]))
        start = self.numbers("start", reader.parse, "a time")
        end = self.numbers("end", reader.parse, "a time")
        self.refuse(np.isnan(start), "start is missing")
        dates = {
            name: np.array([reader.is_date(given) for given in columns[name]], dtype=np.bool_)
            for name in ("start", "end")
        }
        numbers = np.concatenate([start[~dates["start"]], end[~dates["end"]]])
        units = self.rows.units
        self.scale = units.get("start", units.get("end", seconds_per_unit(numbers)))
        if self.scale != 1.0:
            start = np.where(dates["start"], start, start * self.scale)
            end = np.where(dates["end"], end, end * self.scale)
        if self.scale != 1.0 and not {"start", "end"} & set(units):
            unit = UNITS[self.scale][-1]
            self.notes.append(f"numbers are read as {unit} since 1970, and rates are per second")
        if reader.without_zone:
            self.notes.append(
                f"{reader.without_zone:,} times have no time zone and are read as {reader.zone} "
                "(--time-zone says another)"
            )
        return start, end

    def parts(self) -> dict[str, FloatArray]:
        """The parts of the tasks' times that are not work, ``nan`` where unknown."""
        found = {}
        for name in PARTS:
            values = self.spans(name, self.scale)
            with np.errstate(invalid="ignore"):
                self.refuse(values < 0.0, f"{name} is negative")
            found[name] = values
        return found

    def classes(self) -> dict[str, str]:
        """The class that most rows of a device name."""
        if "class" not in self.rows.columns:
            return {}
        votes: dict[str, Counter[str]] = {}
        devices, named = self.rows.columns["device"], self.rows.columns["class"]
        for i in self.places():
            if named[i]:
                votes.setdefault(devices[i], Counter())[named[i]] += 1
        several = [device for device, counts in votes.items() if len(counts) > 1]
        if several:
            self.notes.append(
                f"{len(several):,} devices name several classes, such as {several[0][:60]}: the most "
                "frequent one counts"
            )
        return {device: counts.most_common(1)[0][0] for device, counts in votes.items()}


def _by_duration(check: _Checks) -> dict[str, Durations]:
    marks = [mark.lower() for mark in check.rows.columns.get("running", [])]
    unclear = [i for i, mark in enumerate(marks) if mark not in (*YES, *NO)]
    check.refuse(unclear, "running is not yes or no")
    duration = check.spans("duration")
    check.refuse(np.isnan(duration), "duration is missing")
    parts = check.parts()
    ended = np.array([mark not in YES for mark in marks] or [True] * duration.size, dtype=np.bool_)
    work = _work(check, np.zeros(duration.size), duration, ended, parts)
    return _collected(check, work, {}, timed=False)


def _by_interval(
    check: _Checks, now: float | None, presence: Mapping[str, Presence], report: Progress
) -> dict[str, Durations]:
    start, end = check.times()
    parts = check.parts()
    _check_clocks(check, start, end)
    ended = ~np.isnan(end)
    good = check.good
    if not good.any():
        return {}
    latest = float(np.max(np.where(ended, end, start)[good]))
    present = latest if now is None else now
    if not present >= latest:
        raise InvalidFile(f"now, {present:g}, is before the latest time in the log, {latest:g}")
    check.until = present
    work = _work(check, start, np.where(ended, end, present), ended, parts)
    for own in check.by_device().values():
        _check_overlaps(check, own, work)
        report.advance(len(own))
    _check_devices(check)
    _note_long_running(check, work)
    return _collected(check, work, presence, timed=True)


def _check_clocks(check: _Checks, start: FloatArray, end: FloatArray) -> None:
    """Refuse times far outside the log: clocks that stand at 1970, or another unit."""
    places = check.good & ~np.isnan(start)
    if places.sum() < FEWEST_FOR_CLOCK:
        return
    low, high = np.quantile(start[places], [0.25, 0.75])
    margin = FAR_OUTSIDE * max(high - low, 1.0)
    for times, name in ((start, "start"), (end, "end")):
        with np.errstate(invalid="ignore"):
            far = (times < low - margin) | (times > high + margin)
        check.refuse(far, f"{name} is far outside the log (wrong clock?)")


class _Work(NamedTuple):
    """When the work of every task began and ended (or was last seen), and the parts that are no work."""

    begun: FloatArray
    last: FloatArray
    ended: Flags
    parts: Mapping[str, FloatArray]


def _work(
    check: _Checks,
    start: FloatArray,
    until: FloatArray,
    ended: Flags,
    parts: Mapping[str, FloatArray],
) -> _Work:
    """The work of tasks that took from ``start`` to ``until``; impossible ones are refused."""
    with np.errstate(invalid="ignore"):
        took = until - start
        unseen = ~ended & (took == 0.0)  # sent at the last moment of the log
        check.good &= ~unseen
        check.refuse(took == 0.0, COARSE)
        check.refuse(took < 0.0, BACKWARDS)
        absurd = (took < SMALLEST) | (took > LARGEST)
        span = f"{SMALLEST:g} to {LARGEST:g}"
        check.refuse(absurd, f"duration is outside {span}")
        begun = start + np.nan_to_num(parts["downlink"]) + np.nan_to_num(parts["wait"])
        last = np.where(ended, until - np.nan_to_num(parts["uplink"]), np.maximum(until, begun))
        check.refuse(ended & ~(last > begun), NO_WORK)
        _check_impossible(check, last - begun, ended)
    return _Work(begun, last, ended, parts)


def _check_impossible(check: _Checks, work: FloatArray, ended: Flags) -> None:
    """Refuse durations that no law of service times gives."""
    places = np.flatnonzero(check.good & ended)
    if places.size < FEWEST_FOR_CLOCK:
        return
    logs = np.log(work[places])
    middle = float(np.median(logs))
    spread = max(LEAST_SPREAD, 1.4826 * float(np.median(np.abs(logs - middle))))
    impossible = places[logs > middle + IMPOSSIBLE * spread]
    check.refuse(impossible.tolist(), "duration is impossibly long")


def _check_overlaps(check: _Checks, own: Sequence[int], work: _Work) -> None:
    """Refuse tasks that overlap others of their device, as few as possible.

    A device works on one task at a time. In the order of their ends, a task is refused if it began
    before the last one that was taken ended; so one task with a wrong end does not cost the many
    that it covers.
    """
    begun, last, ended, _ = work
    latest_start = max(begun[i] for i in own)
    lost = [i for i in own if not ended[i] and begun[i] < latest_start]
    check.refuse(lost, "end is missing, and the device began another task later")
    seen: set[tuple[float, float]] = set()
    twice = []
    for i in own:
        if ended[i]:
            span = (float(begun[i]), float(last[i]))
            if span in seen:
                twice.append(i)
            seen.add(span)
    check.refuse(twice, "row is a duplicate")
    busy_until = -math.inf
    overlapping = []
    for i in sorted((i for i in own if check.good[i]), key=lambda i: (last[i], begun[i])):
        rounding = ROUNDING * max(abs(busy_until), abs(begun[i])) if busy_until > -math.inf else 0.0
        if begun[i] < busy_until - rounding:
            overlapping.append(i)
        else:
            busy_until = float(last[i])
    check.refuse(overlapping, OVERLAPS)


def _check_devices(check: _Checks) -> None:
    """Leave out devices of which most tasks are impossible: the others come from the same clock."""
    bad = {row.line for row in check.rows.bad if row.reason in (OVERLAPS, BACKWARDS)}
    places: dict[str, list[int]] = {}
    for i, device in enumerate(check.rows.columns["device"]):
        places.setdefault(device, []).append(i)
    unreliable = []
    for device, own in places.items():
        wrong = sum(check.rows.lines[i] in bad for i in own)
        if device and wrong >= LEAST_UNRELIABLE and wrong > len(own) / 2:
            unreliable.append(device)
            check.refuse(own, UNRELIABLE)
    if unreliable:
        check.notes.append(
            f"{len(unreliable):,} devices are left out, since most of their tasks overlap or end before "
            f"their start: {_some(unreliable)}"
        )


def _note_long_running(check: _Checks, work: _Work) -> None:
    """Name devices whose running task is old: one that will never end makes its device look slow."""
    begun, last, ended, _ = work
    longest: dict[str, float] = {}
    devices = check.rows.columns["device"]
    for i in check.places():
        if ended[i]:
            longest[devices[i]] = max(longest.get(devices[i], 0.0), float(last[i] - begun[i]))
    old = [
        devices[i]
        for i in check.places()
        if not ended[i] and last[i] - begun[i] > LONG_RUNNING * longest.get(devices[i], math.inf)
    ]
    if old:
        tasks = (
            "1 task without an end has"
            if len(old) == 1
            else f"{len(old):,} tasks without an end have"
        )
        check.notes.append(
            f"{tasks} run more than {LONG_RUNNING:g} times as long as any "
            f"finished one of the device ({_some(old)}), so that it looks slow: leave such rows out if "
            "the device was switched off"
        )


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    shown = ", ".join(name[:60] for name in names[:MOST_NAMED])
    return f"{shown} and {more:,} more" if more > 0 else shown


def _collected(
    check: _Checks, work: _Work, presence: Mapping[str, Presence], *, timed: bool
) -> dict[str, Durations]:
    begun, last, ended, parts = work
    devices = check.rows.columns["device"]
    took = last - begun
    if presence:
        away = []
        for i in check.places():
            there = presence.get(devices[i])
            if there is not None:
                took[i] = there.within(float(begun[i]), float(last[i]))
                if ended[i] and not took[i] > 0.0:
                    away.append(i)
        check.refuse(away, "device was away all the time of the task")
    found = {}
    for device, own in check.by_device().items():
        rows = np.array(sorted(own, key=lambda i: begun[i]) if timed else own)
        done = rows[ended[rows]]
        runs = rows[~ended[rows]]
        down, up = parts["downlink"][rows], parts["uplink"][done]
        found[device] = Durations(
            finished=took[done],
            running=took[runs][took[runs] > 0.0],
            begun=begun[done] if timed else np.zeros(0),
            downlink=down[~np.isnan(down)],
            uplink=up[~np.isnan(up)],
        )
    return found


def read_tasks(path: Path, status: Path) -> dict[str, Durations]:
    """Durations by client from ``path``, the ``tasks.jsonl`` of a deployment's folder.

    Clients have the names of the run's fleet, as its ``status`` file says, or else their numbers. What
    they are working on counts for as long as it has run, by the same file. Of the
    time that a task took, what its client did not work on it was spent on the way, half of it in each
    direction; not less than a tenth of a client's time, which the clocks and the transport may take.
    """
    seen: dict[str, tuple[list[float], list[float], list[float]]] = {}
    for number, line in enumerate(read_text(path, encoding="utf-8").splitlines(), 1):
        where = f"{path}, line {number}"
        record = parse_json(line, where)
        check_shape(record, TASK, where)
        seconds = record["service_seconds"]
        if seconds:  # zero: too short for the clock to see
            client = str(record["client"])[:200]
            took, begun, computing = seen.setdefault(client, ([], [], []))
            took.append(_duration(seconds, where))
            worked = record.get("computing_seconds")
            computing.append(seconds if worked is None else min(seconds, max(worked, SHORTEST)))
            if "time" in record:
                begun.append(record["time"] - seconds)
    if not seen:
        raise InvalidFile(f"{path}: no task in it says how long it took")
    clients = _clients(status)
    running = {number: [x["running"]] for number, x in clients.items() if x.get("running")}
    names = {number: x["name"][:200] for number, x in clients.items() if x.get("name")}
    names = {number: name for number, name in names.items() if name != f"client {number}"}
    if len({names.get(client) for client in seen} - {None}) < len(seen):
        names = {}  # some have none, or one that others have
    return {
        names.get(client, client): _with_links(
            np.array(took), np.array(computing), np.array(running.get(client, [])), np.array(begun)
        )
        for client, (took, begun, computing) in seen.items()
    }


def _with_links(
    took: FloatArray, computing: FloatArray, running: FloatArray, begun: FloatArray
) -> Durations:
    """Tasks that took so long, of which their client worked on them for ``computing`` seconds.

    With links nobody knows where a task is that has been ``running`` for some time.
    """
    away = took - computing
    if away.sum() < LEAST_AWAY * took.sum():
        return Durations(took, running, begun)
    return Durations(computing, np.zeros(0), begun, downlink=away / 2.0, uplink=away / 2.0)


def _clients(path: Path) -> dict[str, Mapping[str, Any]]:
    """What the status of a run says of each client, by its number."""
    if not path.is_file():
        return {}
    status = parse_json(read_text(path, encoding="utf-8"), str(path))
    check_shape(status, STATUS, str(path))
    return {str(x.get("number", i)): x for i, x in enumerate(status.get("clients", []))}


def _duration(value: Any, where: str) -> float:
    if isinstance(value, int | float) and value <= 0:
        raise InvalidFile(f"{where}: a task must take longer than 0; this one takes {value:g}")
    with reading(where):
        return check_scale("the duration of a task", value)

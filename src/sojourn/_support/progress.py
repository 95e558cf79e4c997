"""How far long work is: one protocol, a bar on a terminal, and plain lines where there is none."""

import math
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Protocol, TextIO, TypeAlias, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress as RichProgress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
)
from rich.table import Column
from rich.text import Text

from sojourn.errors import InvalidInput

Part = TypeVar("Part")
PATIENCE = 1.0
"""Seconds before a bar appears: what is done sooner needs none."""
SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_LOOKS = 0.5
WIDE = 100
"""Columns of a terminal from which on a bar has its whole width."""
TIMES = 36
"""Columns of the percentage and the times beside a bar, with the spaces between."""
_LEFT = re.compile(r", [\d:]+ left$")
"""The time left that a tuning writes behind a phase; the whole of several stages has its own."""
TENTH = 0.1
"""Part of the work from which on the time left is estimated."""

Advance: TypeAlias = Callable[[int, int], None]
"""Called with how much is done, and how much there is in all."""


class Progress(Protocol):
    """Shows how far work is, in any unit that it is measured in."""

    def start(self, phase: str, total: float | None = None, done: float = 0.0) -> None:
        """A phase begins, ``done`` of whose ``total`` was done before; ``None``: no one knows."""

    def advance(self, amount: float) -> None:
        """That much more is done."""


class Silent:
    """No progress is shown."""

    def start(self, phase: str, total: float | None = None, done: float = 0.0) -> None:
        """Nothing."""

    def advance(self, amount: float) -> None:
        """Nothing."""


_lines: ContextVar["Lines | None"] = ContextVar("_lines", default=None)


class _Times(ProgressColumn):
    """The time elapsed and, once a tenth is done, the time left."""

    def render(self, task: Task) -> Text:
        gone = timedelta(seconds=int(task.elapsed or 0.0))
        left = task.time_remaining if task.percentage >= 100.0 * TENTH else None
        then = "" if left is None else f", {timedelta(seconds=int(left))} left"
        return Text(f"{gone} gone{then}", no_wrap=True)


class Bar:
    """A bar with the time left, on a console that is a terminal."""

    def __init__(self, console: Console) -> None:
        # Where there is no room for all, the words are shortened, and neither bar nor times.
        wide = 12 if console.width < WIDE else 40
        words = Column(
            no_wrap=True, overflow="ellipsis", max_width=max(10, console.width - wide - TIMES)
        )
        columns = (
            TextColumn("{task.description}", table_column=words),
            BarColumn(bar_width=wide),
            TaskProgressColumn(),
            _Times(),
        )
        self._bar = RichProgress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=None)
        self._timer = threading.Timer(PATIENCE, self._bar.start)
        self._timer.daemon = True
        self._timer.start()

    def start(self, phase: str, total: float | None = None, done: float = 0.0) -> None:
        """Name the phase, and begin its bar where it stood; work that goes on keeps its times."""
        task = self._bar.tasks[0]
        if total is not None and total == task.total and done >= task.completed:
            self._bar.update(self._task, completed=done, description=phase)
        else:
            self._bar.reset(self._task, total=total, completed=int(done), description=phase)

    def advance(self, amount: float) -> None:
        """Move the bar."""
        self._bar.advance(self._task, amount)

    def close(self) -> None:
        """Take the bar away."""
        self._timer.cancel()
        self._timer.join()
        self._bar.stop()


class Stages:
    """One progress for a command of several stages: its share of the whole never goes back.

    ``stages`` are the beginnings of the names of phases, in their order, each with its share of the
    time that the whole takes. A phase of another name belongs to the stage before it.

    >>> lines = Lines(sys.stdout, clock=iter([11.0 * k for k in range(9)]).__next__)
    >>> stages = Stages(lines, {"trying": 0.75, "confirming": 0.25})
    >>> stages.start("trying", 10.0, 8.0)
    trying: 60%
    >>> stages.start("confirming", 4.0, 2.0)
    confirming: 88%, 0:00:05 left
    >>> stages.start("confirming again", 8.0, 2.0)
    confirming again: 88%, 0:00:10 left
    """

    def __init__(self, progress: Progress, stages: Mapping[str, float]) -> None:
        self._progress, self._stages = progress, list(stages.items())
        self._stage = 0
        self._total: float | None = None
        self._done = self._place = 0.0

    def start(self, phase: str, total: float | None = None, done: float = 0.0) -> None:
        """Name the phase; the whole goes on."""
        found = [k for k, (name, _) in enumerate(self._stages) if phase.startswith(name)]
        self._stage = max([self._stage, *found])
        self._total, self._done = total, done
        self._place = max(self._place, self._now())
        self._progress.start(_LEFT.sub("", phase), 100.0, self._place)

    def advance(self, amount: float) -> None:
        """That much more of the phase is done."""
        self._done += amount
        more = self._now() - self._place
        if more > 0.0:
            self._place += more
            self._progress.advance(more)

    def _now(self) -> float:
        """Percent of the whole that is done."""
        part = min(self._done / self._total, 1.0) if self._total else 0.0
        before = sum(share for _, share in self._stages[: self._stage])
        return 100.0 * min(1.0, before + self._stages[self._stage][1] * part)


class Portion:
    """Progress of a part of some work: ``share`` of the whole, of which ``before`` was done.

    >>> lines = Lines(sys.stdout, clock=iter([11.0 * k for k in range(9)]).__next__)
    >>> Portion(lines, before=0.5, share=0.25).start("second half", 10.0, 8.0)
    second half: 70%
    """

    def __init__(self, progress: Progress, before: float, share: float) -> None:
        self._progress, self._before, self._share = progress, before, share

    def start(self, phase: str, total: float | None = None, done: float = 0.0) -> None:
        """Name the phase of the part."""
        self._per_amount = self._share / total if total else 0.0
        self._progress.start(phase, 1.0, self._before + self._per_amount * done)

    def advance(self, amount: float) -> None:
        """That much more of the part is done."""
        self._progress.advance(self._per_amount * amount)


class Lines:
    """A line every ten seconds, for files and for terminals of other machines, from any thread.

    >>> clock = iter([0.0, 1.0, 12.0, 13.0])
    >>> lines = Lines(sys.stdout, clock=lambda: next(clock))
    >>> lines.start("training", total=50.0)
    >>> lines.advance(10.0)
    training: 20%, 0:00:44 left
    >>> lines.advance(5.0)
    """

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._due = clock() + SECONDS_BETWEEN_LINES
        self._phase, self._done, self._before = "", 0.0, 0.0
        self._total: float | None = None
        self._begun = self._moved = 0.0
        self._lock = threading.Lock()

    def start(self, phase: str, total: float | None = None, done: float = 0.0) -> None:
        """Name the phase."""
        goes_on = total is not None and total == self._total and done >= self._done
        now = self._moved = self._clock()
        if not goes_on:
            self._begun, self._before = now, done
        self._phase, self._total, self._done = phase, total, done
        self._write_when_due(now)

    def advance(self, amount: float) -> None:
        """Count, and write a line when it is time."""
        self._done += amount
        self._moved = now = self._clock()
        self._write_when_due(now)

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Lines are written in the block although nothing is heard: a single step may take long."""
        ended = threading.Event()

        def tick() -> None:
            while not ended.wait(SECONDS_BETWEEN_LOOKS):
                self._write_when_due(self._clock())

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    @contextmanager
    def within(self) -> Iterator[None]:
        """Work that has phases of its own; afterwards the command writes what it found."""
        command = self._phase.partition(":")[0]
        try:
            yield
        finally:
            self._phase, self._total, self._done = f"{command}: writing results", None, 0.0

    def _write_when_due(self, now: float) -> None:
        with self._lock:
            if now < self._due:
                return
            self._due = now + SECONDS_BETWEEN_LINES
            with suppress(OSError, ValueError):  # who reads it may be gone
                self._file.write(f"{self._phase or 'starting'}{self._share(now)}\n")
                self._file.flush()

    def _share(self, now: float) -> str:
        """How much is done and, after a tenth, how long the rest takes at that pace."""
        if not self._total:
            return ""
        share = min(self._done / self._total, 1.0)
        new = (self._done - self._before) / self._total
        if new < TENTH or share >= 1.0:
            return f": {share:.0%}"
        left = (1.0 - share) * (self._moved - self._begun) / new - (now - self._moved)
        if left < 1.0:
            return f": {share:.0%}"
        return f": {share:.0%}, {timedelta(seconds=round(left))} left"


@contextmanager
def shown(wanted: bool = True) -> Iterator[Progress]:
    """Progress on standard error for the length of the block, as suits it; none if not ``wanted``."""
    console = Console(stderr=True)
    if not wanted:
        yield Silent()
    elif not console.is_terminal:
        outer = _lines.get()
        lines = Lines(sys.stderr) if outer is None else outer
        with lines.within() if outer is not None else lines.ticking():
            yield lines
    else:
        bar = Bar(console)
        try:
            yield bar
        finally:
            bar.close()


@contextmanager
def never_silent(what: str) -> Iterator[None]:
    """Where standard error is no terminal a line is written every ten seconds of the block, whatever
    is done in it; ``what`` until somebody knows better.
    """
    if Console(stderr=True).is_terminal:
        yield
        return
    lines = Lines(sys.stderr)
    lines.start(what)
    token = _lines.set(lines)
    try:
        with lines.ticking():
            yield
    finally:
        _lines.reset(token)


@contextmanager
def progress_bar(phase: str) -> Iterator[Advance]:
    """Progress of work that reports how much is done and how much there is in all."""
    with shown() as progress:
        progress.start(phase)
        yield following(progress, phase)


@contextmanager
def steps(what: str) -> Iterator[Callable[[str], None]]:
    """Progress of work that names its steps, and does not know how many there will be."""
    with shown() as progress:
        taken = 0

        def step(name: str) -> None:
            nonlocal taken
            taken += 1
            progress.start(f"{what}: step {taken}, {name}")

        yield step


def following(progress: Progress, phase: str) -> Advance:
    """What to call with how much is done and how much there is, for ``progress`` to hear of it.

    >>> clock = iter([0.0, 1.0, 12.0, 30.0])
    >>> advance = following(Lines(sys.stdout, clock=lambda: next(clock)), "simulating")
    >>> advance(30, 100)
    simulating: 30%, 0:00:26 left
    >>> advance(60, 100)
    simulating: 60%, 0:00:19 left
    """
    before = 0
    begun = False

    def advance(done: int, total: int) -> None:
        nonlocal before, begun
        if not begun:
            progress.start(phase, total)
            begun = True
        progress.advance(done - before)
        before = done

    return advance


def by_fraction(progress: Progress, cost: Mapping[Part, float]) -> Callable[[Part, float], None]:
    """What to call, from any thread, with a part of the work and the fraction of it that is done.

    A part counts for its ``cost``; a fraction that was heard of before counts nothing.
    """
    heard: dict[Part, float] = {}
    lock = threading.Lock()

    def advance(part: Part, fraction: float) -> None:
        with lock:
            before = heard.get(part, 0.0)
            if fraction > before:
                heard[part] = fraction
                progress.advance((fraction - before) * cost[part])

    return advance


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(75), duration(8000)
    ('75 s', '2 h 13 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds from ``90``, ``90s``, ``10m``, ``10 min``, ``2h``, or ``2 h 13 min`` of `duration`.

    >>> parse_duration("10m"), parse_duration("1.5h"), parse_duration("2 h 13 min")
    (600.0, 5400.0, 7980.0)
    """
    parts = re.findall(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", text.strip().lower())
    whole = "".join(number + unit for number, unit in parts)
    if len(parts) == 1 and not parts[0][1]:
        parts = [(parts[0][0], "s")]
    value = sum(float(number) * _UNITS.get(unit, math.nan) for number, unit in parts)
    if whole != "".join(text.lower().split()) or not 0.0 < value < math.inf:
        raise InvalidInput(f"a budget is a time such as 90s, 10m or 2h; it is '{text}'")
    return value

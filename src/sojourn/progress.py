"""How far long work is: one protocol, a bar on a terminal, and plain lines where there is none."""

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
from rich.text import Text

Part = TypeVar("Part")
PATIENCE = 1.0
"""Seconds before a bar appears: what is done sooner needs none."""
SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_LOOKS = 0.5

Advance: TypeAlias = Callable[[int, int], None]
"""Called with how much is done, and how much there is in all."""


class Progress(Protocol):
    """Is told how far work is, in any unit that it is measured in."""

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
    """How long it has taken and, if that can be told, how long it will."""

    def render(self, task: Task) -> Text:
        gone = timedelta(seconds=int(task.elapsed or 0.0))
        left = task.time_remaining
        then = "" if left is None else f", {timedelta(seconds=int(left))} left"
        return Text(f"{gone} gone{then}", no_wrap=True)


class Bar:
    """A bar with the time left, on a console that is a terminal."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            _Times(),
        )
        self._bar = RichProgress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=None)
        self._due = time.monotonic() + PATIENCE

    def start(self, phase: str, total: float | None = None, done: float = 0.0) -> None:
        """Name the phase, and begin its bar where it stood."""
        self._bar.reset(self._task, total=total, completed=int(done), description=phase)
        self._appear()

    def advance(self, amount: float) -> None:
        """Move the bar."""
        self._bar.advance(self._task, amount)
        self._appear()

    def _appear(self) -> None:
        if time.monotonic() >= self._due:
            self._bar.start()

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()


class Lines:
    """A line every ten seconds, for files and for terminals of other machines, from any thread.

    >>> clock = iter([0.0, 1.0, 12.0, 13.0])
    >>> lines = Lines(sys.stdout, clock=lambda: next(clock))
    >>> lines.start("training", total=50.0)
    >>> lines.advance(10.0)
    training: 20%
    >>> lines.advance(5.0)
    """

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._due = clock() + SECONDS_BETWEEN_LINES
        self._phase, self._done = "", 0.0
        self._total: float | None = None
        self._lock = threading.Lock()

    def start(self, phase: str, total: float | None = None, done: float = 0.0) -> None:
        """Name the phase."""
        self._phase, self._total, self._done = phase, total, done
        self._write_when_due()

    def advance(self, amount: float) -> None:
        """Count, and write a line when it is time."""
        self._done += amount
        self._write_when_due()

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Lines are written in the block although nothing is heard: a single step may take long."""
        ended = threading.Event()

        def tick() -> None:
            while not ended.wait(SECONDS_BETWEEN_LOOKS):
                self._write_when_due()

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    @contextmanager
    def within(self) -> Iterator[None]:
        """Work that has phases of its own; afterwards it is the phase before again."""
        before = self._phase, self._total, self._done
        try:
            yield
        finally:
            self._phase, self._total, self._done = before

    def _write_when_due(self) -> None:
        with self._lock:
            now = self._clock()
            if now < self._due:
                return
            self._due = now + SECONDS_BETWEEN_LINES
            share = f": {min(self._done / self._total, 1.0):.0%}" if self._total else ""
            with suppress(OSError, ValueError):  # who reads it may be gone
                self._file.write(f"{self._phase or 'at work'}{share}\n")
                self._file.flush()


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
    """Progress of work that tells how much is done and how much there is in all."""
    with shown() as progress:
        progress.start(phase)
        yield following(progress, phase)


@contextmanager
def steps(what: str) -> Iterator[Callable[[str], None]]:
    """Progress of work that tells its steps by name, and not how many there will be."""
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
    simulating: 30%
    >>> advance(60, 100)
    simulating: 60%
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

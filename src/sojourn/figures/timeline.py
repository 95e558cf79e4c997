"""Who computes what when: the tasks of every client over time, as a value and as a picture.

A row per client. A bar is a task being computed, the stronger its shade the staler; a gap is an idle
client; the band below a bar is its queue, as high as tasks wait there.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from sojourn._support.files import write_text
from sojourn.errors import InvalidInput
from sojourn.figures.svg import EDGES, LETTER, Entry, legend, legend_entries, level_name, picture
from sojourn.types import FloatArray, IntArray

TITLE = "Who computes what when"
MOST_ROWS = 60
OPENING_ROWS = 36
"""Rows of a timeline that shares the first screen of a page with other figures."""
LOOK_AHEAD = 8.0
"""How much longer than shown is simulated, so that tasks begun in the picture are seen to end."""
TASKS_EACH = 12
"""Tasks per client, on average, in a picture without a given end."""
VIRTUAL, SECONDS = "time units", "s"
"""Units of time: of a simulation, and of a deployment."""
AXES = {VIRTUAL: "time (virtual units)", SECONDS: "time (seconds)"}
"""What an axis of time is called, by its unit."""
_LEFT, _RIGHT, _TOP, _AXIS, _GAP = 74.0, 14.0, 26.0, 46.0, 34.0
_LONGEST_NAME = 18


@dataclass(frozen=True, eq=False)
class Timeline:
    """The tasks that were sent before the time ``until``, by client and in the order of their queue.

    A task is ``sent``, computed from ``begin`` (infinite if it had not begun when the record ends) to
    ``end``; ``staleness`` is in rounds, ``nan`` where it is not known. ``classes`` are the names and
    sizes of the classes of clients, in the order of the clients' numbers. ``unit`` is that of time.
    """

    client: IntArray
    sent: FloatArray
    begin: FloatArray
    end: FloatArray
    staleness: FloatArray
    until: float
    classes: tuple[tuple[str, int], ...]
    unit: str = VIRTUAL

    @classmethod
    def from_completions(
        cls,
        client: ArrayLike,
        dispatched: ArrayLike,
        time: ArrayLike,
        *,
        pending: tuple[ArrayLike, ArrayLike] = ((), ()),
        classes: Sequence[tuple[str, int]],
        until: float | None = None,
        service: Sequence[float | None] = (),
        unit: str = VIRTUAL,
    ) -> "Timeline":
        """From completions in the order of time, as a `Schedule` or a deployment records them.

        Round t completed a task of ``client[t]`` that was sent when ``dispatched[t]`` rounds were
        done; ``pending`` are client and dispatch of those never completed. A client serves first in,
        first out, so it begins a task when it is sent or when the one before is done; where its
        ``service`` time was measured, it began so long before it was done, and what was handed out
        before a client was there was sent when the client began.
        Cost: O(rounds log rounds).

        >>> two = Timeline.from_completions([0, 0], [0, 0], [1.0, 3.0], classes=[("only", 1)])
        >>> two.begin.tolist(), two.staleness.tolist()
        ([0.0, 1.0], [0.0, 1.0])
        """
        done = np.asarray(time, dtype=np.float64)
        starts = np.concatenate([[0.0], done])
        rounds = done.size
        who = np.concatenate([np.asarray(client), np.asarray(pending[0])]).astype(np.int64)
        since = np.concatenate([np.asarray(dispatched), np.asarray(pending[1])]).astype(np.int64)
        end = np.concatenate([done, np.full(who.size - rounds, math.inf)])
        staleness = np.concatenate(
            [np.arange(rounds) - since[:rounds], np.full(who.size - rounds, math.nan)]
        )
        order = np.lexsort((since, end, who))
        who, sent, end = who[order], starts[since[order]], end[order]
        before = np.concatenate([[0.0], end[:-1]])
        before[np.flatnonzero(np.diff(who, prepend=-1))] = 0.0
        begin = np.maximum(sent, before)
        if service:
            took = np.array([math.nan if s is None else s for s in service], dtype=np.float64)
            began = end - np.concatenate([took, np.full(who.size - rounds, math.nan)])[order]
            begin = np.where(np.isnan(began), begin, np.clip(began, begin, end))
            firsts = np.flatnonzero(np.diff(who, prepend=-1))
            joined = np.repeat(begin[firsts], np.diff(firsts, append=who.size))
            sent = np.maximum(sent, np.minimum(joined, begin))
        if until is None:
            size = sum(count for _, count in classes)
            last = min(rounds, TASKS_EACH * size)
            until = float(done[last - 1]) if last else 1.0
        if not (math.isfinite(until) and until > 0):
            raise InvalidInput(f"a timeline must end at a positive time; it is {until!r}")
        seen = sent < until
        return cls(
            client=who[seen],
            sent=sent[seen],
            begin=begin[seen],
            end=end[seen],
            staleness=staleness[order][seen],
            until=float(until),
            classes=tuple((str(name), int(count)) for name, count in classes),
            unit=unit,
        )

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return sum(count for _, count in self.classes)

    @property
    def busy(self) -> FloatArray:
        """The share of the time that each client computes, ``(n,)``."""
        spans = np.minimum(self.end, self.until) - np.minimum(self.begin, self.until)
        return np.bincount(self.client, weights=spans, minlength=self.clients) / self.until

    @property
    def waiting(self) -> FloatArray:
        """How many tasks wait at each client, averaged over time, ``(n,)``."""
        spans = np.minimum(self.begin, self.until) - self.sent
        return np.bincount(self.client, weights=spans, minlength=self.clients) / self.until

    @property
    def completed(self) -> int:
        """Tasks completed before the end of the picture."""
        return int((self.end <= self.until).sum())

    def __repr__(self) -> str:
        return f"Timeline({self.in_words()})"

    def in_words(self) -> str:
        """What the picture shows."""
        waiting = f"{self.waiting.sum():.1f}"
        return (
            f"{self.completed:,} tasks in {self.until:.3g} {self.unit}, {self.clients:,} clients "
            f"busy {self.busy.mean():.0%} of it, {'no' if waiting == '0.0' else waiting} tasks waiting"
        )

    def longest_queue(self) -> int:
        """The most tasks that wait at one client at one time."""
        return max((int(count.max()) for _, _, count in self.queues()), default=0)

    def sampled(self, most: int = MOST_ROWS) -> "Timeline":
        """The same with at most about ``most`` clients, chosen evenly from every class.

        Clients are numbered anew. Cost: O(tasks), so that a picture of 100,000 clients costs no more
        than its rows.

        >>> many = Timeline.from_completions([7], [0], [1.0], classes=[("a", 90), ("b", 10)])
        >>> many.sampled(20).classes
        (('a', 18), ('b', 2))
        """
        if self.clients <= most:
            return self
        chosen, classes, first = [], [], 0
        for name, count in self.classes:
            rows = min(count, max(1, round(most * count / self.clients)))
            chosen.append(first + np.linspace(0, count - 1, rows).round().astype(np.int64))
            classes.append((name, rows))
            first += count
        row = np.full(self.clients, -1)
        numbers = np.concatenate(chosen)
        row[numbers] = np.arange(numbers.size)
        seen = row[self.client] >= 0
        columns = ("sent", "begin", "end", "staleness")
        return replace(
            self,
            client=row[self.client][seen],
            classes=tuple(classes),
            **{name: getattr(self, name)[seen] for name in columns},
        )

    def levels(self) -> IntArray:
        """The shade of every task, from 0; -1 where the staleness is not known."""
        shades = np.searchsorted(EDGES, self.staleness, side="right")
        return np.where(np.isnan(self.staleness), -1, shades).astype(np.int64)

    def to_svg(self, title: str = "", *, styled: bool = True, width: float = 720.0) -> str:
        """The picture; not ``styled``, the colours are left to the page it is put into."""
        return timelines_svg([(title, self)], styled=styled, width=width)

    def save(self, path: str | os.PathLike[str], title: str = "") -> Path:
        """Write the picture into ``path``, as SVG or PNG."""
        return save_timelines([(title, self)], Path(path))

    def _repr_html_(self) -> str:
        return self.to_svg()

    def queues(self) -> Iterator[tuple[int, FloatArray, IntArray]]:
        """For every client whose tasks wait: the times at which the number changes, the numbers."""
        waiting = np.minimum(self.begin, self.until) > self.sent
        client, sent, begin = self.client[waiting], self.sent[waiting], self.begin[waiting]
        first = np.flatnonzero(np.diff(client, prepend=-1))
        for tasks in np.split(np.arange(client.size), first)[1:]:
            at = np.concatenate([sent[tasks], np.minimum(begin[tasks], self.until)])
            step = np.repeat([1, -1], tasks.size)
            order = np.lexsort((-step, at))
            yield int(client[tasks[0]]), at[order], np.cumsum(step[order])


def save_timelines(panels: Sequence[tuple[str, Timeline]], path: Path) -> Path:
    """Draw timelines side by side into ``path``, which ends in ``.svg`` or ``.png``."""
    if path.suffix not in (".svg", ".png"):
        raise InvalidInput(f"'{path}': the picture must end in .svg or .png")
    if path.suffix == ".png":
        from sojourn.figures.matplotlib_figure import save_timelines as save_png

        save_png(panels, path)
    else:
        write_text(path, timelines_svg(panels) + "\n")
    return path


def timelines_svg(
    panels: Sequence[tuple[str, Timeline]],
    *,
    styled: bool = True,
    width: float = 520.0,
    stacked: bool = False,
    most_rows: int = MOST_ROWS,
) -> str:
    """Timelines side by side, or ``stacked`` over one time axis, with one legend for all.

    Each panel is ``width`` wide and has at most about ``most_rows`` rows.
    """
    words = ". ".join(
        f"{title}: {timeline.in_words()}" if title else timeline.in_words()
        for title, timeline in panels
    )
    drawn = [(title, timeline.sampled(most_rows)) for title, timeline in panels]
    rows = max(timeline.clients for _, timeline in drawn)
    row = min(14.0, max(6.0, 420.0 / rows))
    if stacked:
        row = min(48.0, max(4.5, 330.0 / sum(timeline.clients for _, timeline in drawn)))
    longest = max(1, *(timeline.longest_queue() for _, timeline in drawn))
    names = [_short(name) for _, timeline in drawn for name, _ in timeline.classes]
    left = max(_LEFT, 14.0 + 0.95 * LETTER * max(map(len, names)))
    columns = 1 if stacked else len(drawn)
    whole = columns * width + (columns - 1) * _GAP
    parts: list[str] = []
    below = 0.0
    for k, (title, timeline) in enumerate(drawn):
        across, down = (0.0, below) if stacked else (k * (width + _GAP), 0.0)
        parts.append(f'<g transform="translate({across:g} {down:g})">')
        parts += _panel(title, timeline, (left, width), row, longest)
        if not stacked or k == len(drawn) - 1:
            parts += _axis(timeline, (left, width), row)
        parts.append("</g>")
        below += _TOP + timeline.clients * row if stacked else 0.0
    bottom = (below if stacked else _TOP + rows * row) + _AXIS
    entries = _legend_entries(drawn, longest, left, whole)
    parts.append(f'<text class="key" x="4" y="{bottom + 12:.1f}">staleness</text>')
    parts += legend(entries, bottom + 12.0)
    return picture("timeline", whole, bottom, entries, words, parts, styled)


def _panel(
    title: str, timeline: Timeline, span: tuple[float, float], row: float, longest: int
) -> Iterator[str]:
    left, width = span
    scale = (width - left - _RIGHT) / timeline.until
    bar = 0.56 * row
    tops = [_TOP + k * row for k in range(timeline.clients)]
    if title:
        yield f'<text class="head" x="{left:g}" y="17">{escape(title)}</text>'
    yield from _class_names(timeline, row, span)
    for top in tops:
        yield f'<rect class="idle" x="{left:g}" y="{top:.1f}" width="{width - left - _RIGHT:.1f}" height="{bar:.1f}"/>'
    yield from _bars(timeline, tops, left, scale, bar)
    steps = []
    for client, at, count in timeline.queues():
        base = tops[client] + row - 0.6
        x = left + at * scale
        y = base - (row - bar - 0.6) * np.minimum(1.0, count / longest)
        points = [f"V{top:.1f}H{along:.1f}" for top, along in zip(y[:-1], x[1:], strict=True)]
        steps.append(f"M{x[0]:.1f} {base:.1f}{''.join(points)}V{base:.1f}z")
    if steps:
        yield f'<path class="queue" d="{"".join(steps)}"/>'
    busy, waiting = timeline.busy, timeline.waiting
    names = [name for name, count in timeline.classes for _ in range(count)]
    for client, top in enumerate(tops):
        yield (
            f'<rect class="touch" x="{left:g}" y="{top:.1f}" width="{width - left - _RIGHT:.1f}" '
            f'height="{row:.1f}"><title>{escape(names[client])} client: busy {busy[client]:.0%}, '
            f"{waiting[client]:.1f} tasks waiting on average</title></rect>"
        )


def _axis(timeline: Timeline, span: tuple[float, float], row: float) -> Iterator[str]:
    left, width = span
    room = width - left - _RIGHT
    bottom = _TOP + timeline.clients * row + 4.0
    for tick in _ticks(timeline.until):
        x = left + tick * room / timeline.until
        yield f'<path class="axis" d="M{x:.1f} {bottom:.1f}v4"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 15:.1f}">{tick:g}</text>'
    middle = left + 0.5 * room
    yield f'<text class="tick" x="{middle:.1f}" y="{bottom + 31:.1f}">{AXES[timeline.unit]}</text>'


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _class_names(timeline: Timeline, row: float, span: tuple[float, float]) -> Iterator[str]:
    left, width = span
    first, above = 0, -math.inf
    for name, count in timeline.classes:
        top = _TOP + first * row
        middle = top + 0.5 * count * row
        if middle - above >= 12.0:  # others would lie on one another
            above = middle
            whole = f"<title>{escape(name)}</title>" if _short(name) != name else ""
            text = f"{escape(_short(name))}{whole}"
            yield f'<text class="name" x="{left - 8:g}" y="{middle + 4:.1f}">{text}</text>'
        if first:
            yield f'<path class="axis" d="M4 {top - 0.4:.1f}H{width - _RIGHT:.1f}"/>'
        first += count


def _bars(
    timeline: Timeline, tops: list[float], left: float, scale: float, bar: float
) -> Iterator[str]:
    """A path per shade: every bar leaves a hair to the next, where there is room."""
    levels = timeline.levels()
    begun = timeline.begin < timeline.until
    for level in range(-1, len(EDGES) + 1):
        steps = []
        for i in np.flatnonzero(begun & (levels == level)).tolist():
            x = left + timeline.begin[i] * scale
            wide = (min(float(timeline.end[i]), timeline.until) - float(timeline.begin[i])) * scale
            wide -= 0.6 if wide > 2.0 else 0.3 * wide
            top = tops[timeline.client[i]]
            steps.append(f"M{x:.1f} {top:.1f}h{wide:.2f}v{bar:.1f}h-{wide:.2f}z")
        if steps:
            yield f'<path class="{"open" if level < 0 else f"s{level}"}" d="{"".join(steps)}"/>'


def _legend_entries(
    panels: Sequence[tuple[str, Timeline]], longest: int, left: float, right: float
) -> list[Entry]:
    used = np.unique(np.concatenate([timeline.levels() for _, timeline in panels]))
    texts = [(f"s{level}", level_name(int(level))) for level in used if level >= 0]
    if -1 in used:
        texts.append(("open", "not done"))
    if any(timeline.longest_queue() for _, timeline in panels):
        texts.append(("queue", f"tasks waiting, up to {longest:,}"))
    return legend_entries([*texts, ("idle", "idle")], left + 12.0, right)


def _ticks(until: float) -> list[float]:
    step = 10.0 ** math.floor(math.log10(until))
    for share in (0.2, 0.5, 1.0):
        if until / (share * step) <= 6.5:
            step *= share
            break
    return [round(k * step, 12) for k in range(int(until / step * (1 + 1e-9)) + 1)]

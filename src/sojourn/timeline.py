"""Who computes what when: the tasks of every client over time, as a value and as a picture.

A row per client. A bar is a task being computed, the darker the staler its gradient; a gap is a client
without work; the band below a bar is its queue, as high as tasks are waiting there.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from sojourn.errors import InvalidInput
from sojourn.files import replacing
from sojourn.types import FloatArray, IntArray

EDGES = (3, 10, 30, 100, 300)
"""Staleness, in rounds, at which the shade changes."""
LIGHT = ("#bfdcec", "#8cc0dd", "#559fc9", "#2c78ab", "#164f7d", "#08263f")
DARK = ("#24455c", "#2f6586", "#4289b3", "#6cb0d8", "#a3d2ee", "#e6f4fd")
QUEUE = ("#c2410c", "#ff9b5c")
MOST_ROWS = 60
LOOK_AHEAD = 8.0
"""How much longer than shown is simulated, so that tasks begun in the picture are seen to end."""
TASKS_EACH = 12
"""Tasks per client on average that a picture shows unless told otherwise."""
_LEFT, _RIGHT, _TOP, _BOTTOM, _LEGEND, _GAP, _LETTER = 74.0, 14.0, 26.0, 46.0, 18.0, 34.0, 8.0
_KEYS = _LEFT + 12.0
_LONGEST_NAME = 18


@dataclass(frozen=True, eq=False)
class Timeline:
    """The tasks that were sent before the time ``until``, by client and in the order of their queue.

    A task is ``sent``, computed from ``begin`` (infinite if it had not begun when the record ends) to
    ``end``; ``staleness`` is in rounds, ``nan`` where it is not known. ``classes`` are the names and
    sizes of the classes of clients, in the order of the clients' numbers.
    """

    client: IntArray
    sent: FloatArray
    begin: FloatArray
    end: FloatArray
    staleness: FloatArray
    until: float
    classes: tuple[tuple[str, int], ...]

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
    ) -> "Timeline":
        """From completions in the order of time, as a `Schedule` or a deployment records them.

        Round t completed a task of ``client[t]`` that was sent when ``dispatched[t]`` rounds were
        done; ``pending`` are client and dispatch of those never completed. A client serves first in,
        first out, so it begins a task when it is sent or when the one before is done.
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
            begin=np.maximum(sent, before)[seen],
            end=end[seen],
            staleness=staleness[order][seen],
            until=float(until),
            classes=tuple((str(name), int(count)) for name, count in classes),
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
            f"{self.completed:,} tasks in {self.until:.3g} units of time, {self.clients} clients "
            f"busy {self.busy.mean():.0%} of it, {'no' if waiting == '0.0' else waiting} tasks waiting"
        )

    def longest_queue(self) -> int:
        """The most tasks that wait at one client at one time."""
        return max((int(count.max()) for _, _, count in self.queues()), default=0)

    def rows(self) -> list[int]:
        """The clients that are drawn: all, or evenly chosen ones where there are many."""
        if self.clients <= MOST_ROWS:
            return list(range(self.clients))
        return [round(place) for place in np.linspace(0, self.clients - 1, MOST_ROWS).tolist()]

    def levels(self) -> IntArray:
        """The shade of every task, from 0; -1 where the staleness is not known."""
        shades = np.searchsorted(EDGES, self.staleness, side="right")
        return np.where(np.isnan(self.staleness), -1, shades).astype(np.int64)

    def to_svg(self, title: str = "", *, styled: bool = True, width: float = 720.0) -> str:
        """The picture; not ``styled``, the colours are left to the page it is put into."""
        return timelines_svg([(title, self)], styled=styled, width=width)

    def save(self, path: str | os.PathLike[str], title: str = "") -> Path:
        """Write the picture into ``path``, as SVG."""
        target = Path(path)
        if target.suffix != ".svg":
            raise InvalidInput(
                f"'{target}': a timeline is written as .svg; `sojourn simulate --timeline` draws .png"
            )
        with replacing(target) as temporary:
            temporary.write_text(self.to_svg(title) + "\n", encoding="utf-8")
        return target

    def _repr_html_(self) -> str:
        return self.to_svg()

    def queues(self) -> Iterator[tuple[int, FloatArray, IntArray]]:
        """For every client whose tasks wait: the times at which the number changes, the numbers."""
        for client in np.unique(self.client).tolist():
            own = (self.client == client) & (np.minimum(self.begin, self.until) > self.sent)
            if own.any():
                at = np.concatenate([self.sent[own], np.minimum(self.begin[own], self.until)])
                step = np.repeat([1, -1], int(own.sum()))
                order = np.lexsort((-step, at))
                yield client, at[order], np.cumsum(step[order])


def timelines_svg(
    panels: Sequence[tuple[str, Timeline]], *, styled: bool = True, width: float = 520.0
) -> str:
    """One or more timelines side by side, each ``width`` wide, with one legend for all."""
    rows = max(len(timeline.rows()) for _, timeline in panels)
    row = min(14.0, max(6.0, 420.0 / rows))
    longest = max(1, *(timeline.longest_queue() for _, timeline in panels))
    whole = len(panels) * width + (len(panels) - 1) * _GAP
    names = [_short(name) for _, timeline in panels for name, _ in timeline.classes]
    left = max(_LEFT, 14.0 + 0.95 * _LETTER * max(map(len, names)))
    entries = _legend_entries(panels, longest, whole)
    legend = _TOP + rows * row + _BOTTOM
    height = legend + (1 + entries[-1][-1]) * _LEGEND
    words = ". ".join(
        f"{title}: {timeline.in_words()}" if title else timeline.in_words()
        for title, timeline in panels
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" viewBox="0 0 {whole:g} '
        f'{height:g}" role="img" aria-label="{escape(words)}">',
        STYLE if styled else "",
        f'<rect class="page" width="{whole:g}" height="{height:g}"/>' if styled else "",
    ]
    for k, (title, timeline) in enumerate(panels):
        parts.append(f'<g transform="translate({k * (width + _GAP):g} 0)">')
        parts += _panel(title, timeline, (left, width), row, longest)
        parts.append("</g>")
    parts += _legend(entries, legend + 12.0)
    parts.append("</svg>")
    return "\n".join(filter(None, parts))


def _panel(
    title: str, timeline: Timeline, span: tuple[float, float], row: float, longest: int
) -> Iterator[str]:
    left, width = span
    drawn = timeline.rows()
    place = {client: _TOP + k * row for k, client in enumerate(drawn)}
    scale = (width - left - _RIGHT) / timeline.until
    bar = 0.56 * row
    if title:
        yield f'<text class="head" x="{left:g}" y="15">{escape(title)}</text>'
    yield from _class_names(timeline, place, row, span)
    for y in place.values():
        yield f'<rect class="idle" x="{left:g}" y="{y:.1f}" width="{width - left - _RIGHT:.1f}" height="{bar:.1f}"/>'
    yield from _bars(timeline, place, left, scale, bar)
    yield from _queue_paths(timeline, place, left, scale, bar, row - bar - 0.6, longest)
    busy, waiting = timeline.busy, timeline.waiting
    names = [name for name, count in timeline.classes for _ in range(count)]
    for client, y in place.items():
        yield (
            f'<rect class="touch" x="{left:g}" y="{y:.1f}" width="{width - left - _RIGHT:.1f}" '
            f'height="{row:.1f}"><title>client {client} ({escape(names[client])}): busy '
            f"{busy[client]:.0%}, {waiting[client]:.1f} waiting on average</title></rect>"
        )
    bottom = _TOP + len(drawn) * row + 4.0
    for tick in _ticks(timeline.until):
        x = left + tick * scale
        yield f'<path class="axis" d="M{x:.1f} {bottom:.1f}v4"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 15:.1f}">{tick:g}</text>'
    middle = left + 0.5 * (width - left - _RIGHT)
    yield f'<text class="tick" x="{middle:.1f}" y="{bottom + 31:.1f}">time (virtual units)</text>'


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _class_names(
    timeline: Timeline, place: dict[int, float], row: float, span: tuple[float, float]
) -> Iterator[str]:
    left, width = span
    first, above = 0, -math.inf
    for name, count in timeline.classes:
        own = [y for client, y in place.items() if first <= client < first + count]
        first += count
        if not own:
            continue
        middle = 0.5 * (own[0] + own[-1] + row)
        whole = f"<title>{escape(name)}</title>" if _short(name) != name else ""
        if middle - above >= 12.0:  # others would lie on one another
            above = middle
            yield (
                f'<text class="name" x="{left - 8:g}" y="{middle + 4:.1f}">{escape(_short(name))}'
                f"{whole}</text>"
            )
        if own[0] > _TOP:
            yield f'<path class="axis" d="M4 {own[0] - 0.4:.1f}H{width - _RIGHT:.1f}"/>'


def _bars(
    timeline: Timeline, place: dict[int, float], left: float, scale: float, bar: float
) -> Iterator[str]:
    """A path per shade: every bar leaves a hair to the next, where there is room."""
    levels = timeline.levels()
    begun = timeline.begin < timeline.until
    for level in range(-1, len(EDGES) + 1):
        steps = []
        for i in np.flatnonzero(begun & (levels == level)).tolist():
            y = place.get(int(timeline.client[i]))
            if y is None:
                continue
            x = left + timeline.begin[i] * scale
            long = min(float(timeline.end[i]), timeline.until) - float(timeline.begin[i])
            wide = long * scale
            wide -= 0.6 if wide > 2.0 else 0.3 * wide
            steps.append(f"M{x:.1f} {y:.1f}h{wide:.2f}v{bar:.1f}h-{wide:.2f}z")
        if steps:
            yield f'<path class="{"open" if level < 0 else f"s{level}"}" d="{"".join(steps)}"/>'


def _queue_paths(
    timeline: Timeline,
    place: dict[int, float],
    left: float,
    scale: float,
    bar: float,
    room: float,
    longest: int,
) -> Iterator[str]:
    steps = []
    for client, at, count in timeline.queues():
        if client not in place:
            continue
        base = place[client] + bar + room
        x = left + at * scale
        y = base - room * np.minimum(1.0, count / longest)
        points = [f"V{top:.1f}H{along:.1f}" for top, along in zip(y[:-1], x[1:], strict=True)]
        steps.append(f"M{x[0]:.1f} {base:.1f}{''.join(points)}V{base:.1f}z")
    if steps:
        yield f'<path class="queue" d="{"".join(steps)}"/>'


def _legend_entries(
    panels: Sequence[tuple[str, Timeline]], longest: int, whole: float
) -> list[tuple[str, str, float, int]]:
    """Class, text, place and line of every entry."""
    used = np.unique(np.concatenate([timeline.levels() for _, timeline in panels]))
    texts = [(f"s{level}", _level_name(int(level))) for level in used if level >= 0]
    if -1 in used:
        texts.append(("open", "not done"))
    if any(timeline.longest_queue() for _, timeline in panels):
        texts.append(("queue", f"tasks waiting, up to {longest}"))
    texts.append(("idle", "idle"))
    return legend_entries(texts, _KEYS, whole)


def legend_entries(
    texts: Sequence[tuple[str, str]], left: float, right: float
) -> list[tuple[str, str, float, int]]:
    """Class, text, place and line of every entry, as many in a line as there is room for.

    >>> legend_entries([("s0", "fresh"), ("idle", "idle")], 10.0, 80.0)
    [('s0', 'fresh', 10.0, 0), ('idle', 'idle', 10.0, 1)]
    """
    x, line, entries = left, 0, []
    for kind, text in texts:
        wide = 30.0 + _LETTER * len(text)
        if x + wide > right:
            x, line = left, line + 1
        entries.append((kind, text, x, line))
        x += wide
    return entries


def _legend(entries: Sequence[tuple[str, str, float, int]], top: float) -> Iterator[str]:
    yield f'<text class="key" x="4" y="{top:.1f}">staleness</text>'
    for kind, text, x, line in entries:
        y = top + line * _LEGEND
        yield f'<rect class="{kind} swatch" x="{x:.1f}" y="{y - 9:.1f}" width="14" height="9"/>'
        yield f'<text class="key" x="{x + 18:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _level_name(level: int) -> str:
    if level == 0:
        return f"< {EDGES[0]}"
    return f"{EDGES[level - 1]}+" if level == len(EDGES) else f"to {EDGES[level]}"


def _ticks(until: float) -> list[float]:
    step = 10.0 ** math.floor(math.log10(until))
    for share in (0.2, 0.5, 1.0):
        if until / (share * step) <= 6.5:
            step *= share
            break
    return [round(k * step, 12) for k in range(int(until / step * (1 + 1e-9)) + 1)]


def _rules(side: int, shades: Sequence[str]) -> str:
    ink, line, page = (("#38404d", "#d9d6d0", "#ffffff"), ("#c3cad5", "#39414e", "#11141a"))[side]
    idle = ("#f3f1ed", "#1d222b")[side]
    levels = "".join(f".timeline .s{k}{{fill:{shade}}}" for k, shade in enumerate(shades))
    return (
        f".timeline text{{fill:{ink}}}.timeline .axis{{stroke:{line}}}.timeline .page{{fill:{page}}}"
        f".timeline .idle{{fill:{idle}}}.timeline .idle.swatch{{stroke:{line}}}"
        f".timeline .queue{{fill:{QUEUE[side]}}}"
        f".timeline .open{{fill:none;stroke:{ink}}}.timeline .mark{{fill:{QUEUE[side]};stroke:{page}}}"
        f".timeline .on{{fill:{ink};stroke:{page}}}{levels}"
    )


SHAPES = (
    ".timeline text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    ".timeline .head{font-weight:650;font-size:14px}.timeline .name{text-anchor:end}"
    ".timeline .tick{text-anchor:middle}.timeline .axis{fill:none}.timeline .open{stroke-width:.7}"
    ".timeline .touch{fill:transparent}.timeline .mark{stroke-width:2}"
    ".timeline .on{font-weight:650;paint-order:stroke;stroke-width:4px;stroke-linejoin:round}"
    ".timeline .left{text-anchor:end}"
)
LIGHT_RULES, DARK_RULES = _rules(0, LIGHT), _rules(1, DARK)
STYLE = f"<style>{SHAPES}{LIGHT_RULES}@media (prefers-color-scheme: dark){{{DARK_RULES}}}</style>"

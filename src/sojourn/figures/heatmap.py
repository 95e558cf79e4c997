"""A map: how much worse than the best a quantity is, over two choices, as a value and as a picture."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np

from sojourn._support.numbers import number
from sojourn.figures.svg import LETTER, Entry, legend, legend_entries, picture
from sojourn.types import FloatArray, IntArray

EDGES = (1.05, 1.25, 1.6, 2.5, 5.0)
"""Times the best at which the shade changes."""
_WIDTH, _LEFT, _TOP, _ROW, _ASIDE = 480.0, 34.0, 34.0, 18.0, 86.0


@dataclass(frozen=True, eq=False)
class Heatmap:
    """``times[j, i]``: how many times the best it is at ``x[i]`` and ``y[j]``, infinite out of reach.

    ``ticks`` are places on the horizontal axis with what is read there; ``marks`` are named places;
    ``aside`` is one more value per ``y``, of something that has no place on the axis.
    """

    x: FloatArray
    y: FloatArray
    times: FloatArray
    x_label: str
    y_label: str
    ticks: Sequence[tuple[float, str]]
    marks: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    aside: tuple[str, FloatArray] | None = None

    def to_svg(self, *, styled: bool = True, words: str = "") -> str:
        """The picture; not ``styled``, the colours are left to the page it is put into."""
        entries = self._legend()
        bottom = _TOP + _ROW * self.y.size
        parts = [
            f'<text class="key" x="4" y="17">{escape(self.y_label)}</text>',
            *self._cells(),
            *self._axes(bottom),
            *self._marks(),
            *legend(entries, bottom + 74.0),
        ]
        return picture("timeline map", _WIDTH, bottom + 62.0, entries, words, parts, styled)

    @property
    def _span(self) -> float:
        """The width of all cells."""
        return _WIDTH - _LEFT - 10.0 - (0.0 if self.aside is None else _ASIDE + 16.0)

    @property
    def _cell(self) -> float:
        return self._span / self.x.size

    def _across(self, x: float) -> float:
        place = float(np.interp(x, self.x, np.arange(self.x.size)))
        return _LEFT + (place + 0.5) * self._cell

    def _down(self, y: float) -> float:
        place = float(np.interp(np.log(y), np.log(self.y), np.arange(self.y.size)))
        return _TOP + (self.y.size - 0.5 - place) * _ROW

    def _cells(self) -> Iterator[str]:
        for j in range(self.y.size):
            top = _TOP + (self.y.size - 1 - j) * _ROW
            yield f'<text class="name" x="{_LEFT - 8:g}" y="{top + 13:.1f}">{self.y[j]:g}</text>'
            for i, level in enumerate(levels(self.times[j]).tolist()):
                yield _cell(_LEFT + i * self._cell, top, self._cell, level, self.times[j, i])
        if self.aside is None:
            return
        name, times = self.aside
        left = _LEFT + self._span + 14.0
        yield f'<text class="tick" x="{left + _ASIDE / 2:.1f}" y="{_TOP - 8:.1f}">{escape(name)}</text>'
        for j, level in enumerate(levels(times).tolist()):
            yield _cell(left, _TOP + (self.y.size - 1 - j) * _ROW, _ASIDE, level, times[j])

    def _axes(self, bottom: float) -> Iterator[str]:
        for place, text in self.ticks:
            x = self._across(place)
            yield f'<path class="axis" d="M{x:.1f} {bottom:.1f}v5"/>'
            for k, line in enumerate(text.split("\n")):
                yield f'<text class="tick" x="{x:.1f}" y="{bottom + 18 + 14 * k:.1f}">{escape(line)}</text>'
        middle = _LEFT + self._span / 2
        yield f'<text class="tick" x="{middle:.1f}" y="{bottom + 50:.1f}">{escape(self.x_label)}</text>'

    def _marks(self) -> Iterator[str]:
        taken: list[float] = []
        for name, (x, y) in self.marks.items():
            across, down = self._across(x), self._down(y)
            left = across + 12.0 + LETTER * len(name) > _LEFT + self._span
            at = across - 8.0 if left else across + 8.0
            text = down + 4.0
            while any(abs(text - other) < 15.0 for other in taken):
                text -= 15.0
            taken.append(text)
            yield f'<circle class="mark" cx="{across:.1f}" cy="{down:.1f}" r="5"/>'
            yield (
                f'<text class="on{" left" if left else ""}" x="{at:.1f}" y="{text:.1f}">'
                f"{escape(name)}</text>"
            )

    def _legend(self) -> list[Entry]:
        seen = levels(np.append(self.times, [] if self.aside is None else self.aside[1]))
        used = sorted(np.unique(seen).tolist(), key=lambda level: level % (len(EDGES) + 2))
        texts = [(shade(level), level_text(level)) for level in used]
        return legend_entries(texts, _LEFT, _WIDTH)


def levels(times: FloatArray) -> IntArray:
    """The shade of every value, from 0 for the best; -1 out of reach."""
    shades = np.searchsorted(EDGES, times, side="right")
    return np.where(np.isfinite(times), shades, -1).astype(np.int64)


def _cell(left: float, top: float, width: float, level: int, times: float) -> str:
    text = f"{number(float(times))} times the best" if level >= 0 else level_text(level)
    return (
        f'<rect class="{shade(level)}" x="{left:.2f}" y="{top:.1f}" '
        f'width="{width - 1:.2f}" height="{_ROW - 1:g}"><title>{text}</title></rect>'
    )


def shade(level: int) -> str:
    """The best are strongest, on a light page and on a dark one."""
    return "open" if level < 0 else f"s{len(EDGES) - level}"


def level_text(level: int) -> str:
    """What a shade means."""
    if level < 0:
        return "out of reach"
    if level == 0:
        return f"within {EDGES[0] - 1:.0%}"
    if level == len(EDGES):
        return f"over {EDGES[-1]:g}×"
    return f"to {EDGES[level]:g}×"

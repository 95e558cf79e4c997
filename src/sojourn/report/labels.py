"""Where the labels of single points go, so that they cover neither curves nor one another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sojourn.figure import Series, View
from sojourn.types import FloatArray

Place = Callable[[FloatArray, FloatArray], FloatArray]
"""From data to pixels: ``x`` and ``y`` of shape ``(k,)`` to ``(k, 2)``, y upwards."""

SIDES = ((1, -1), (-1, 1), (1, 1), (-1, -1))
DISTANCES = (8.0, 26.0)
HEIGHT = 14.0
PER_LETTER = 6.2
"""Sizes in pixels of a screen, for the text of a figure."""


class Box(NamedTuple):
    """A rectangle, y upwards."""

    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: "Box") -> bool:
        """Whether two rectangles share more than an edge."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.bottom < other.top
            and other.bottom < self.top
        )

    def inside(self, other: "Box") -> bool:
        """Whether this lies wholly in another."""
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.bottom >= other.bottom
            and self.top <= other.top
        )

    def hits(self, points: FloatArray) -> int:
        """How many of the points, shape ``(k, 2)``, lie in it."""
        x, y = points[:, 0], points[:, 1]
        within = (x > self.left) & (x < self.right) & (y > self.bottom) & (y < self.top)
        return int(within.sum())


@dataclass(frozen=True)
class Label:
    """A text beside its point ``at``: on which side, how far, and what it covers."""

    series: Series
    text: str
    at: tuple[float, float]
    side: tuple[int, int]
    distance: float
    box: Box


def labels_of(view: View, place: Place, within: Box) -> list[Label]:
    """The labels of a view's points, where ``place`` turns data to pixels.

    Each goes to the first side that is free of curves, markers and earlier labels and inside
    ``within``, close by if that can be, else further off; where nothing is free, to the least bad.
    """
    marks = [
        (series, text, k)
        for series in view.series
        if series.kind == "points"
        for k, text in enumerate(series.text)
    ]
    lines = [_densely(place(s.x, s.y)) for s in view.series if s.kind in ("line", "track")]
    points = [place(s.x, s.y) for s in view.series if s.kind == "points"]
    obstacles = np.concatenate([*lines, *points]) if lines or points else np.empty((0, 2))
    placed: list[Label] = []
    for series, text, k in marks:
        at = float(series.x[k]), float(series.y[k])
        pixel = place(series.x[k : k + 1], series.y[k : k + 1])[0]
        offered = [
            Label(series, text, at, side, distance, _box(pixel, text, side, distance))
            for distance in DISTANCES
            for side in SIDES
        ]
        placed.append(min(offered, key=lambda one: _badness(one.box, placed, obstacles, within)))
    return placed


def _box(at: FloatArray, text: str, side: tuple[int, int], distance: float) -> Box:
    width = PER_LETTER * len(text)
    across, up = side
    left = at[0] + (distance if across > 0 else -distance - width)
    bottom = at[1] + (distance - HEIGHT / 2 if up > 0 else -distance - HEIGHT / 2)
    return Box(float(left), float(bottom), float(left + width), float(bottom + HEIGHT))


def _badness(box: Box, placed: Sequence[Label], obstacles: FloatArray, within: Box) -> int:
    collisions = sum(box.overlaps(other.box) for other in placed)
    return 1000 * (not box.inside(within)) + 100 * collisions + box.hits(obstacles)


def _densely(points: FloatArray) -> FloatArray:
    """Points along a curve every few pixels, so that no label slips between two of them."""
    good = points[np.isfinite(points).all(axis=1)]
    if len(good) < 2:
        return good
    lengths = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(good, axis=0).T))])
    at = np.arange(0.0, lengths[-1] + 3.0, 3.0)
    return np.column_stack([np.interp(at, lengths, good[:, k]) for k in (0, 1)])

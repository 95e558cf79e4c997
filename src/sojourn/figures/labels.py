"""Where labels go, so that they cover neither curves nor one another: at the ends of curves, beside points."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sojourn.figures.figure import Series, View
from sojourn.types import FloatArray

Place = Callable[[FloatArray, FloatArray], FloatArray]
"""From data to pixels: ``x`` and ``y`` of shape ``(k,)`` to ``(k, 2)``, y upwards."""
Box = tuple[float, float, float, float]
"""Left, bottom, right and top of a rectangle, y upwards."""
SIDES = ((1, -1), (-1, 1), (1, 1), (-1, -1))
DISTANCES = (8.0, 26.0)
HEIGHT, PER_LETTER = 14.0, 6.2
"""Size of a text and of its letters, in pixels of a screen."""


@dataclass(frozen=True)
class EndLabel:
    """The label of a curve: its last value on the axis, and how many pixels above it the text stands."""

    series: Series
    value: float
    shift: float


def end_labels(view: View, height: float, gap: float) -> list[EndLabel]:
    """Labels at the right end of curves, at least ``gap`` pixels apart on an axis ``height`` high."""
    ends: list[tuple[Series, float]] = []
    for series in view.series:
        good = np.isfinite(series.y) & ((series.y > 0) | (not view.log_y))
        if series.kind in ("line", "track") and series.weight != "background" and good.any():
            last = float(series.y[good][-1])
            ends.append((series, float(np.log10(last)) if view.log_y else last))
    low, high = view.range_of_y()
    positions = [(value - low) * height / (high - low) for _, value in ends]
    placed = spread(positions, gap, height)
    return [
        EndLabel(series, value, to - at)
        for (series, value), at, to in zip(ends, positions, placed, strict=True)
    ]


def spread(positions: list[float], gap: float, height: float = np.inf) -> list[float]:
    """Positions at least ``gap`` apart, in their order, moved little, and inside the span if they fit.

    >>> spread([20.0, 21.0, 70.0], 10.0), spread([2.0, 30.0, 45.0], 10.0, 40.0)
    ([15.5, 25.5, 70.0], [5.0, 25.0, 35.0])
    """
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    groups: list[list[int]] = []
    for i in order:
        group = [i]
        while (
            groups
            and _centre(group, positions) - _centre(groups[-1], positions)
            < gap * (len(group) + len(groups[-1])) / 2
        ):
            group = groups.pop() + group
        groups.append(group)
    placed = list(positions)
    for group in groups:
        for rank, i in enumerate(group):
            placed[i] = _centre(group, positions) + gap * (rank - (len(group) - 1) / 2)
    if np.isfinite(height):
        most = height - gap / 2
        for i in reversed(order):
            placed[i] = min(placed[i], most)
            most = placed[i] - gap
        least = gap / 2
        for i in order:
            placed[i] = max(placed[i], least)
            least = placed[i] + gap
    return placed


def _centre(group: list[int], positions: list[float]) -> float:
    return sum(positions[i] for i in group) / len(group)


@dataclass(frozen=True)
class PointLabel:
    """A text beside its point ``at``: on which side, and how far."""

    series: Series
    text: str
    at: tuple[float, float]
    side: tuple[int, int]
    distance: float


def point_labels(view: View, place: Place, within: Box) -> list[PointLabel]:
    """The labels of a view's points, where ``place`` turns data to pixels.

    Each goes to the first side that is free of curves, markers and earlier labels and inside
    ``within``, close by if that can be, else further off; where nothing is free, to the least bad.
    """
    obstacles = np.concatenate(
        [
            np.empty((0, 2)),
            *(_densely(place(s.x, s.y)) for s in view.series if s.kind in ("line", "track")),
            *(place(s.x, s.y) for s in view.series if s.kind == "points"),
        ]
    )
    labels: list[PointLabel] = []
    taken: list[Box] = []
    for series in view.series:
        for k, text in enumerate(series.text if series.kind == "points" else ()):
            pixel = place(series.x[k : k + 1], series.y[k : k + 1])[0]
            offered = {
                (side, distance): _box(pixel, text, side, distance)
                for distance in DISTANCES
                for side in SIDES
            }
            side, distance = min(
                offered, key=lambda choice: _badness(offered[choice], taken, obstacles, within)
            )
            taken.append(offered[side, distance])
            at = float(series.x[k]), float(series.y[k])
            labels.append(PointLabel(series, text, at, side, distance))
    return labels


def _box(at: FloatArray, text: str, side: tuple[int, int], distance: float) -> Box:
    width = PER_LETTER * len(text)
    left = float(at[0]) + (distance if side[0] > 0 else -distance - width)
    bottom = float(at[1]) + side[1] * distance - HEIGHT / 2
    return left, bottom, left + width, bottom + HEIGHT


def _badness(box: Box, taken: list[Box], obstacles: FloatArray, within: Box) -> int:
    left, bottom, right, top = box
    outside = left < within[0] or bottom < within[1] or right > within[2] or top > within[3]
    overlaps = sum(left < r and x < right and bottom < t and y < top for x, y, r, t in taken)
    x, y = obstacles.T
    covered = (x > left) & (x < right) & (y > bottom) & (y < top)
    return 1000 * outside + 100 * overlaps + int(covered.sum())


def _densely(points: FloatArray) -> FloatArray:
    """Points along a curve every few pixels, so that no label slips between two of them."""
    good = points[np.isfinite(points).all(axis=1)]
    if len(good) < 2:
        return good
    lengths = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(good, axis=0).T))])
    at = np.arange(0.0, lengths[-1] + 3.0, 3.0)
    return np.column_stack([np.interp(at, lengths, good[:, k]) for k in (0, 1)])

"""A figure as a plain value: what is drawn, before any library draws it."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from sojourn.errors import InvalidFile, MissingExtra, UnknownName
from sojourn.palette import Ink
from sojourn.types import FloatArray

Kind = Literal["line", "track", "points", "bars"]
"""A curve, a curve through marked points, points alone, bars."""


@dataclass(frozen=True, eq=False)
class Series:
    """One curve, set of points or set of bars; ``low`` and ``high`` bound a band around a curve.

    ``name`` decides the colour (see `sojourn.palette`), ``label`` is what is read. ``text``
    labels the points of a series of points, or names the bars.
    """

    name: str
    x: FloatArray
    y: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None
    kind: Kind = "line"
    label: str = ""
    text: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        x: ArrayLike,
        y: ArrayLike,
        *,
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
        kind: Kind = "line",
        label: str = "",
        text: tuple[str, ...] = (),
    ) -> None:
        arrays = {"x": x, "y": y, "low": low, "high": high}
        for key, values in arrays.items():
            array = None if values is None else np.asarray(values, dtype=np.float64)
            object.__setattr__(self, key, array)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "label", label or name)
        object.__setattr__(self, "text", tuple(text))


@dataclass(frozen=True, eq=False)
class View:
    """One way to look at a figure: its series against one axis.

    ``metric`` and ``axis`` name the view on the page's switches ("accuracy", "time"); a figure
    with a single view leaves them empty.
    """

    x_label: str
    y_label: str
    series: tuple[Series, ...]
    metric: str = ""
    axis: str = ""
    log_x: bool = False
    log_y: bool = False
    percent: bool = False
    categories: tuple[str, ...] = ()

    def range_of_y(self) -> tuple[float, float]:
        """The span of the vertical axis, in powers of ten when it is logarithmic.

        Curves are always inside; a band is cut where it would more than double what they need.
        """
        curves = self._scaled([s.y for s in self.series])
        if curves.size == 0:
            return 0.0, 1.0
        bands = self._scaled([e for s in self.series for e in (s.low, s.high) if e is not None])
        low, high = float(curves.min()), float(curves.max())
        room = max(high - low, 1e-9 * max(abs(high), 1.0))
        if bands.size:
            low = max(min(low, float(bands.min())), low - 0.5 * room)
            high = min(max(high, float(bands.max())), high + 0.5 * room)
        if not self.log_y and any(s.kind == "bars" for s in self.series):
            low, high = min(low, 0.0), max(high, 0.0)
        pad = 0.05 * max(high - low, 1e-9 * max(abs(high), 1.0))
        bottom = low if low == 0.0 and not self.log_y else low - pad
        return bottom, high if high == 0.0 and not self.log_y and low < 0.0 else high + pad

    def _scaled(self, arrays: list[FloatArray]) -> FloatArray:
        values = np.concatenate([np.ravel(a) for a in arrays]) if arrays else np.empty(0)
        if self.log_y:
            values = np.log10(values[values > 0])
        return np.asarray(values[np.isfinite(values)], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Figure:
    """A titled figure: ``alt`` says in words what a reader who cannot see it should know.

    ``palette`` gives series inks of their own; it belongs to who shows the figure, not to its file.
    """

    name: str
    title: str
    alt: str
    views: tuple[View, ...]
    caption: str = ""
    wide: bool = False
    palette: Mapping[str, Ink] = field(default_factory=dict)

    def view(self, metric: str | None = None, axis: str | None = None) -> View:
        """The view of that metric and axis; the first, where they are left out."""
        for view in self.views:
            if metric in (None, view.metric) and axis in (None, view.axis):
                return view
        offered = [" ".join(filter(None, (view.metric, view.axis))) for view in self.views]
        raise UnknownName("view", " ".join(filter(None, (metric, axis))), offered)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        metric: str | None = None,
        axis: str | None = None,
        size: tuple[float, float] = (6.4, 3.9),
    ) -> Path:
        """Draw a view into ``path`` (png, svg or pdf), ``size`` inches large."""
        target = Path(path)
        _drawing().save_view(self, self.view(metric, axis), target, size=size)
        return target

    def _repr_svg_(self) -> str:
        return str(_drawing().svg_of(self, self.views[0]))

    def __repr__(self) -> str:
        names = [" ".join(filter(None, (view.metric, view.axis))) for view in self.views]
        views = f", views {', '.join(names)}" if len(names) > 1 else ""
        return f"Figure({self.title!r}{views}: {self.alt})"

    def to_json(self, digits: int = 6) -> dict[str, Any]:
        """The figure as JSON-ready values; numbers keep so many significant digits."""
        return {
            "name": self.name,
            "title": self.title,
            "alt": self.alt,
            "caption": self.caption,
            "wide": self.wide,
            "views": [
                {**_fields(view), "series": [_series_to_json(s, digits) for s in view.series]}
                for view in self.views
            ],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Figure":
        """Read back what `to_json` wrote."""
        try:
            views = tuple(_view_from_json(view) for view in values["views"])
            name, title, alt = (str(values[key]) for key in ("name", "title", "alt"))
            return cls(name, title, alt, views, str(values["caption"]), bool(values["wide"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidFile(f"a stored figure is not as Sojourn writes it: {error!r}") from error


@dataclass(frozen=True)
class Table:
    """A table of text: the first column names the row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """The table as JSON-ready values."""
        return {
            "title": self.title,
            "note": self.note,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Table":
        """Read back what `to_json` wrote."""
        try:
            return cls(
                tuple(map(str, values["columns"])),
                tuple(tuple(map(str, row)) for row in values["rows"]),
                title=str(values["title"]),
                note=str(values["note"]),
            )
        except (KeyError, TypeError) as error:
            raise InvalidFile(f"a stored table is not as Sojourn writes it: {error!r}") from error


def _drawing() -> Any:
    """What draws figures, loaded when one is drawn."""
    try:
        from sojourn.report import matplotlib_figure
    except ImportError as error:
        raise MissingExtra(error.name or "matplotlib", extra="report") from error
    return matplotlib_figure


def spread(positions: list[float], gap: float) -> list[float]:
    """Move positions apart to at least ``gap``, keeping their order and their centre.

    >>> spread([0.0, 1.0, 50.0], 10.0)
    [-4.5, 5.5, 50.0]
    """
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    groups: list[tuple[list[int], float]] = []
    for i in order:
        members, centre = [i], positions[i]
        while groups and centre - groups[-1][1] < gap * (len(members) + len(groups[-1][0])) / 2:
            before, _ = groups.pop()
            members = before + members
            centre = sum(positions[j] for j in members) / len(members)
        groups.append((members, centre))
    placed = list(positions)
    for members, centre in groups:
        for rank, i in enumerate(members):
            placed[i] = centre + gap * (rank - (len(members) - 1) / 2)
    return placed


def inside(positions: list[float], gap: float, height: float) -> list[float]:
    """Positions ``gap`` apart pushed together where they leave the span from 0 to ``height``.

    >>> inside([2.0, 30.0, 45.0], 10.0, 40.0)
    [5.0, 25.0, 35.0]
    """
    placed = list(positions)
    order = sorted(range(len(placed)), key=lambda i: placed[i])
    most = height - gap / 2
    for i in reversed(order):
        placed[i] = min(placed[i], most)
        most = placed[i] - gap
    least = gap / 2
    for i in order:
        placed[i] = max(placed[i], least)
        least = placed[i] + gap
    return placed


def _fields(view: View) -> dict[str, Any]:
    return {
        "x_label": view.x_label,
        "y_label": view.y_label,
        "metric": view.metric,
        "axis": view.axis,
        "log_x": view.log_x,
        "log_y": view.log_y,
        "percent": view.percent,
        "categories": list(view.categories),
    }


def _series_to_json(series: Series, digits: int) -> dict[str, Any]:
    values: dict[str, Any] = {"name": series.name, "label": series.label, "kind": series.kind}
    for key in ("x", "y", "low", "high"):
        array = getattr(series, key)
        values[key] = None if array is None else [_rounded(v, digits) for v in array.tolist()]
    values["text"] = list(series.text)
    return values


def _rounded(value: float, digits: int) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _view_from_json(values: Mapping[str, Any]) -> View:
    series = tuple(
        Series(
            s["name"],
            _array(s["x"]),
            _array(s["y"]),
            low=None if s["low"] is None else _array(s["low"]),
            high=None if s["high"] is None else _array(s["high"]),
            kind=s["kind"],
            label=s["label"],
            text=tuple(s["text"]),
        )
        for s in values["series"]
    )
    others = {key: values[key] for key in _fields(View("", "", ())) if key != "categories"}
    return View(series=series, categories=tuple(values["categories"]), **others)


def _array(values: list[float | None]) -> FloatArray:
    return np.array([math.nan if v is None else v for v in values], dtype=np.float64)

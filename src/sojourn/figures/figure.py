"""A figure as a plain value: what is drawn, before any library draws it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from sojourn.errors import UnknownName, naming_extras
from sojourn.figures.palette import GREY, Ink, inks
from sojourn.types import FloatArray

Kind = Literal["line", "track", "points", "bars"]
"""A curve, a curve through marked points, points alone, bars."""
Weight = Literal["pick", "strong", "thin", "background"]
"""A curve in its colour; thin and grey with its label; the same without a label."""


@dataclass(frozen=True, eq=False)
class Series:
    """One curve, set of points or set of bars; ``low`` and ``high`` bound a band around a curve.

    ``name`` decides the colour (see `sojourn.figures.palette`), ``label`` is what is read. ``text``
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
    weight: Weight = "strong"

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
        weight: Weight = "strong",
    ) -> None:
        for key, values in {"x": x, "y": y, "low": low, "high": high}.items():
            array = None if values is None else np.asarray(values, dtype=np.float64)
            object.__setattr__(self, key, array)
        texts = {"name": name, "kind": kind, "label": label or name, "text": tuple(text)}
        for key, value in {**texts, "weight": weight}.items():
            object.__setattr__(self, key, value)

    @property
    def is_strong(self) -> bool:
        """Whether it has a colour of its own; the pick of several is drawn strongest."""
        return self.weight in ("pick", "strong")


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

    def inks(self, palette: Mapping[str, Ink] | None = None) -> dict[str, Ink]:
        """How each series is drawn, by name; curves that are not strong are grey."""
        names = [series.name for series in self.series if series.is_strong]
        # The grey of uniform routing is nobody else's where others are grey.
        strong = inks([*names, "uniform"] if len(names) < len(self.series) else names, palette)
        return {s.name: strong[s.name] if s.is_strong else GREY for s in self.series}

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
        _drawing().save_view(self, self.view(metric, axis), [target], size=size)
        return target

    def _repr_svg_(self) -> str:
        return str(_drawing().svg_of(self, self.views[0]))

    def __repr__(self) -> str:
        names = [" ".join(filter(None, (view.metric, view.axis))) for view in self.views]
        views = f", views {', '.join(names)}" if len(names) > 1 else ""
        return f"Figure({self.title!r}{views}: {self.alt})"


@dataclass(frozen=True)
class Table:
    """A table of text: the first column names the row.

    ``groups`` are headings, each with how many of the rows come below it.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    note: str = ""
    groups: tuple[tuple[str, int], ...] = ()


def _drawing() -> ModuleType:
    """What draws figures, loaded when one is drawn."""
    with naming_extras():
        from sojourn.figures import matplotlib_figure
    return matplotlib_figure

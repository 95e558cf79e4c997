"""Figures drawn by matplotlib: PNG and SVG files beside the page, for papers and slides."""

import io
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import PercentFormatter

from sojourn.figure import Figure, Series, View, inside, spread
from sojourn.files import replacing
from sojourn.palette import DASHES, FAINT, Ink, inks
from sojourn.report.labels import DISTANCES, Box, labels_of
from sojourn.types import FloatArray

_MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "cross": "P",
    "x": "X",
    "star": "*",
}
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa1ac",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8ec",
    "svg.fonttype": "path",
    "svg.hashsalt": "sojourn",
    "pdf.fonttype": 42,
}
SUFFIXES = ("png", "svg")
MANY = 24
"""Views from which on starting processes pays."""
_SIZE = (6.4, 3.9)
_LABEL_GAP = 13.0
NARROW, SMALL = 4.5, 7.5
"""Inches up to which a figure has small text, and its size in points."""


def save_all(figures: Iterable[Figure], folder: Path, *, jobs: int = 1) -> list[Path]:
    """Write each view of the figures as PNG and SVG into ``folder``; returns the files.

    With ``jobs`` above 1 and many views, as many processes draw.
    """
    views = [
        (figure, view, folder / "-".join(filter(None, (figure.name, view.metric, view.axis))))
        for figure in figures
        for view in figure.views
    ]
    if jobs == 1 or len(views) < MANY:
        return [path for one in views for path in _save_both(one)]
    with ProcessPoolExecutor(min(jobs, len(views)), mp_context=get_context("spawn")) as pool:
        return [path for paths in pool.map(_save_both, views, chunksize=4) for path in paths]


def save_view(
    figure: Figure, view: View, target: Path, *, size: tuple[float, float] = _SIZE
) -> Path:
    """Write one view of a figure, ``size`` inches large.

    The suffix of ``target`` (png, svg, pdf) chooses the format. Text is as large as in a paper where
    the figure is as narrow as a column.
    """
    style = {**_STYLE, "font.size": _STYLE["font.size"] if size[0] > NARROW else SMALL}
    with rc_context(style):
        return _save(_draw(figure, view, size), figure, target)


def svg_of(figure: Figure, view: View) -> str:
    """One view of a figure as SVG, for notebooks and pages."""
    text = io.StringIO()
    with rc_context(_STYLE):
        metadata = {"Title": figure.title, "Date": None, "Description": figure.alt}
        _draw(figure, view).savefig(text, format="svg", metadata=metadata)
    return text.getvalue()


def _save_both(one: tuple[Figure, View, Path]) -> list[Path]:
    """Draw a view once, and write it in both formats."""
    figure, view, stem = one
    with rc_context(_STYLE):
        canvas = _draw(figure, view)
        return [
            _save(canvas, figure, stem.with_name(f"{stem.name}.{suffix}")) for suffix in SUFFIXES
        ]


def _save(canvas: Canvas, figure: Figure, target: Path) -> Path:
    suffix = target.suffix.lstrip(".") or "png"
    metadata = {"Title": figure.title}
    if suffix == "svg":
        metadata |= {"Date": None, "Description": figure.alt}  # type: ignore[dict-item]
    if suffix == "pdf":
        metadata |= {"CreationDate": None}  # type: ignore[dict-item]
    with replacing(target) as temporary:
        canvas.savefig(temporary, format=suffix, dpi=160, metadata=metadata)
    return target


def _draw(figure: Figure, view: View, size: tuple[float, float] = _SIZE) -> Canvas:
    canvas = Canvas(figsize=size, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    ink = inks((series.name for series in view.series), figure.palette)
    bars = [series for series in view.series if series.kind == "bars"]
    for series in view.series:
        _draw_series(axes, series, ink[series.name], bars)
    low, high = view.range_of_y()
    if view.log_x:
        axes.set_xscale("log")
    if view.log_y:
        axes.set_yscale("log")
        axes.set_ylim(10**low, 10**high)
    else:
        axes.set_ylim(low, high)
    if view.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if view.categories:
        axes.set_xticks(range(len(view.categories)), view.categories)
        axes.grid(axis="x", visible=False)
    axes.set_xlabel(view.x_label)
    axes.set_ylabel(view.y_label)
    if figure.title:
        axes.set_title(
            figure.title,
            loc="left",
            fontsize=11 if size[0] > NARROW else "medium",
            fontweight="bold",
        )
    if any(series.kind in ("line", "track") for series in view.series):
        _label_ends(canvas, axes, view, ink)
    elif len(view.series) > 1:
        axes.legend(frameon=False, fontsize=9)
    if any(series.text for series in view.series if series.kind == "points"):
        _label_points(canvas, axes, view, ink)
    canvas.draw_without_rendering()
    canvas.set_layout_engine("none")  # it has found its places, and every file would seek them anew
    return canvas


def _draw_series(axes: Axes, series: Series, ink: Ink, bars: list[Series]) -> None:
    if series.kind == "bars":
        width = 0.8 / len(bars)
        shift = (bars.index(series) - (len(bars) - 1) / 2) * width
        axes.bar(series.x + shift, series.y, width * 0.92, color=ink.light, label=series.label)
    elif series.kind == "points":
        axes.plot(
            series.x,
            series.y,
            _MARKERS[ink.marker],
            color=ink.light,
            markersize=6,
            label=series.label,
        )
    else:
        if series.low is not None and series.high is not None:
            axes.fill_between(
                series.x, series.low, series.high, color=ink.light, alpha=0.15, linewidth=0
            )
        faint = series.name == FAINT
        every = 1 if series.kind == "track" else max(1, series.x.size // 8)
        axes.plot(
            series.x,
            series.y,
            linestyle=(0, DASHES[ink.dash]) if DASHES[ink.dash] else "-",
            color=ink.light,
            linewidth=0.8 if faint else 1.8,
            marker=_MARKERS[ink.marker],
            markersize=2 if faint else 4.5,
            markevery=every,
        )


def _label_ends(canvas: Canvas, axes: Axes, view: View, ink: dict[str, Ink]) -> None:
    """Label curves at their right end, moved apart where the labels would overlap."""
    canvas.draw_without_rendering()
    ends: list[tuple[Series, float]] = []
    for series in view.series:
        good = np.isfinite(series.y) & ((series.y > 0) | (not view.log_y))
        if series.kind in ("line", "track") and series.name != FAINT and good.any():
            point = (float(series.x[good][-1]), float(series.y[good][-1]))
            ends.append((series, float(axes.transData.transform(point)[1])))
    per_point = canvas.dpi / 72.0
    bottom, top = axes.bbox.y0, axes.bbox.y1
    gap = _LABEL_GAP * per_point
    placed = inside(spread([at - bottom for _, at in ends], gap), gap, top - bottom)
    for (series, _), to in zip(ends, placed, strict=True):
        axes.annotate(
            series.label,
            (1.0, to / (top - bottom)),
            xycoords="axes fraction",
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize="medium" if canvas.get_figwidth() <= NARROW else 9,
            color=ink[series.name].light,
            annotation_clip=False,
        )


def _label_points(canvas: Canvas, axes: Axes, view: View, ink: dict[str, Ink]) -> None:
    """Label single points beside them, with a thin line to those whose label is further off."""
    canvas.draw_without_rendering()
    per_point = canvas.dpi / 72.0

    def place(x: FloatArray, y: FloatArray) -> FloatArray:
        pixels = axes.transData.transform(np.column_stack([x, y]))
        return np.asarray(pixels / per_point, dtype=np.float64)

    within = Box(*(float(edge) / per_point for edge in axes.bbox.extents))
    for label in labels_of(view, place, within):
        across, up = label.side
        leader = {"arrowstyle": "-", "linewidth": 0.6, "color": ink[label.series.name].light}
        axes.annotate(
            label.text,
            label.at,
            xytext=(across * label.distance, up * label.distance),
            textcoords="offset points",
            ha="left" if across > 0 else "right",
            va="center",
            fontsize=9,
            color=ink[label.series.name].light,
            arrowprops=leader if label.distance > DISTANCES[0] else None,
            annotation_clip=False,
        )

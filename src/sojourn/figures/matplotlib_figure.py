"""What matplotlib draws: figures, timelines and partitions as PNG, SVG and PDF files."""

import io
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from sojourn._support.files import file_name, replacing
from sojourn.figures.figure import Figure, Series, View
from sojourn.figures.labels import DISTANCES, end_labels, point_labels
from sojourn.figures.palette import DASHES, Ink
from sojourn.figures.svg import LIGHT, QUEUE
from sojourn.figures.timeline import AXES, Timeline
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
    "text.hinting": "none",  # texts as wide at every resolution, so that none is cut
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa1ac",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "grid.color": "#e6e8ec",
    "svg.fonttype": "path",
    "svg.hashsalt": "sojourn",
    "pdf.fonttype": 42,
}
SUFFIXES = ("png", "svg")
MANY = 24
"""Views from which on starting processes pays."""
_SIZE = (6.4, 3.9)
_DPI = 160
_LABEL, _LABEL_GAP, _LEAST_GAP = 9.0, 1.4, 1.15
"""Points of a label, the distance of labels as a multiple of that, and the least such multiple."""
NARROW, SMALL = 4.5, 7.5
"""Inches up to which a figure has small text, and its size in points."""
_LARGEST_DOT = 120.0
LEAST_WIDTH = 0.5
"""Part of a figure's width that belongs to the axes; labels that need more become a legend."""
MOST_IN_LEGEND = 10
"""More names would leave no height to the curves; they stay at the ends."""
_LEGEND_HANDLE = 6
"""Characters that the line before a name in a legend takes."""


def save_all(figures: Iterable[Figure], folder: Path, *, jobs: int = 1) -> list[Path]:
    """Write each view of the figures as PNG and SVG into ``folder``; returns the files.

    With ``jobs`` above 1 and many views, as many processes draw.
    """
    views = []
    for figure in figures:
        for view in figure.views:
            # Metrics are named by whoever made the run.
            name = file_name("-".join((figure.name, view.metric, view.axis)))
            views.append((figure, view, [folder / f"{name}.{suffix}" for suffix in SUFFIXES]))
    if jobs == 1 or len(views) < MANY:
        return [path for one in views for path in save_view(*one)]
    with ProcessPoolExecutor(min(jobs, len(views)), mp_context=get_context("spawn")) as pool:
        drawn = pool.map(save_view, *zip(*views, strict=True), chunksize=4)
        return [path for paths in drawn for path in paths]


def save_view(
    figure: Figure, view: View, targets: Sequence[Path], *, size: tuple[float, float] = _SIZE
) -> Sequence[Path]:
    """Draw one view of a figure, ``size`` inches large, and write it into each of ``targets``.

    Their suffixes (png, svg, pdf) choose the formats. Text is as large as in a paper where the figure
    is as narrow as a column.
    """
    style = {**_STYLE, "font.size": _STYLE["font.size"] if size[0] > NARROW else SMALL}
    with _styled(style):
        canvas = _draw(figure, view, size)
        for target in targets:
            _save(canvas, figure, target)
    return targets


def svg_of(figure: Figure, view: View) -> str:
    """One view of a figure as SVG, for notebooks and pages."""
    text = io.StringIO()
    with _styled(_STYLE):
        _draw(figure, view).savefig(text, format="svg", metadata=_metadata(figure, "svg"))
    return text.getvalue()


def save_timelines(panels: Sequence[tuple[str, Timeline]], path: Path) -> None:
    """Draw timelines side by side into the PNG file ``path``."""
    with _styled({**_STYLE, "axes.grid": False, "axes.spines.left": False}):
        shown = [(title, timeline.sampled()) for title, timeline in panels]
        rows = max(timeline.clients for _, timeline in shown)
        canvas = _canvas((7.2 * len(panels), 1.4 + 0.15 * rows))
        longest = max(1, *(timeline.longest_queue() for _, timeline in shown))
        for k, (title, timeline) in enumerate(shown, start=1):
            _draw_timeline(canvas.add_subplot(1, len(shown), k), title, timeline, longest)
        with replacing(path) as temporary:
            canvas.savefig(temporary, format="png", dpi=_DPI)


def save_partition(table: NDArray[np.int64], path: Path, *, title: str) -> None:
    """Draw ``table`` (clients x labels) as dots whose area is the number of samples, PNG or SVG."""
    clients, labels = table.shape
    with _styled({**_STYLE, "axes.grid": False}):
        size = max(4.0, min(14.0, 1.6 + 0.28 * clients)), max(3.0, 1.2 + 0.22 * min(labels, 40))
        canvas = _canvas(size)
        axes = canvas.add_subplot()
        client, label = np.nonzero(table)
        area = table[client, label] / max(1, int(table.max())) * _LARGEST_DOT
        axes.scatter(client, label, s=area, color="#0064a4", linewidths=0)
        axes.set(
            xlim=(-0.8, clients - 0.2), ylim=(-0.8, labels - 0.2), xlabel="client", ylabel="label"
        )
        held = table.sum(1)
        axes.set_title(
            f"{title}\nlargest dot: {table.max():,} samples; clients have {held.min():,} to "
            f"{held.max():,}",
            fontsize=10,
        )
        with replacing(path) as temporary:
            canvas.savefig(temporary, format=path.suffix.removeprefix("."), dpi=_DPI)


@contextmanager
def _styled(style: Any) -> Iterator[None]:
    """Within, figures look like this everywhere: a ``matplotlibrc`` in the working folder changes nothing."""
    with rc_context():
        rcdefaults()
        rcParams.update(style)
        yield


def _canvas(size: tuple[float, float]) -> Canvas:
    canvas = Canvas(figsize=size, layout="constrained")
    FigureCanvasAgg(canvas)
    return canvas


def _find_layout(canvas: Canvas) -> None:
    """Find the places of everything, without drawing it."""
    engine = canvas.get_layout_engine()
    if engine is not None:
        engine.execute(canvas)


def _save(canvas: Canvas, figure: Figure, target: Path) -> None:
    """Write a figure whose layout is found. ``savefig`` would draw it twice, to find its layout first."""
    suffix = target.suffix.lstrip(".") or "png"
    described = {"metadata": _metadata(figure, suffix)}
    with replacing(target) as temporary:
        if suffix == "png":
            canvas.dpi = _DPI
            png: Any = FigureCanvasAgg(canvas)
            png.print_png(str(temporary), **described)
        elif suffix == "svg":
            svg: Any = FigureCanvasSVG(canvas)
            svg.print_svg(str(temporary), **described)
        else:
            canvas.savefig(temporary, format=suffix, dpi=_DPI, **described)


def _metadata(figure: Figure, suffix: str) -> Any:
    """Title and words of the picture, and no date: the same figure is the same file."""
    more: dict[str, dict[str, str | None]] = {
        "svg": {"Date": None, "Description": figure.alt},
        "pdf": {"CreationDate": None},
    }
    return {"Title": figure.title, **more.get(suffix, {})}


def _draw(figure: Figure, view: View, size: tuple[float, float] = _SIZE) -> Canvas:
    canvas = _canvas(size)
    axes = canvas.add_subplot()
    ink = view.inks(figure.palette)
    bars = [series for series in view.series if series.kind == "bars"]
    for series in view.series:
        _draw_series(axes, series, ink[series.name], bars)
    low, high = view.range_of_y()
    if view.log_x:
        axes.set_xscale("log")
    if view.log_y:
        axes.set_yscale("log")
        low, high = 10**low, 10**high
    axes.set(ylim=(low, high), xlabel=view.x_label, ylabel=view.y_label)
    if view.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if view.categories:
        axes.set_xticks(range(len(view.categories)), view.categories)
        axes.grid(axis="x", visible=False)
    if figure.title:
        axes.set_title(figure.title, fontsize=11 if size[0] > NARROW else "medium")
    if any(series.kind in ("line", "track") for series in view.series):
        _label_ends(canvas, axes, view, ink)
    elif len(view.series) > 1:
        axes.legend(frameon=False, fontsize=9)
    if any(series.text for series in view.series if series.kind == "points"):
        _label_points(canvas, axes, view, ink)
    _find_layout(canvas)
    canvas.set_layout_engine("none")  # the places are found; every further file would search anew
    return canvas


def _draw_series(axes: Axes, series: Series, ink: Ink, bars: list[Series]) -> None:
    common: Any = {"color": ink.light, "label": series.label}
    if series.kind == "bars":
        width = 0.8 / len(bars)
        shift = (bars.index(series) - (len(bars) - 1) / 2) * width
        axes.bar(series.x + shift, series.y, width * 0.92, **common)
        return
    if series.kind == "points":
        axes.plot(series.x, series.y, _MARKERS[ink.marker], markersize=6, **common)
        return
    if series.low is not None and series.high is not None:
        band: Any = {"color": ink.light, "alpha": 0.15, "linewidth": 0}
        axes.fill_between(series.x, series.low, series.high, **band)
    faint, pick = not series.is_strong, series.weight == "pick"
    axes.plot(
        series.x,
        series.y,
        linestyle=(0, DASHES[ink.dash]) if DASHES[ink.dash] and not pick else "-",
        linewidth=0.8 if faint else 2.2 if pick else 1.6,
        marker=_MARKERS[ink.marker],
        markersize=(0 if series.weight == "thin" else 2) if faint else 4.5,
        alpha=0.6 if series.weight == "thin" else 1.0,
        markevery=1 if series.kind == "track" else max(1, series.x.size // 8),
        **common,
    )


def _label_ends(canvas: Canvas, axes: Axes, view: View, ink: dict[str, Ink]) -> None:
    """Label curves at their right end, moved apart where the labels would overlap.

    Where long names would leave too little width for the curves, a legend below names them instead.
    """
    _find_layout(canvas)
    height, per_point = float(axes.bbox.height), canvas.dpi / 72.0
    size = SMALL if canvas.get_figwidth() <= NARROW else _LABEL
    gap = min(_LABEL_GAP * size, height / per_point / max(1, len(view.series)))
    labels = [
        axes.annotate(
            label.series.label,
            (1.0, 10**label.value if view.log_y else label.value),
            xycoords=("axes fraction", "data"),
            xytext=(5, label.shift / per_point),
            textcoords="offset points",
            va="center",
            fontsize=min(size, gap / _LEAST_GAP),
            color=ink[label.series.name].light,
            annotation_clip=False,
        )
        for label in end_labels(view, height, gap * per_point)
    ]
    _find_layout(canvas)
    if len(labels) <= MOST_IN_LEGEND and axes.bbox.width < LEAST_WIDTH * canvas.bbox.width:
        for label in labels:
            label.remove()
        _add_legend_below(canvas, axes)


def _add_legend_below(canvas: Canvas, axes: Axes) -> None:
    """A legend below the axes, in as many columns as fit; names wider than the figure are wrapped."""
    size = "small" if canvas.get_figwidth() <= NARROW else 9
    lines, names = axes.get_legend_handles_labels()
    characters = int(canvas.get_figwidth() * 72.0 / (0.55 * SMALL)) - _LEGEND_HANDLE
    wrapped = [textwrap.fill(name, characters) for name in names]
    for columns in (3, 2, 1):
        legend = canvas.legend(
            lines,
            wrapped,
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=size,
            handlelength=1.8,
            columnspacing=1.0,
            labelspacing=0.25,
        )
        _find_layout(canvas)
        if columns == 1 or legend.get_window_extent().width <= canvas.bbox.width:
            return
        legend.remove()


def _label_points(canvas: Canvas, axes: Axes, view: View, ink: dict[str, Ink]) -> None:
    """Label single points beside them, with a thin line to those whose label is further off."""
    canvas.draw_without_rendering()
    per_point = canvas.dpi / 72.0

    def place(x: FloatArray, y: FloatArray) -> FloatArray:
        pixels = axes.transData.transform(np.column_stack([x, y]))
        return np.asarray(pixels / per_point, dtype=np.float64)

    left, bottom, right, top = (float(edge) / per_point for edge in axes.bbox.extents)
    for label in point_labels(view, place, (left, bottom, right, top)):
        across, up = label.side
        colour = ink[label.series.name].light
        leader = {"arrowstyle": "-", "linewidth": 0.6, "color": colour}
        axes.annotate(
            label.text,
            label.at,
            xytext=(across * label.distance, up * label.distance),
            textcoords="offset points",
            ha="left" if across > 0 else "right",
            va="center",
            fontsize=9,
            color=colour,
            arrowprops=leader if label.distance > DISTANCES[0] else None,
            annotation_clip=False,
        )


def _draw_timeline(axes: Axes, title: str, timeline: Timeline, longest: int) -> None:
    levels = timeline.levels()
    for row in range(timeline.clients):
        tasks = np.flatnonzero((timeline.client == row) & (timeline.begin < timeline.until))
        begin, end = timeline.begin[tasks], np.minimum(timeline.end[tasks], timeline.until)
        spans = np.column_stack([begin, end - begin]).tolist()
        colours = [LIGHT[level] if level >= 0 else "#ffffff" for level in levels[tasks].tolist()]
        axes.broken_barh(spans, (row, 0.58), facecolors=colours, edgecolor="white", linewidth=0.2)
    for row, at, count in timeline.queues():
        top = row + 0.97 - 0.36 * np.minimum(1.0, count / longest)
        axes.fill_between(at, row + 0.97, top, step="post", color=QUEUE[0], linewidth=0)
    axes.set(
        xlim=(0, timeline.until),
        ylim=(timeline.clients, 0),
        yticks=[],
        xlabel=AXES[timeline.unit],
        ylabel="client",
        title=title,
    )

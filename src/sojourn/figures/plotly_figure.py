"""Figures drawn by Plotly: the traces and layouts that the page's script shows."""

import json
import math
from collections.abc import Mapping
from html import escape

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from sojourn.figures.figure import Figure, Series, View
from sojourn.figures.labels import Box, end_labels, point_labels
from sojourn.figures.palette import Dash, Ink
from sojourn.types import FloatArray

HEIGHT = 340
_TOP, _BOTTOM, _LEFT = 12, 48, 58
_LABEL_GAP = 15.0
_USUAL_WIDTH = 560.0
_PATTERNS: dict[Dash, str] = {
    "solid": "",
    "dash": "/",
    "dot": ".",
    "dashdot": "\\",
    "longdash": "x",
    "longdashdot": "+",
}
_MARKERS = 8
"""Markers on a curve: enough to tell it by, few enough to see it."""


def plotly_views(figure: Figure) -> list[dict[str, object]]:
    """One ``{metric, axis, data, layout}`` per view, ready for the page.

    Colours are left to the page, which knows whether it is light or dark: each trace carries its
    two colours in ``meta``.
    """
    return [_plotly_view(view, figure.palette) for view in figure.views]


def _plotly_view(view: View, palette: Mapping[str, Ink]) -> dict[str, object]:
    ink = view.inks(palette)
    drawing = go.Figure()
    sides = _label_sides(view)
    for series in view.series:
        for trace in _traces(series, ink[series.name], view, sides.get(series.name, [])):
            drawing.add_trace(trace)
    low, high = view.range_of_y()
    drawing.update_layout(
        template="none",
        height=HEIGHT,
        margin={"l": _LEFT, "r": 14, "t": _TOP, "b": _BOTTOM},
        showlegend=False,
        hovermode="closest" if view.categories else "x unified",
        barmode="group",
        bargap=0.28,
        xaxis=_x_axis(view),
        yaxis={
            "title": {"text": _plain(view.y_label), "standoff": 8},
            "type": "log" if view.log_y else "linear",
            "range": [low, high],
            "tickformat": ".0%" if view.percent else None,
            "automargin": False,
            **(_log_ticks(low, high) if view.log_y else {}),
        },
        annotations=_end_labels(view, ink),
    )
    drawn = json.loads(drawing.to_json())
    return {
        "metric": view.metric,
        "axis": view.axis,
        "data": drawn["data"],
        "layout": {key: value for key, value in drawn["layout"].items() if key != "template"},
    }


def _log_ticks(low: float, high: float) -> dict[str, object]:
    """Ticks of a logarithmic axis: 1, 2, 5 within a few decades, else decades alone."""
    wide = high - low > 2.5
    step = max(1, round((high - low) / 6)) if wide else 1
    decades = range(math.floor(low), math.ceil(high) + 1, step)
    steps = (1,) if wide else (1, 2, 5) if high - low > 0.6 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    ticks = [digit * 10.0**decade for decade in decades for digit in steps]
    inside = [tick for tick in ticks if low <= math.log10(tick) <= high]
    return {"tickvals": inside, "ticktext": [_short(tick) for tick in inside]}


def _short(value: float) -> str:
    """A number as an axis has room for.

    >>> [_short(value) for value in (0.01, 5.0, 20_000.0, 3e6)]
    ['0.01', '5', '20k', '3M']
    """
    if value < 1e4:
        return f"{value:g}"
    return f"{value / 1e3:g}k" if value < 1e6 else f"{value / 1e6:g}M"


def _x_axis(view: View) -> dict[str, object]:
    axis = {
        "hoverformat": ",.3~r",
        "title": {"text": _plain(view.x_label), "standoff": 8},
        "type": "log" if view.log_x else "linear",
        "automargin": False,
    }
    if view.categories:
        count = len(view.categories)
        ticks = {
            "tickvals": list(range(count)),
            "ticktext": [_plain(name) for name in view.categories],
        }
        return {**axis, **ticks, "range": [-0.5, count - 0.5]}
    low, high = _span(view)
    return {**axis, "range": [low, high], **(_log_ticks(low, high) if view.log_x else {})}


def _span(view: View) -> list[float]:
    values = np.concatenate([series.x for series in view.series])
    values = values[np.isfinite(values) & ((values > 0) | (not view.log_x))]
    if values.size == 0:
        return [0.0, 1.0]
    if view.log_x:
        values = np.log10(values)
    low, high = float(values.min()), float(values.max())
    return [low, high + 0.01 * (high - low)] if high > low else [low - 0.5, high + 0.5]


def _label_sides(view: View) -> dict[str, list[str]]:
    """On which side of its point each label stands, for a figure about as wide as on a desktop."""
    within: Box = (0.0, 0.0, _USUAL_WIDTH, float(HEIGHT - _TOP - _BOTTOM))
    (left, right), (low, high) = _span(view), view.range_of_y()

    def place(x: FloatArray, y: FloatArray) -> FloatArray:
        across, up = (np.log10(x) if view.log_x else x), (np.log10(y) if view.log_y else y)
        scaled = (across - left) / (right - left), (up - low) / (high - low)
        return np.column_stack([scaled[0] * within[2], scaled[1] * within[3]])

    sides: dict[str, list[str]] = {}
    for label in point_labels(view, place, within):
        across, up = label.side
        text = f"{'top' if up > 0 else 'bottom'} {'right' if across > 0 else 'left'}"
        sides.setdefault(label.series.name, []).append(text)
    return sides


def _traces(
    series: Series, ink: Ink, view: View, label_sides: list[str]
) -> list[go.Scatter | go.Bar]:
    """What is drawn of a series: bars, points, or a line over its band."""
    number = ".1%" if view.percent else ".3~g"
    common = {
        "x": _small(series.x),
        "y": _small(series.y),
        "name": _plain(series.label),
        "meta": _meta(series, ink),
        "hovertemplate": f"%{{fullData.name}}: %{{y:{number}}}<extra></extra>",
    }
    if series.kind == "bars":
        pattern = {"fillmode": "overlay", "solidity": 0.2, "size": 6}
        return [go.Bar(**common, marker={"pattern": {"shape": _PATTERNS[ink.dash], **pattern}})]
    if series.kind == "points":
        return [
            go.Scatter(
                **common,
                mode="markers+text" if series.text else "markers",
                text=[_plain(text) for text in series.text] or None,
                textposition=label_sides or None,
                marker={"size": 10, "symbol": ink.marker},
                cliponaxis=False,
            )
        ]
    faint, pick = not series.is_strong, series.weight == "pick"
    if series.weight == "background":
        common |= {"hovertemplate": None, "hoverinfo": "skip"}
    line = go.Scatter(
        **common,
        mode="lines" if series.weight == "thin" else "lines+markers",
        opacity=0.6 if series.weight == "thin" else 1.0,
        line={
            "width": 1.2 if faint else 3.0 if pick else 2.0,
            "dash": "solid" if pick else ink.dash,
        },
        marker={
            "size": 4 if faint else 7,
            "symbol": ink.marker,
            "maxdisplayed": 0 if series.kind == "track" else _MARKERS,
        },
    )
    return [*_band(series, ink), line]


def _band(series: Series, ink: Ink) -> list[go.Scatter]:
    """The outline of what lies between low and high, where both are known."""
    if series.low is None or series.high is None:
        return []
    known = np.isfinite(series.low) & np.isfinite(series.high)
    return [
        go.Scatter(
            x=_small(np.concatenate([series.x[known], series.x[known][::-1]])),
            y=_small(np.concatenate([series.high[known], series.low[known][::-1]])),
            fill="toself",
            mode="lines",
            line={"width": 0},
            hoverinfo="skip",
            name=_plain(series.label),
            meta={**_meta(series, ink), "band": True},
        )
    ]


def _plain(text: str) -> str:
    """As Plotly shows it letter by letter: it takes tags in its texts for bold type, links and lines."""
    return escape(text, quote=False)


def _meta(series: Series, ink: Ink) -> dict[str, object]:
    """What the page's script needs to switch colours and curves."""
    colours = {"light": ink.light, "dark": ink.dark}
    weight = {"strong": series.is_strong, "pick": series.weight == "pick"}
    return {**colours, **weight, "strategy": series.name, "band": False}


def _small(values: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.asarray(values, dtype=np.float32)


def _end_labels(view: View, ink: dict[str, Ink]) -> list[dict[str, object]]:
    """Labels at the right end of the curves, where there is more than one; the page's script shortens them."""
    labels = end_labels(view, HEIGHT - _TOP - _BOTTOM, _LABEL_GAP)
    return [
        {
            "name": label.series.name,
            "text": label.series.label,
            "xref": "paper",
            "x": 1.0,
            "xanchor": "left",
            "xshift": 6,
            "yref": "y",
            "y": label.value,
            "yshift": label.shift,
            "showarrow": False,
            "font": {"size": 12, "color": ink[label.series.name].light},
        }
        for label in (labels if len(labels) > 1 else ())
    ]

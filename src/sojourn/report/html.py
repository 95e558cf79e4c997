"""A page as HTML: one self-contained file, and the traces and layouts from which Plotly draws its figures."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape as escape_html
from importlib.resources import files

import numpy as np
import plotly.graph_objects as go
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from sojourn._support.estimate import Estimate
from sojourn._support.numbers import number, unbroken
from sojourn._support.provenance import provenance
from sojourn.figures.figure import Figure, Series, View
from sojourn.figures.labels import Box, end_labels, point_labels
from sojourn.figures.palette import DASHES, Dash, Ink
from sojourn.figures.svg import DARK_RULES, LIGHT_RULES, SHAPES
from sojourn.report.page import Report, Section
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


def report_html(report: Report) -> str:
    """The page of a report as one text that needs no other file."""
    templates = PackageLoader("sojourn.report")
    environment = Environment(
        loader=templates if report.loader is None else ChoiceLoader([report.loader, templates]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"slug": slug, "joined": joined, "cell": cell, "numeric": numeric}
    environment.globals |= {"switches": switches, "chips": chips, "ends": ends}
    origins = {"This page": provenance(), **report.origins}
    return environment.get_template(report.template).render(
        report=report,
        plotly=_plotly_script(),
        timeline_rules={"shapes": SHAPES, "light": LIGHT_RULES, "dark": DARK_RULES},
        figures=_script_json({f.name: plotly_views(f) for f in report.figures}),
        origins=[(name, _provenance_rows(values)) for name, values in origins.items()],
    )


def dot_cells(estimates: Sequence[Estimate], texts: Sequence[str]) -> list[str]:
    """Cells of a column: its text, and on a scale common to all a dot with its standard error."""
    spans = []
    for estimate in estimates:
        mean, error = float(estimate.mean), float(estimate.standard_error)
        error = 0.0 if math.isnan(error) else error
        spans.append((mean - error, mean, mean + error))
    known = [span for span in spans if math.isfinite(span[1])]
    low = min((span[0] for span in known), default=0.0)
    high = max((span[2] for span in known), default=1.0)
    if len(known) < 2 or high <= low:
        return list(texts)
    cells: list[str] = []
    for span, text in zip(spans, texts, strict=True):
        if not math.isfinite(span[1]):
            cells.append(text)
            continue
        left, at, right = (4.0 + 92.0 * (value - low) / (high - low) for value in span)
        drawn = Markup(
            '<svg class="dot" viewBox="0 0 100 12" width="100" height="12" aria-hidden="true">'
            '<path d="M4 6h92"/><path class="e" d="M{:.1f} 6H{:.1f}"/>'
            '<circle cx="{:.1f}" cy="6" r="3.2"/></svg>'
        ).format(left, right, at)
        cells.append(Markup('<span class="v">{}</span>{}').format(joined(text), drawn))
    return cells


def joined(text: str) -> Markup:
    """Text in which no line breaks inside "a ± b" or "5 %"."""
    return Markup(unbroken(str(escape(text)), "&nbsp;"))


def numeric(text: str) -> bool:
    """Whether a cell is a number or a range of numbers, however long.

    >>> numeric("0.00031 to 0.02"), numeric("1,234"), numeric("3 of the clients")
    (True, True, False)
    """
    return re.fullmatch(r"[-\d.,e]+( to [-\d.,e]+)?", text) is not None


def cell(text: str) -> Markup:
    """A cell of a table: text in which numbers are not broken, or what `dot_cells` drew."""
    return text if isinstance(text, Markup) else joined(text)


def _plotly_script() -> Markup:
    """Plotly's basic bundle (lines, points, bars), which is a quarter of the whole library."""
    text = files("sojourn.report").joinpath("templates/plotly-basic.min.js").read_text("utf-8")
    return Markup(text.replace("</script", "<\\/script"))


def slug(text: str) -> str:
    """Lower-case words joined by hyphens, for class names and anchors.

    >>> slug("Does not reproduce")
    'does-not-reproduce'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def switches(section: Section) -> dict[str, list[str]]:
    """The metrics and axes among which a section's figures can be switched."""
    found: dict[str, list[str]] = {"metric": [], "axis": []}
    for figure in section.figures:
        for view in figure.views:
            for kind, value in (("metric", view.metric), ("axis", view.axis)):
                if value and value not in found[kind]:
                    found[kind].append(value)
    return {kind: values for kind, values in found.items() if len(values) > 1}


MOST_CHIPS = 12
"""Buttons beyond which a section has none: they would be a wall of colours."""


def chips(section: Section) -> list[dict[str, str]]:
    """A button per series of a section's figures, in its colour, where curves have no end labels.

    None where there are too many to be found by their colours, nor for a folded figure by itself,
    which has its labels.
    """
    found: dict[str, dict[str, str]] = {}
    alone = section.opening or (section.folded and len(section.figures) == 1)
    for figure in section.figures:
        for view in figure.views:
            ink = view.inks(figure.palette)
            labelled = alone and any(s.kind in ("line", "track") for s in view.series)
            for series in view.series if len(view.series) > 1 and not labelled else ():
                drawn = ink[series.name]
                chip = {
                    "name": series.name,
                    "label": series.label,
                    "light": drawn.light,
                    "dark": drawn.dark,
                    "dash": " ".join(f"{length:g}" for length in DASHES[drawn.dash]),
                    "marker": _SHAPES[drawn.marker],
                }
                found.setdefault(series.name, chip)
    return list(found.values()) if len(found) <= MOST_CHIPS else []


_SHAPES = {
    "circle": "M16 3.2a2.8 2.8 0 1 1 0 5.6a2.8 2.8 0 1 1 0-5.6z",
    "square": "M13.4 3.4h5.2v5.2h-5.2z",
    "diamond": "M16 2.4l3.6 3.6-3.6 3.6-3.6-3.6z",
    "triangle-up": "M16 2.4l3.6 6.2h-7.2z",
    "triangle-down": "M16 9.6l3.6-6.2h-7.2z",
    "cross": "M14.9 2.6h2.2v2.3h2.3v2.2h-2.3v2.3h-2.2v-2.3h-2.3v-2.2h2.3z",
    "x": "M13.2 4.4l1.2-1.2 1.6 1.6 1.6-1.6 1.2 1.2-1.6 1.6 1.6 1.6-1.2 1.2-1.6-1.6-1.6 1.6-1.2-1.2 1.6-1.6z",
    "star": "M16 1.8l1.2 2.8 3 .3-2.3 2 .7 3-2.6-1.6-2.6 1.6.7-3-2.3-2 3-.3z",
}


def ends(figure: Figure) -> list[tuple[str, str]]:
    """Label and last value of every curve of the first view: the figure as a small table."""
    view = figure.views[0]
    rows = []
    for series in view.series:
        curve = series.kind in ("line", "track")
        places = range(len(series.y)) if not curve else [len(series.y) - 1] * bool(len(series.y))
        for k in places if series.weight != "background" else ():
            value = float(series.y[k])
            where = view.categories[round(float(series.x[k]))] if view.categories else ""
            name = f"{series.label}, {where}" if where else series.label
            rows.append((name, f"{value:.1%}" if view.percent else number(value)))
    return rows


def _provenance_rows(values: Mapping[str, object]) -> list[tuple[str, str]]:
    """Provenance flattened to name and text; what is empty is left out."""
    rows = []
    for key, value in values.items():
        if isinstance(value, Mapping) and any(isinstance(own, Mapping) for own in value.values()):
            value = "\n".join(_lines(value))
        elif isinstance(value, Mapping):
            value = ", ".join(f"{name} {text}" for name, text in value.items())
        if value not in ("", None):
            rows.append((key, str(value)))
    return rows


def _lines(values: Mapping[str, object]) -> Iterator[str]:
    """A line for every setting of the tables within, and for every table of a list.

    >>> list(_lines({"experiment": {"seeds": [0, 1], "strategy": [{"name": "a"}, {"name": "b"}]}}))
    ['seeds = [0, 1]', 'strategy = {"name": "a"}', 'strategy = {"name": "b"}']
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _lines(value)
        else:
            shown = [value]
            if isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
                shown = value
            yield from (f"{key} = {json.dumps(one)}" for one in shown)


def _script_json(values: object) -> Markup:
    text = json.dumps(values, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))


def plotly_views(figure: Figure) -> list[dict[str, object]]:
    """One ``{metric, axis, data, layout}`` per view, ready for the page.

    Colours are left to the page, which knows whether it is light or dark: each trace carries its
    two colours in ``meta``.
    """
    return [_plotly_view(view, view.inks(figure.palette)) for view in figure.views]


def _plotly_view(view: View, ink: Mapping[str, Ink]) -> dict[str, object]:
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
        "x": series.x.astype(np.float32),
        "y": series.y.astype(np.float32),
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
            x=np.concatenate([series.x[known], series.x[known][::-1]]).astype(np.float32),
            y=np.concatenate([series.high[known], series.low[known][::-1]]).astype(np.float32),
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
    return escape_html(text, quote=False)


def _meta(series: Series, ink: Ink) -> dict[str, object]:
    """What the page's script needs to switch colours and curves."""
    colours = {"light": ink.light, "dark": ink.dark}
    weight = {"strong": series.is_strong, "pick": series.weight == "pick"}
    return {**colours, **weight, "strategy": series.name, "band": False}


def _end_labels(view: View, ink: Mapping[str, Ink]) -> list[dict[str, object]]:
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

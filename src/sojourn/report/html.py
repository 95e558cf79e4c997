"""A page as HTML: one self-contained file, its figures drawn by Plotly."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from sojourn._support.estimate import Estimate
from sojourn._support.numbers import number, unbroken
from sojourn._support.provenance import provenance
from sojourn.figures.figure import Figure
from sojourn.figures.palette import DASHES
from sojourn.figures.plotly_figure import plotly_views
from sojourn.figures.svg import DARK_RULES, LIGHT_RULES, SHAPES
from sojourn.report.page import Report, Section


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

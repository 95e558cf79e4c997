"""The page: one self-contained HTML file, and its figures as files beside it."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sojourn.figure import Figure
from sojourn.files import replacing
from sojourn.palette import DASHES, FAINT, Ink, inks
from sojourn.provenance import provenance
from sojourn.report.plotly_figure import HEIGHT, plotly_views
from sojourn.report.sections import Drawing, Overview, Section, provenance_rows
from sojourn.timeline import DARK_RULES, LIGHT_RULES, SHAPES


@dataclass(frozen=True, eq=False)
class Report:
    """A page about results: sections in the order given, and where they come from.

    ``origins`` tells the provenance of every part by its name; that of the page itself is added.
    """

    title: str
    sections: tuple[Section, ...]
    overview: Overview | None = None
    origins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def figures(self) -> list[Figure]:
        """All figures, in order."""
        return [figure for section in self.sections for figure in section.figures]

    @property
    def drawings(self) -> list[Drawing]:
        """All drawings, in order."""
        return [drawing for section in self.sections for drawing in section.drawings]

    def to_html(self) -> str:
        """The page as one text that needs no other file."""
        origins = {"This page": provenance(), **self.origins}
        return (
            _environment()
            .get_template("report.html")
            .render(
                title=self.title,
                overview=self.overview,
                sections=self.sections,
                height=HEIGHT,
                plotly=_plotly_script(),
                timeline_rules={"shapes": SHAPES, "light": LIGHT_RULES, "dark": DARK_RULES},
                figures=_script_json({f.name: plotly_views(f) for f in self.figures}),
                origins=[(name, provenance_rows(values)) for name, values in origins.items()],
            )
        )

    def write(
        self,
        out: str | Path,
        *,
        stills: bool = True,
        jobs: int = 1,
        say: Callable[[str], None] = lambda line: None,
    ) -> Path:
        """Write the page ``out``; with ``stills`` every figure as PNG and SVG files beside it.

        ``jobs`` processes draw the stills when there are many; ``say`` is told before they begin.
        The stills go to a folder named after the page: ``report.html`` has ``report-figures/``.
        """
        target = Path(out)
        html = self.to_html()
        with replacing(target) as temporary:
            temporary.write_text(html, encoding="utf-8")
        if stills:
            from sojourn.report.matplotlib_figure import save_all

            count = sum(len(figure.views) for figure in self.figures)
            say(f"drawing {count} picture{'' if count == 1 else 's'}, as PNG and as SVG ...")
            folder = target.with_name(f"{target.stem}-figures")
            save_all(self.figures, folder, jobs=jobs)
            for drawing in self.drawings:
                with replacing(folder / f"{drawing.name}.svg") as temporary:
                    temporary.write_text(drawing.file, encoding="utf-8")
        return target

    def __repr__(self) -> str:
        parts = f"{len(self.sections)} section{'' if len(self.sections) == 1 else 's'}"
        return f"Report({self.title!r}, {parts}, {len(self.figures)} figures)"


def _plotly_script() -> Markup:
    """Plotly's basic bundle (lines, points, bars), which is a quarter of the whole library."""
    text = files("sojourn.report").joinpath("templates/plotly-basic.min.js").read_text("utf-8")
    return Markup(text.replace("</script", "<\\/script"))


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("sojourn.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["slug"] = slug
    environment.globals["switches"] = switches
    environment.globals["chips"] = chips
    environment.globals["ends"] = ends
    return environment


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


def chips(section: Section) -> list[dict[str, str]]:
    """A button per series name in a section's figures, in the colour it is drawn in there."""
    found: dict[str, dict[str, str]] = {}
    for figure in section.figures:
        for view in figure.views:
            if len(view.series) > 1:
                ink = inks((series.name for series in view.series), figure.palette)
                for series in view.series:
                    chip = {"name": series.name, "label": series.label, **_sample(ink[series.name])}
                    found.setdefault(series.name, chip)
    return list(found.values())


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


def _sample(ink: Ink) -> dict[str, str]:
    """Colour, dash and marker of a series, for the little picture on its chip."""
    dash = " ".join(f"{length:g}" for length in DASHES[ink.dash])
    return {"light": ink.light, "dark": ink.dark, "dash": dash, "marker": _SHAPES[ink.marker]}


def ends(figure: Figure) -> list[tuple[str, str]]:
    """Label and last value of every curve of the first view: the figure as a small table."""
    view = figure.views[0]
    rows = []
    for series in view.series:
        if series.name == FAINT:
            continue
        curve = series.kind in ("line", "track")
        for k in [len(series.y) - 1] if curve else range(len(series.y)):
            if k < 0:
                continue
            value = float(series.y[k])
            where = view.categories[round(float(series.x[k]))] if view.categories else ""
            name = f"{series.label}, {where}" if where else series.label
            rows.append((name, f"{value:.1%}" if view.percent else f"{value:.3g}"))
    return rows


def _script_json(values: Any) -> Markup:
    text = json.dumps(values, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))

"""The page: one self-contained HTML file, and its figures as files beside it."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sojourn.files import replacing
from sojourn.provenance import provenance
from sojourn.report.figure import Figure
from sojourn.report.palette import inks
from sojourn.report.plotly_figure import HEIGHT, plotly_views
from sojourn.report.sections import Overview, Section, provenance_rows


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

    def to_html(self) -> str:
        """The page as one text that needs no other file."""
        from plotly.offline import get_plotlyjs

        origins = {"This page": provenance(), **self.origins}
        return (
            _environment()
            .get_template("report.html")
            .render(
                title=self.title,
                overview=self.overview,
                sections=self.sections,
                height=HEIGHT,
                plotly=Markup(get_plotlyjs().replace("</script", "<\\/script")),
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
            save_all(self.figures, target.with_name(f"{target.stem}-figures"), jobs=jobs)
        return target

    def __repr__(self) -> str:
        parts = f"{len(self.sections)} section{'' if len(self.sections) == 1 else 's'}"
        return f"Report({self.title!r}, {parts}, {len(self.figures)} figures)"


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
                    colours = {"light": ink[series.name].light, "dark": ink[series.name].dark}
                    chip = {"name": series.name, "label": series.label, **colours}
                    found.setdefault(series.name, chip)
    return list(found.values())


def ends(figure: Figure) -> list[tuple[str, str]]:
    """Label and last value of every curve of the first view: the figure as a small table."""
    view = figure.views[0]
    rows = []
    for series in view.series:
        for k in range(len(series.y)) if series.kind != "line" else [len(series.y) - 1]:
            if k < 0:
                continue
            value = float(series.y[k])
            where = view.categories[round(float(series.x[k]))] if view.categories else ""
            name = f"{series.label}, {where}" if where else series.label
            rows.append((name, f"{value:.1%}" if view.percent else f"{value:.4g}"))
    return rows


def _script_json(values: Any) -> Markup:
    text = json.dumps(values, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))

"""The page: one self-contained HTML file, and its figures as files beside it."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sojourn.files import replacing
from sojourn.provenance import provenance
from sojourn.report.figure import Figure
from sojourn.report.fleet import fleet_section
from sojourn.report.interactive import HEIGHT, plotly_views
from sojourn.report.palette import inks
from sojourn.report.runs import collect
from sojourn.report.sections import Section, finding_section, provenance_rows, run_section
from sojourn.report.verdict import Finding
from sojourn.runfolder import Run


def write_report(
    folders: Iterable[str | Path],
    out: str | Path,
    *,
    title: str | None = None,
    stills: bool = True,
    jobs: int = 1,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write the page ``out`` about the folders; with ``stills`` PNG and SVG files beside it.

    ``jobs`` processes draw the stills when there are many; ``say`` is told before they begin.
    The stills go to a folder named after the page: ``report.html`` has ``report-figures/``.
    """
    from plotly.offline import get_plotlyjs

    findings, runs = collect(folders)
    sections = [finding_section(finding) for finding in findings]
    for index, run in enumerate(runs, start=1):
        sections.append(run_section(run, index))
        if run.networks:
            sections.append(fleet_section(run, index))
    target = Path(out)
    html = (
        _environment()
        .get_template("report.html")
        .render(
            title=title or _title(findings, runs),
            findings=findings,
            counts=Counter(finding.verdict for finding in findings),
            sections=sections,
            height=HEIGHT,
            plotly=Markup(get_plotlyjs().replace("</script", "<\\/script")),
            figures=_script_json(_payload(sections)),
            origins=_origins(findings, runs),
        )
    )
    with replacing(target) as temporary:
        temporary.write_text(html, encoding="utf-8")
    if stills:
        from sojourn.report.still import save_all

        figures = [figure for section in sections for figure in section.figures]
        count = sum(len(figure.views) for figure in figures)
        say(f"drawing {count} picture{'' if count == 1 else 's'}, as PNG and as SVG ...")
        save_all(figures, target.with_name(f"{target.stem}-figures"), jobs=jobs)
    return target


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
                ink = inks(series.name for series in view.series)
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


def _payload(sections: Iterable[Section]) -> dict[str, Any]:
    return {figure.name: plotly_views(figure) for section in sections for figure in section.figures}


def _script_json(values: Any) -> Markup:
    text = json.dumps(values, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))


def _title(findings: list[Finding], runs: list[Run]) -> str:
    if findings:
        return "The paper, reproduced"
    return runs[0].name if len(runs) == 1 else "Sojourn report"


def _origins(findings: list[Finding], runs: list[Run]) -> list[tuple[str, list[tuple[str, str]]]]:
    origins = [("This page", provenance_rows(provenance()))]
    origins += [
        (f"Claim {finding.claim}", provenance_rows(finding.provenance))
        for finding in findings
        if finding.provenance
    ]
    origins += [
        (run.name, provenance_rows(dict(run.summary["provenance"])))
        for run in runs
        if run.summary.get("provenance")
    ]
    return origins

"""The paper's eleven figures, drawn again beside what it prints about them: ``figures.toml``."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from reproduction.palette import PALETTE
from reproduction.training import BANDS
from reproduction.verdict import Finding
from sojourn._support.configuration import Table
from sojourn.errors import InvalidFile
from sojourn.figures.figure import Figure, View
from sojourn.report import Section

FIGURES = Path(__file__).parents[1] / "figures.toml"
ROUTINGS = ("uniform", "balanced", "g-optimal", "h-printed")
"""The paper's. Its p*H is the vector that it prints."""
AXES = ("", "rounds", "time")


@dataclass(frozen=True)
class PaperFigure:
    """One figure of the paper: what it shows, what is ``printed`` about it, and what is ``ours``.

    ``shows`` are patterns of the names of our own figures. With an ``axis`` they are about training: only
    the paper's routings are drawn, against that axis.
    """

    number: int
    line: int
    title: str
    printed: str
    ours: tuple[str, ...]
    shows: tuple[str, ...]
    axis: str = ""

    def has(self, figure: Figure) -> bool:
        """Whether a figure of ours is drawn for this one."""
        return any(fnmatch(figure.name, pattern) for pattern in self.shows)

    def drawn(self, figure: Figure) -> Figure:
        """A figure of ours with the paper's axis and routings."""
        if not self.axis:
            return replace(figure, name=f"figure-{self.number}-{figure.name}", palette=PALETTE)
        views = tuple(_with_routings(view) for view in figure.views if view.axis == self.axis)
        return replace(
            figure,
            name=f"figure-{self.number}-{figure.name}",
            views=views,
            alt=_in_words(figure.title, views),
            caption=figure.caption or BANDS,  # which earlier versions saved without saying so
            palette=PALETTE,
        )


def read_figures(path: Path = FIGURES) -> list[PaperFigure]:
    """The figures of the paper, in order."""
    table = Table.read(path)
    found = [_figure(entry) for entry in table.tables("figure")]
    table.close()
    return sorted(found, key=lambda figure: figure.number)


def figure_sections(findings: Sequence[Finding]) -> list[Section]:
    """A section for every figure of the paper, whether or not there is something to draw."""
    return [_section(figure, findings) for figure in read_figures()]


def left_over(finding: Finding) -> tuple[Figure, ...]:
    """The figures of a claim that are not drawn whole in a section about a figure of the paper."""
    known = read_figures()
    return tuple(f for f in finding.figures if _has_ours(f) or not any(k.has(f) for k in known))


def _section(figure: PaperFigure, findings: Iterable[Finding]) -> Section:
    found = [(one, f) for one in findings for f in one.figures if figure.has(f)]
    notes = [f"The paper: {figure.printed}.", f"Ours: {'; '.join(figure.ours)}."]
    notes += dict.fromkeys(f"Reduced: {one.reduced}." for one, _ in found if one.reduced)
    if not found:
        notes.append("Nothing was run for it in these results.")
    return Section(
        anchor=f"figure-{figure.number}",
        title=f"Figure {figure.number}: {figure.title}",
        kicker=f"The paper's figure {figure.number} · line {figure.line} of its source",
        notes=tuple(notes),
        figures=tuple(figure.drawn(one) for _, one in found),
    )


def _with_routings(view: View) -> View:
    series = {curve.name: curve for curve in view.series}
    return replace(view, series=tuple(series[name] for name in ROUTINGS if name in series))


def _has_ours(figure: Figure) -> bool:
    """Whether a figure about training shows strategies that are not the paper's."""
    return any(
        view.axis and curve.name not in ROUTINGS for view in figure.views for curve in view.series
    )


def _in_words(title: str, views: Sequence[View]) -> str:
    """What the curves end at."""
    parts = []
    for view in views:
        ends = [
            f"{curve.label or curve.name} {curve.y[-1]:.{'1%' if view.percent else '3g'}}"
            for curve in view.series
            if len(curve.y)
        ]
        parts.append(f"{view.y_label} at the end: {', '.join(ends)}")
    return f"{title}. {'; '.join(parts)}."


def _figure(table: Table) -> PaperFigure:
    figure = PaperFigure(
        number=table.take("number", int),
        line=table.take("line", int),
        title=table.take("title", str),
        printed=table.take("printed", str),
        ours=tuple(table.take("ours", list)),
        shows=tuple(table.take("shows", list)),
        axis=table.take("axis", str, default=""),
    )
    table.close()
    if figure.axis not in AXES:
        raise InvalidFile(f"{table.where}: 'axis' must be rounds or time; it is '{figure.axis}'")
    return figure

"""The page as a value: sections of words, figures, drawings and tables, and how it is written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sojourn._support.files import SURROGATES, replacing
from sojourn.errors import naming_extras
from sojourn.figures.figure import Figure, Table
from sojourn.figures.timeline import Timeline, timelines_svg

if TYPE_CHECKING:
    from jinja2 import BaseLoader


@dataclass(frozen=True)
class Drawing:
    """A picture that is ready: SVG whose colours the page's style decides, and as a file."""

    name: str
    title: str
    svg: str
    file: str
    caption: str = ""

    @classmethod
    def of_timelines(
        cls, name: str, title: str, timelines: Mapping[str, Timeline], most_rows: int
    ) -> "Drawing":
        """Timelines over one time axis; on the page each has at most about ``most_rows`` rows."""
        panels = list(timelines.items())
        return cls(
            name=name,
            title=title,
            svg=timelines_svg(panels, styled=False, stacked=True, most_rows=most_rows),
            file=timelines_svg(panels, stacked=True),
        )


@dataclass(frozen=True)
class Section:
    """One part of the page, below its title: words, drawings, figures, tables.

    ``finding`` is what the part says, before anything else. An ``opening`` part stands at the top
    without a title of its own, drawings beside figures; a ``folded`` one is closed until it is
    opened or printed; of any other the ``kicker`` says above its title where it belongs.
    """

    anchor: str
    title: str
    kicker: str = ""
    finding: str = ""
    lead: str = ""
    notes: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    tables: tuple[Table, ...] = ()
    opening: bool = False
    folded: bool = False


@dataclass(frozen=True, eq=False)
class Report:
    """A page about results: title, reason and next command, then sections in the order given.

    ``origins`` has the provenance of every part by its name; that of the page itself is added. A
    subclass may show more with a ``template`` of its own that extends ``report.html``.
    """

    title: str
    sections: tuple[Section, ...]
    because: str = ""
    command: str = ""
    origins: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    template: ClassVar[str] = "report.html"
    loader: ClassVar["BaseLoader | None"] = None

    @property
    def figures(self) -> list[Figure]:
        """All figures, in order."""
        return [figure for section in self.sections for figure in section.figures]

    @property
    def stills(self) -> list[Figure]:
        """The figures that are also written as files; a report may leave out views that repeat others."""
        return self.figures

    @property
    def drawings(self) -> list[Drawing]:
        """All drawings, in order."""
        return [drawing for section in self.sections for drawing in section.drawings]

    def to_html(self) -> str:
        """The page as one text that needs no other file."""
        with naming_extras():
            from sojourn.report.html import report_html
        return report_html(self)

    def write(
        self,
        out: str | Path,
        *,
        stills: bool = True,
        jobs: int = 1,
        say: Callable[[str], None] = lambda line: None,
    ) -> Path:
        """Write the page ``out``; with ``stills`` every figure as PNG and SVG files beside it.

        ``jobs`` processes draw the stills when there are many; ``say`` is called before they begin.
        The stills go to a folder named after the page: ``report.html`` has ``report-figures/``.
        """
        target = Path(out)
        html = self.to_html()
        with replacing(target) as temporary:
            temporary.write_text(html, encoding="utf-8", errors=SURROGATES)
        if stills:
            from sojourn.figures.matplotlib_figure import save_all

            count = sum(len(figure.views) for figure in self.stills)
            say(f"drawing {count} picture{'' if count == 1 else 's'}, as PNG and as SVG ...")
            folder = target.with_name(f"{target.stem}-figures")
            save_all(self.stills, folder, jobs=jobs)
            for drawing in self.drawings:
                with replacing(folder / f"{drawing.name}.svg") as temporary:
                    temporary.write_text(drawing.file, encoding="utf-8", errors=SURROGATES)
        return target

    def __repr__(self) -> str:
        parts = f"{len(self.sections)} section{'' if len(self.sections) == 1 else 's'}"
        return f"Report({self.title!r}, {parts}, {len(self.figures)} figures)"

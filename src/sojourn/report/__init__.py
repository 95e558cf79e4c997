"""What a person looks at: one self-contained HTML page, and figures as PNG and SVG files."""

from typing import TYPE_CHECKING

from sojourn.figures.figure import Figure, Series, Table, View

if TYPE_CHECKING:
    from sojourn.report.page import Report, Section

__all__ = ["Figure", "Report", "Section", "Series", "Table", "View"]


def __getattr__(name: str) -> object:
    """Load the page when it is asked for: verdicts and tables need neither Jinja nor Plotly."""
    if name in ("Report", "Section"):
        from sojourn.report import page

        return getattr(page, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

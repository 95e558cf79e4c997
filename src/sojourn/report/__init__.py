"""What a person looks at: one self-contained HTML page, and figures as PNG and SVG files."""

from sojourn.figures.figure import Figure, Series, Table, View
from sojourn.report.page import Report, Section

__all__ = ["Figure", "Report", "Section", "Series", "Table", "View"]

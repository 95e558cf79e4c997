"""What a person looks at: one self-contained HTML page, and figures as PNG and SVG files."""

from sojourn.figure import Figure, Series, Table, View
from sojourn.report.page import Report
from sojourn.report.sections import Section

__all__ = ["Figure", "Report", "Section", "Series", "Table", "View"]

"""What a person looks at: one self-contained HTML page, and figures as PNG and SVG files."""

from sojourn.report.page import write_report

__all__ = ["write_report"]

"""Tables and little pictures for notebooks: plain HTML that any front end shows, without a library."""

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from sojourn.types import FloatArray

MOST_ROWS = 20
_BLUE = "#2c78ab"


def table_html(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A titled table, numbers to the right; a cell that begins with ``<svg`` is shown as it is.

    >>> table_html("a <b>", ["x"], [["1"]])
    '<p>a &lt;b&gt;</p><table><tr><th style="text-align:left">x</th></tr>\
<tr><td style="text-align:left">1</td></tr></table>'
    """
    listed = list(rows)
    head = _row("th", [escape(column) for column in columns])
    body = "".join(_row("td", [_cell(cell) for cell in row]) for row in listed[:MOST_ROWS])
    more = f"<p>... and {len(listed) - MOST_ROWS:,} more</p>" if len(listed) > MOST_ROWS else ""
    return f"<p>{escape(title)}</p><table>{head}{body}</table>{more}"


def _row(kind: str, cells: Sequence[str]) -> str:
    """A row whose first cell, a name, stands to the left and the others to the right, apart."""
    styles = ["text-align:left", *["text-align:right;padding-left:1.5em"] * (len(cells) - 1)]
    return (
        "<tr>"
        + "".join(
            f'<{kind} style="{style}">{cell}</{kind}>'
            for style, cell in zip(styles, cells, strict=True)
        )
        + "</tr>"
    )


def bar(share: float) -> str:
    """A share of 1 as a bar with its number beside it."""
    wide = 80.0 * min(1.0, max(0.0, share))
    return (
        f'<svg width="130" height="14" role="img" aria-label="{share:.1%}"><rect width="{wide:.1f}" '
        f'height="12" fill="{_BLUE}"/><text x="{wide + 5:.1f}" y="11" font-size="11" '
        f'fill="currentColor">{share:.1%}</text></svg>'
    )


def curve(x: FloatArray, y: FloatArray, label: str, ends: tuple[str, str] = ("", "")) -> str:
    """A curve from its lowest to its highest value, with its first and last value beside it."""
    good = np.isfinite(x) & np.isfinite(y)
    if good.sum() < 2:
        return ""
    across, up = x[good], y[good]
    wide, high = max(float(np.ptp(across)), 1e-300), max(float(np.ptp(up)), 1e-300)
    places = [
        (58 + 180 * (a - across.min()) / wide, 65 - 58 * (b - up.min()) / high)
        for a, b in zip(across, up, strict=True)
    ]
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    text = '<text y="{:.1f}" x="{}" font-size="11" fill="currentColor"{}>{}</text>'
    first = text.format(places[0][1] + 4, 54, ' text-anchor="end"', escape(ends[0]))
    last = text.format(places[-1][1] + 4, 243, "", escape(ends[1]))
    return (
        f'<svg width="310" height="72" role="img" aria-label="{escape(label)}"><polyline '
        f'points="{points}" fill="none" stroke="{_BLUE}" stroke-width="1.6"/>{first}{last}</svg>'
    )


def _cell(text: str) -> str:
    return text if text.startswith("<svg") else escape(text)

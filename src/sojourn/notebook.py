"""Tables and little pictures for notebooks: plain HTML that any front end shows, without a library."""

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from sojourn.types import FloatArray

MOST_ROWS = 20
_BLUE = "#2c78ab"


def table_html(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A titled table; a cell that begins with ``<svg`` is shown as it is, the rest is text.

    >>> table_html("a <b>", ["x"], [["1"]])
    '<p>a &lt;b&gt;</p><table><tr><th>x</th></tr><tr><td>1</td></tr></table>'
    """
    listed = list(rows)
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>"
        for row in listed[:MOST_ROWS]
    )
    more = f"<p>... and {len(listed) - MOST_ROWS} more</p>" if len(listed) > MOST_ROWS else ""
    return f"<p>{escape(title)}</p><table><tr>{head}</tr>{body}</table>{more}"


def bar(share: float) -> str:
    """A share of 1 as a bar with its number beside it."""
    wide = 80.0 * min(1.0, max(0.0, share))
    return (
        f'<svg width="130" height="14" role="img" aria-label="{share:.1%}"><rect width="{wide:.1f}" '
        f'height="12" fill="{_BLUE}"/><text x="{wide + 5:.1f}" y="11" font-size="11" '
        f'fill="currentColor">{share:.1%}</text></svg>'
    )


def curve(x: FloatArray, y: FloatArray, label: str) -> str:
    """A curve without axes, from its lowest to its highest value."""
    good = np.isfinite(x) & np.isfinite(y)
    if good.sum() < 2:
        return ""
    across, up = x[good], y[good]
    wide, high = max(float(np.ptp(across)), 1e-300), max(float(np.ptp(up)), 1e-300)
    points = " ".join(
        f"{238 * (a - across.min()) / wide + 1:.1f},{59 - 58 * (b - up.min()) / high:.1f}"
        for a, b in zip(across, up, strict=True)
    )
    return (
        f'<svg width="240" height="60" role="img" aria-label="{escape(label)}"><polyline '
        f'points="{points}" fill="none" stroke="{_BLUE}" stroke-width="1.6"/></svg>'
    )


def _cell(text: str) -> str:
    return text if text.startswith("<svg") else escape(text)

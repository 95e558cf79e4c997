"""One colour, dash and marker per strategy, the same in every figure.

The hues are those of Okabe and Ito, which people with any common colour blindness can distinguish,
darkened for white paper and lightened for a dark screen. No two inks of a figure share both dash and
marker, so that curves differ without any colour.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

Dash = Literal["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"]
Marker = Literal[
    "circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star"
]


@dataclass(frozen=True)
class Ink:
    """How one series is drawn: its colour on a light and on a dark page, its dash, its marker."""

    light: str
    dark: str
    dash: Dash = "solid"
    marker: Marker = "circle"


_INKS = {
    "uniform": Ink("#6b7280", "#aab2bf", "solid", "circle"),
    "balanced": Ink("#b87700", "#f0b63f", "dashdot", "square"),
    "square-root": Ink("#00806a", "#3fd0a8", "dash", "triangle-up"),
    "plan": Ink("#c23f00", "#ff8e57", "longdash", "diamond"),
    "simulation": Ink("#111827", "#e8ebf0", "dot", "x"),
}
_SPARE = (
    Ink("#0064a4", "#5cb6f2", "solid", "circle"),
    Ink("#c23f00", "#ff8e57", "dash", "diamond"),
    Ink("#00806a", "#3fd0a8", "dashdot", "triangle-up"),
    Ink("#a63d8f", "#ea94d4", "longdash", "square"),
    Ink("#b87700", "#f0b63f", "dot", "triangle-down"),
    Ink("#3b3f8f", "#b0a4ff", "longdashdot", "star"),
    Ink("#6b7280", "#aab2bf", "dash", "cross"),
    Ink("#7a2414", "#e59a8c", "dashdot", "x"),
)
GREY = Ink("#737b87", "#8b95a5", "solid", "circle")
"""Of curves that stand behind others."""
DASHES: dict[Dash, tuple[float, ...]] = {
    "solid": (),
    "dash": (5.0, 2.5),
    "dot": (1.4, 1.6),
    "dashdot": (5.0, 2.0, 1.4, 2.0),
    "longdash": (8.0, 2.5),
    "longdashdot": (8.0, 2.0, 1.4, 2.0),
}
"""Lengths of strokes and gaps, in units of the line's width."""


def inks(names: Iterable[str], palette: Mapping[str, Ink] | None = None) -> dict[str, Ink]:
    """An ink for every name: that of ``palette``, a strategy's own, or one found from the name.

    The same names have the same inks in whatever order they come, so that a strategy keeps its colour
    from page to page.

    >>> inks(["uniform", "eta 0.1"])["uniform"].light
    '#6b7280'
    """
    known = {**_INKS, **(palette or {})}
    wanted = list(dict.fromkeys(names))
    taken = {known[name].light for name in wanted if name in known}
    worn = {(known[name].dash, known[name].marker) for name in wanted if name in known}
    free = [
        ink for ink in _SPARE if ink.light not in taken and (ink.dash, ink.marker) not in worn
    ] or list(_SPARE)
    chosen: dict[str, Ink] = {}
    left = list(free)
    for name in sorted(name for name in wanted if name not in known):
        left = left or list(free)
        chosen[name] = left.pop(crc32(name.encode()) % len(left))
    return {name: known.get(name) or chosen[name] for name in wanted}

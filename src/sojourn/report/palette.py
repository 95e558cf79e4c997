"""One colour, dash and label per strategy, the same in every figure.

The hues are those of Okabe and Ito, which people with any common colour blindness tell apart,
darkened for white paper and lightened for a dark screen.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ink:
    """How one series is drawn: its colour on a light and on a dark page, and its dash."""

    light: str
    dark: str
    dash: str = "solid"


_INKS = {
    "uniform": Ink("#6b7280", "#aab2bf"),
    "balanced": Ink("#b87700", "#f0b63f"),
    "square-root": Ink("#00806a", "#3fd0a8", "dash"),
    "plan": Ink("#d04a02", "#ff8e57", "dash"),
    "g-optimal": Ink("#a63d8f", "#ea94d4"),
    "h-optimal": Ink("#0064a4", "#5cb6f2"),
    "h-printed": Ink("#2a7f9e", "#8fd6ea", "dot"),
    "paper": Ink("#111827", "#e8ebf0", "dot"),
    "simulation": Ink("#111827", "#e8ebf0", "dot"),
}
_SPARE = (
    Ink("#0064a4", "#5cb6f2"),
    Ink("#d04a02", "#ff8e57"),
    Ink("#00806a", "#3fd0a8"),
    Ink("#a63d8f", "#ea94d4"),
    Ink("#b87700", "#f0b63f"),
    Ink("#6b7280", "#aab2bf"),
    Ink("#5b4bb7", "#b0a4ff"),
    Ink("#8a3324", "#e59a8c"),
)
_LABELS = {
    "g-optimal": "p*G",
    "h-optimal": "p*H",
    "h-printed": "p*H as printed",
}
_OURS = {
    "square-root": "square-root (ours)",
    "plan": "plan's routing (ours)",
}


def inks(names: Iterable[str]) -> dict[str, Ink]:
    """An ink for every name: a strategy's own, else the next that no name here uses.

    >>> inks(["uniform", "eta 0.1"])["uniform"].light
    '#6b7280'
    """
    wanted = list(dict.fromkeys(names))
    taken = {_INKS[name].light for name in wanted if name in _INKS}
    free = [ink for ink in _SPARE if ink.light not in taken] or list(_SPARE)
    others = [name for name in wanted if name not in _INKS]
    spare = {name: free[i % len(free)] for i, name in enumerate(others)}
    return {name: _INKS.get(name) or spare[name] for name in wanted}


def label(name: str, *, mark_ours: bool = False) -> str:
    """What a person reads for a strategy; ``mark_ours`` tells those that are not the paper's.

    >>> label("g-optimal"), label("square-root", mark_ours=True)
    ('p*G', 'square-root (ours)')
    """
    if mark_ours and name in _OURS:
        return _OURS[name]
    stem, comma, rest = name.partition(", ")
    return _LABELS.get(stem, stem) + comma + rest

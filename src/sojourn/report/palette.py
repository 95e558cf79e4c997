"""One colour and dash per strategy, the same in every figure.

The hues are those of Okabe and Ito, which people with any common colour blindness tell apart,
darkened for white paper and lightened for a dark screen.
"""

from collections.abc import Iterable, Mapping
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


def inks(names: Iterable[str], palette: Mapping[str, Ink] | None = None) -> dict[str, Ink]:
    """An ink for every name: that of ``palette``, a strategy's own, or the next that is free.

    >>> inks(["uniform", "eta 0.1"])["uniform"].light
    '#6b7280'
    """
    own = {**_INKS, **(palette or {})}
    wanted = list(dict.fromkeys(names))
    taken = {own[name].light for name in wanted if name in own}
    free = [ink for ink in _SPARE if ink.light not in taken] or list(_SPARE)
    others = [name for name in wanted if name not in own]
    spare = {name: free[i % len(free)] for i, name in enumerate(others)}
    return {name: own.get(name) or spare[name] for name in wanted}

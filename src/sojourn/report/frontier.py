"""The trade-off between throughput and staleness, drawn."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from sojourn.report.figure import Figure, Series, View
from sojourn.report.matplotlib_figure import save_view
from sojourn.types import FloatArray

_PENALTY = {
    "staleness": "staleness, weighed as updates are",
    "routing": "weight of updates (1: all alike)",
}


class Tradeoff(Protocol):
    """A frontier as `sojourn.optimize` computes it: the least penalty at every throughput."""

    @property
    def penalty(self) -> str:
        """Which penalty: staleness or routing."""

    @property
    def throughput(self) -> FloatArray:
        """Rounds per unit of time, rising."""

    @property
    def least(self) -> FloatArray:
        """The least penalty there."""

    @property
    def marks(self) -> Mapping[str, tuple[float, float]]:
        """Where named routings lie."""


def frontier_figure(curve: Tradeoff) -> Figure:
    """The frontier as a line, and the marked routings as points on or above it."""
    line = Series("frontier", curve.throughput, curve.least, label="frontier")
    points = [
        Series(name, [x], [y], kind="points", text=(name,)) for name, (x, y) in curve.marks.items()
    ]
    slow, fast = curve.throughput[0], curve.throughput[-1]
    return Figure(
        name="frontier",
        title="More updates per unit of time, or fresher ones",
        alt=f"From {slow:.3g} to {fast:.3g} rounds per unit of time, the least {curve.penalty} "
        f"penalty rises from {curve.least[0]:.3g} to {curve.least[-1]:.3g}; "
        + "; ".join(f"{name} at {x:.3g}, {y:.3g}" for name, (x, y) in curve.marks.items()),
        views=(
            View(
                x_label="updates per unit of time",
                y_label=_PENALTY[curve.penalty],
                series=(line, *points),
                log_x=True,
                log_y=True,
            ),
        ),
    )


def save_frontier(curve: Tradeoff, path: Path) -> None:
    """Draw the frontier into ``path``; its suffix (png, svg, pdf) chooses the format."""
    figure = frontier_figure(curve)
    save_view(figure, figure.views[0], path)

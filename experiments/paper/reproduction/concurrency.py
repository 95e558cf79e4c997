"""Claim 4: H under uniform routing against the number of tasks in flight."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from reproduction.checks import holds
from reproduction.claims import Judged
from reproduction.parameters import take_numbers
from sojourn._support.configuration import Table
from sojourn.figures.figure import Figure, Series, Table as ReportTable, View
from sojourn.fleet import Network, built_in_fleet, uniform_routing
from sojourn.theory.bounds import penalties, per_time
from sojourn.theory.constants import LearningConstants
from sojourn.types import FloatArray

Best = dict[float, int]
"""The best number of tasks for every learning rate, rising."""


@dataclass(frozen=True, eq=False)
class Concurrency:
    """H at 1, 2, ... tasks for every learning rate, and the best number of tasks for other constants.

    ``gap`` is the A/T of the curves. ``by_gap`` has the best numbers for a range of A/T; the paper
    does not print the constants of its figure.
    """

    curves: Mapping[float, FloatArray]
    gap: float
    by_gap: Mapping[float, Best]

    @property
    def best(self) -> Best:
        """The best numbers of the curves."""
        return {eta: int(np.argmin(self.curves[eta])) + 1 for eta in sorted(self.curves)}

    @property
    def largest(self) -> int:
        """The largest number of tasks that was tried."""
        return min(curve.size for curve in self.curves.values())

    @property
    def inside(self) -> dict[float, Best]:
        """The constants for which every best number lies within the range tried."""
        return {
            gap: best
            for gap, best in sorted(self.by_gap.items())
            if all(m < self.largest for m in best.values())
        }

    @property
    def slow(self) -> str:
        """The A/T for which the best number falls slowly, among those tried, in words; empty if none."""
        ranges: list[list[float]] = []
        before = False
        for gap, best in self.inside.items():
            slow = elasticity(best) < 1.0
            if slow and before:
                ranges[-1][1] = gap
            elif slow:
                ranges.append([gap, gap])
            before = slow
        return ", ".join(
            f"at {low:.3g}" if low == high else f"from {low:.3g} to {high:.3g}"
            for low, high in ranges
        )


def elasticity(best: Best) -> float:
    """How fast the best number falls: 1 means in inverse proportion to the learning rate.

    >>> elasticity({0.01: 20, 0.1: 2})
    1.0
    """
    low, high = min(best), max(best)
    return math.log(best[low] / best[high]) / math.log(high / low)


def compute(parameters: Table) -> Concurrency:
    """H for every number of tasks and learning rate; the network part is computed once each."""
    constants = LearningConstants.from_table(parameters)
    fleet = built_in_fleet(parameters.take("fleet", str))
    rates = sorted(take_numbers(parameters, "learning-rates"))
    largest = parameters.take("largest-concurrency", int)
    smallest_gap, largest_gap = take_numbers(parameters, "range-of-gaps")
    steps = parameters.take("gaps", int)
    parameters.close()
    parts = [penalties(Network(fleet, uniform_routing(fleet), m)) for m in range(1, largest + 1)]
    curves = {
        eta: np.array(
            [per_time(part, constants, learning_rate=eta, rounds=0).value for part in parts]
        )
        for eta in rates
    }
    slowness = np.array([1.0 / part.throughput for part in parts])
    gaps = np.geomspace(smallest_gap, largest_gap, steps)

    def best(gap: float, eta: float) -> int:
        # Of H only the first term, A/(T eta lambda), depends on A/T.
        more = (gap - constants.initial_gap) / eta
        return int(np.argmin(curves[eta] + more * slowness)) + 1

    by_gap = {float(gap): {eta: best(float(gap), eta) for eta in rates} for gap in gaps}
    return Concurrency(curves, constants.initial_gap, by_gap)


def judge(results: Concurrency) -> dict[str, Judged]:
    """The three statements; "slowly" cannot be judged without the constants of the figure."""
    best = results.best
    values = list(best.values())
    found = ", ".join(f"{m} at {eta:g}" for eta, m in best.items())
    inside = all(1 < m < results.curves[eta].size for eta, m in best.items())
    falls = all(after < before for before, after in pairwise(values))
    others = results.inside
    more_than_one = all(m > 1 for other in others.values() for m in other.values())
    fall = all(
        after <= before
        for other in others.values()
        for before, after in pairwise(list(other.values()))
    )
    span = f"A/T from {min(others):.3g} to {max(others):.3g}" if others else "no other A/T"
    return {
        "interior": Judged(
            f"Best number of tasks with A/T = {results.gap:g}: {found}. "
            f"{'Above' if more_than_one else 'Not always above'} one for {span}.",
            holds(inside and more_than_one),
        ),
        "falls": Judged(
            f"It {'falls' if falls else 'does not fall'} at every step with A/T = {results.gap:g}, and "
            f"{'never rises' if fall else 'rises somewhere'} for {span}.",
            holds(falls and fall),
        ),
        "slowly": Judged(_slowness(results), "inconclusive"),
    }


def _slowness(results: Concurrency) -> str:
    best, others = results.best, results.inside
    values = list(best.values())
    factor, span = values[0] / values[-1], max(best) / min(best)
    text = "The paper prints neither the constants nor the learning rates of its figure. "
    if results.slow:
        least = list(others[min(others)].values())
        text += (
            f"Of A/T from {min(others):.3g} to {max(others):.3g} the best number falls slowly {results.slow}: "
            f"with A/T = {min(others):.3g} a learning rate {span:.0f} times larger divides it by "
            f"{least[0] / least[-1]:.2g}. "
        )
    return f"{text}With A/T = {results.gap:g}, the value of another section, it divides it by {factor:.2g}."


def figures(results: Concurrency) -> tuple[Figure, ...]:
    """The paper's Figure 3, and how its minima depend on constants that are not printed."""
    series = []
    for eta, curve in sorted(results.curves.items()):
        tasks = np.arange(1, curve.size + 1)
        series.append(Series(f"eta {eta:g}", tasks, curve, label=f"η = {eta:g}"))
    lowest = Series(
        "minimum",
        list(results.best.values()),
        [float(results.curves[eta].min()) for eta in results.best],
        kind="points",
    )
    view = View("tasks in flight", "H (uniform)", (*series, lowest), log_x=True, log_y=True)
    found = ", ".join(f"{m} for {eta:g}" for eta, m in results.best.items())
    inside = sum(1 < m < results.curves[eta].size for eta, m in results.best.items())
    alt = (
        f"{inside} of {len(results.best)} curves have their minimum inside the range; the best number "
        f"of tasks by learning rate: {found}."
    )
    curves = Figure(
        "claim-4-concurrency",
        "H against tasks in flight",
        alt,
        (view,),
        caption=f"Ours: A/T = {results.gap:g}, B and the learning rates, which the paper does not print for this figure.",
        wide=True,
    )
    others = results.inside
    if not others:
        return (curves,)
    lines = tuple(
        Series(
            f"eta {eta:g}",
            list(others),
            [best[eta] for best in others.values()],
            label=f"η = {eta:g}",
        )
        for eta in results.best
    )
    minima = View("A/T", "best number of tasks", lines, log_x=True, log_y=True)
    slow = results.slow
    words = (
        f"It falls less than in inverse proportion to the learning rate for A/T {slow}."
        if slow
        else "It nowhere falls less than in inverse proportion to the learning rate."
    )
    ranges = "; ".join(
        f"{min(line.y):.0f} to {max(line.y):.0f} at {line.label.removeprefix('η = ')}"
        for line in lines
    )
    return (
        curves,
        Figure(
            "claim-4-constants",
            "The best number of tasks against A/T",
            f"{words} Best numbers over the range of A/T, by learning rate: {ranges}.",
            (minima,),
            wide=True,
        ),
    )


def tables(results: Concurrency) -> tuple[ReportTable, ...]:
    """The minima."""
    rows = tuple(
        (f"{eta:g}", str(m), f"{results.curves[eta].min():.4f}") for eta, m in results.best.items()
    )
    return (
        ReportTable(("learning rate", "best number of tasks", "H there"), rows, title="Minima"),
    )

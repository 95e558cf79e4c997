"""Claim 4: H under uniform routing against the number of tasks in flight."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sojourn.bounds import penalties, per_time
from sojourn.config import Table
from sojourn.constants import LearningConstants
from sojourn.figure import Figure, Series, Table as ReportTable, View
from sojourn.network import Network, built_in_fleet, uniform_routing
from sojourn.reproduce.checks import holds
from sojourn.reproduce.claims import Judged
from sojourn.reproduce.parameters import take_numbers
from sojourn.types import FloatArray


@dataclass(frozen=True, eq=False)
class Concurrency:
    """H at 1, 2, ... tasks for every learning rate."""

    curves: Mapping[float, FloatArray]

    @property
    def best(self) -> dict[float, int]:
        """The best number of tasks for every learning rate, rising."""
        return {eta: int(np.argmin(self.curves[eta])) + 1 for eta in sorted(self.curves)}

    @property
    def elasticity(self) -> float:
        """How fast the best number falls: 1 means in inverse proportion to the learning rate."""
        best = self.best
        low, high = min(best), max(best)
        return math.log(best[low] / best[high]) / math.log(high / low)


def compute(parameters: Table) -> Concurrency:
    """H for every number of tasks and learning rate; the network part is computed once each."""
    constants = LearningConstants.from_table(parameters)
    fleet = built_in_fleet(parameters.take("fleet", str))
    rates = take_numbers(parameters, "learning-rates")
    largest = parameters.take("largest-concurrency", int)
    parameters.close()
    parts = [penalties(Network(fleet, uniform_routing(fleet), m)) for m in range(1, largest + 1)]
    return Concurrency(
        {
            eta: np.array(
                [per_time(part, constants, learning_rate=eta, rounds=0).value for part in parts]
            )
            for eta in rates
        }
    )


def judge(results: Concurrency) -> dict[str, Judged]:
    """The three statements."""
    best = results.best
    values = list(best.values())
    found = ", ".join(f"{m} at {eta:g}" for eta, m in best.items())
    inside = all(1 < m < results.curves[eta].size for eta, m in best.items())
    falls = all(after < before for before, after in pairwise(values))
    factor, span = values[0] / values[-1], max(best) / min(best)
    return {
        "interior": Judged(f"Best number of tasks: {found}.", holds(inside)),
        "falls": Judged("It falls at every step." if falls else "It does not.", holds(falls)),
        "slowly": Judged(
            f"A learning rate {span:.0f} times larger divides it by {factor:.0f}.",
            holds(results.elasticity < 1.0),
        ),
    }


def figures(results: Concurrency) -> tuple[Figure, ...]:
    """The paper's Figure 3."""
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
    return (Figure("claim-4-concurrency", "H against tasks in flight", alt, (view,), wide=True),)


def tables(results: Concurrency) -> tuple[ReportTable, ...]:
    """The minima."""
    rows = tuple(
        (f"{eta:g}", str(m), f"{results.curves[eta].min():.4f}") for eta, m in results.best.items()
    )
    return (
        ReportTable(("learning rate", "best number of tasks", "H there"), rows, title="Minima"),
    )

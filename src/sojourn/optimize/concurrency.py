"""The best number of tasks in flight: a bracket by doubling, then golden section on whole numbers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sojourn.errors import InvalidInput, Unreachable
from sojourn.network import MOST_TASKS, Fleet, Network, named_routing
from sojourn.optimize.descent import lbfgs
from sojourn.optimize.objectives import Objective
from sojourn.optimize.routing import Progress, Solution, optimize_routing

EXHAUSTIVE = 8
"""Width below which every whole number is tried."""
GOLDEN = (3.0 - 5.0**0.5) / 2.0


@dataclass(frozen=True, eq=False)
class ConcurrencySolution:
    """The best concurrency: the network at it, the objective's value, and every value tried."""

    objective: Objective
    network: Network
    value: float
    learning_rate: float | None
    tried: dict[int, float]

    @property
    def concurrency(self) -> int:
        return self.network.concurrency

    def __repr__(self) -> str:
        return (
            f"ConcurrencySolution(m = {self.concurrency}: {self.objective.name} {self.value:.8g}, "
            f"{len(self.tried)} values tried)"
        )


def optimize_concurrency(
    fleet: Fleet,
    objective: Objective,
    *,
    routing: ArrayLike | str | None = None,
    progress: Progress | None = None,
) -> ConcurrencySolution:
    r"""The concurrency that makes ``objective`` best, with the routing given or optimised at each.

    ``routing`` is a vector per class, a closed-form name, or ``None`` for the best at every
    concurrency. The objective is taken to have one valley in :math:`m`: doubling until it has risen
    twice brackets it, golden section and a scan of the last few values finish. Cost: some 30
    evaluations, or as many descents.

    >>> from sojourn.bounds import LearningConstants
    >>> from sojourn.network import built_in_fleet
    >>> from sojourn.optimize.objectives import PerTime
    >>> constants = LearningConstants(initial_gap=15, smoothness=1, gradient_noise=3, heterogeneity=10)
    >>> optimize_concurrency(built_in_fleet("fifty"), PerTime(constants, 0.05, 0), routing="uniform")
    ConcurrencySolution(m = 18: per-time ..., ... values tried)
    """
    if objective.maximize:
        raise InvalidInput(
            f"{objective.name} grows with every task in flight and has no best concurrency: give one"
        )
    networks: dict[int, Network] = {}
    if routing is None:
        network_at = _descending(fleet, objective, networks, progress)
    else:
        fixed = named_routing(fleet, routing) if isinstance(routing, str) else routing

        def network_at(m: int) -> Network:
            return Network(fleet, fixed, m)

    tried: dict[int, float] = {}
    unreachable: dict[int, Unreachable] = {}

    def value(m: int) -> float:
        if m not in tried:
            try:
                networks[m] = network_at(m)
                tried[m] = objective.evaluate(networks[m]).value
            except Unreachable as error:
                tried[m], unreachable[m] = np.inf, error
        return tried[m]

    best = smallest_of_valley(value)
    if best in unreachable:
        raise unreachable[best]
    if routing is None:
        return _with_full_search(fleet, objective, best, tried, progress)
    evaluation = objective.evaluate(networks[best])
    return ConcurrencySolution(
        objective=objective,
        network=networks[best],
        value=evaluation.value,
        learning_rate=evaluation.learning_rate,
        tried=tried,
    )


def smallest_of_valley(value: Callable[[int], float]) -> int:
    """The whole number from 1 on at which ``value``, falling and then rising, is least.

    >>> smallest_of_valley(lambda m: (m - 1000) ** 2)
    1000
    """
    at, rises = 1, 0
    best = 1
    while rises < 2:
        at *= 2
        if at > MOST_TASKS:
            raise InvalidInput(
                f"the objective still improves at {MOST_TASKS} tasks in flight: give a concurrency"
            )
        if value(at) < value(best):
            best, rises = at, 0
        else:
            rises += 1
    low, high = max(1, best // 2), best * 2
    while high - low > EXHAUSTIVE:
        left = low + max(1, round(GOLDEN * (high - low)))
        right = high - max(1, round(GOLDEN * (high - low)))
        if value(left) <= value(right):
            high = right
        else:
            low = left
    return min(range(low, high + 1), key=value)


def _descending(
    fleet: Fleet, objective: Objective, known: dict[int, Network], progress: Progress | None
) -> Callable[[int], Network]:
    """One descent per concurrency, from the routing of the nearest concurrency known."""

    def network_at(m: int) -> Network:
        if progress is not None:
            progress(f"concurrency {m}")
        if not known:
            return optimize_routing(fleet, m, objective).network
        nearest = known[min(known, key=lambda other: abs(np.log(other / m)))]
        return lbfgs(nearest.fleet, m, objective, nearest.routing).network

    return network_at


def _with_full_search(
    fleet: Fleet,
    objective: Objective,
    near: int,
    tried: dict[int, float],
    progress: Progress | None,
) -> ConcurrencySolution:
    """All starts at the concurrency found and around it, since symmetry breaking may move it."""
    solutions: dict[int, Solution] = {}
    searched: set[int] = set()

    def value(m: int) -> float:
        if m not in searched:
            searched.add(m)
            if progress is not None:
                progress(f"concurrency {m}, all starts")
            try:
                solutions[m] = optimize_routing(fleet, m, objective)
                tried[m] = solutions[m].value
            except Unreachable:
                tried[m] = np.inf
        return tried[m]

    best, step = near, max(1, near // 8)
    value(best)
    while step:
        better = [m for m in (best - step, best + step) if m >= 1 and value(m) < value(best)]
        if better:
            best = min(better, key=value)
        else:
            step //= 2
    found = solutions[best]
    return ConcurrencySolution(
        objective=objective,
        network=found.network,
        value=found.value,
        learning_rate=found.learning_rate,
        tried=tried,
    )

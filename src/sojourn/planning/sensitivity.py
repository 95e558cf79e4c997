"""What each class of clients is worth to a plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from sojourn.errors import Unreachable
from sojourn.fleet import Fleet, Network
from sojourn.planning.plan import Plan
from sojourn.planning.search.descent import descend
from sojourn.types import FloatArray, Step

Change = Callable[[Fleet, FloatArray, int], tuple[Fleet | None, FloatArray]]


@dataclass(frozen=True)
class Sensitivity:
    """The plan's objective if one client of a class were removed, or twice as fast."""

    name: str
    now: float
    without_one: float | None
    one_twice_as_fast: float | None


def sensitivity(
    plan: Plan,
    *,
    classes: Sequence[int] | None = None,
    progress: Step | None = None,
) -> tuple[Sensitivity, ...]:
    """The objective's value with one client of each class gone, and with one twice as fast.

    ``classes`` picks classes of ``plan.fleet`` by number (all by default). The routing is optimised
    anew from the plan's, the concurrency and the number of rounds stay; where the plan singles out
    clients of a class, one of each kind is tried and the best result kept. A value is ``None`` where
    it does not exist: the last client cannot be removed, an accuracy may be out of reach. Cost: two
    descents per class of the plan's network.

    >>> from sojourn.theory.constants import LearningConstants
    >>> from sojourn.fleet import built_in_fleet
    >>> from sojourn.planning.objectives import PerTime
    >>> from sojourn.planning import plan
    >>> constants = LearningConstants(initial_gap=15, smoothness=1, gradient_noise=3, heterogeneity=10)
    >>> best = plan(built_in_fleet("three-clusters"), PerTime(constants, 0.01, 0), concurrency=30)
    >>> [row.without_one < row.now for row in sensitivity(best)[:1]]  # a slow one costs time
    [True]
    """
    rows = []
    with threadpool_limits(limits=1, user_api="blas"):
        for k in range(plan.fleet.classes) if classes is None else classes:
            if progress is not None:
                progress(plan.fleet.label(k))
            rows.append(
                Sensitivity(
                    name=plan.fleet.label(k),
                    now=plan.value,
                    without_one=_best(plan, k, _without_one),
                    one_twice_as_fast=_best(plan, k, _one_twice_as_fast),
                )
            )
    return tuple(rows)


def _best(plan: Plan, k: int, change: Change) -> float | None:
    """The best value after ``change`` of one client of class ``k``, whichever of its kinds it is."""
    parts = np.flatnonzero(plan.network.parents == k).tolist()
    found = [
        value
        for part in parts
        if (value := _value(plan, *change(plan.network.fleet, plan.network.routing, part)))
        is not None
    ]
    pick = max if plan.objective.maximize else min
    return pick(found, default=None)


def _value(plan: Plan, fleet: Fleet | None, routing: FloatArray) -> float | None:
    if fleet is None:
        return None
    start = routing / (fleet.counts @ routing)
    try:
        server_rate = plan.network.server_rate
        begin = Network(fleet, start, plan.concurrency, server_rate=server_rate)
        return descend(begin, plan.objective).value
    except Unreachable:
        return None


def _without_one(fleet: Fleet, routing: FloatArray, k: int) -> tuple[Fleet | None, FloatArray]:
    if fleet.size == 1:
        return None, routing
    counts = fleet.counts.copy()
    counts[k] -= 1
    left = counts > 0
    kept = np.flatnonzero(left)
    return fleet.select(kept, counts[kept]), routing[kept]


def _one_twice_as_fast(fleet: Fleet, routing: FloatArray, k: int) -> tuple[Fleet, FloatArray]:
    counts = np.append(fleet.counts, 1)
    counts[k] -= 1
    kept = np.flatnonzero(counts > 0)
    classes = np.append(np.arange(fleet.classes), k)[kept]
    changed = fleet.select(classes, counts[kept])
    rates = changed.service_rates.copy()
    rates[-1] *= 2.0
    return changed.with_rates(rates), np.append(routing, routing[k])[kept]

"""Routings along one parameter, for objectives without a gradient."""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from sojourn.errors import Unreachable
from sojourn.fleet import Fleet, Network
from sojourn.planning.objectives import Objective
from sojourn.planning.search.descent import Descent, LogObjective, simplex
from sojourn.planning.search.starts import Start
from sojourn.types import FloatArray

EXPONENTS = np.linspace(-1.0, 3.0, 9)
"""Where the search along the exponent begins; uniform, square-root and balanced are among them."""
MOST_STEPS = 40
"""Evaluations between the two neighbours of the best of them."""


def exponent_routing(fleet: Fleet, exponent: float) -> FloatArray:
    r"""Proportional to a power of speed, :math:`p_i \propto \mu_i^\alpha`.

    >>> exponent_routing(Fleet([1.0, 4.0]), 0.5).round(6).tolist()
    [0.333333, 0.666667]
    """
    logs = exponent * np.log(fleet.service_rates)
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / (fleet.counts @ weights), dtype=np.float64)


def exponent_map(
    fleet: Fleet,
    objective: Objective,
    exponents: FloatArray,
    tasks: ArrayLike,
    *,
    server_rate: float | None = None,
) -> FloatArray:
    """The objective for every number of tasks in flight (rows) and exponent; ``nan`` out of reach.

    Cost: an evaluation per cell.
    """
    routings = [exponent_routing(fleet, float(exponent)) for exponent in exponents]

    def value(routing: FloatArray, m: int) -> float:
        try:
            network = Network(fleet, routing, m, server_rate=server_rate)
            return objective.evaluate(network).value
        except Unreachable:
            return float("nan")

    return np.array([[value(p, int(m)) for p in routings] for m in np.asarray(tasks).tolist()])


def search_along_exponent(network: Network, objective: Objective) -> tuple[Start, Descent]:
    r"""The best :math:`p_i \propto \mu_i^\alpha`, then, for few classes, a simplex from there.

    Cost: at most 49 evaluations along :math:`\alpha`, and 100 per class for up to 8 classes.
    """
    measure, fleet = LogObjective(objective), network.fleet

    def value(exponent: float) -> float:
        try:
            return measure(replace(network, routing=exponent_routing(fleet, exponent)))[0]
        except Unreachable:
            return np.inf

    values = [value(exponent) for exponent in EXPONENTS]
    best = int(np.argmin(values))
    if np.isinf(values[best]):
        raise Unreachable(f"{objective.name} is not defined for any routing tried")
    low, high = EXPONENTS[max(0, best - 1)], EXPONENTS[min(best + 1, EXPONENTS.size - 1)]
    from scipy.optimize import minimize_scalar  # slow to import: a command's help needs none

    inner = minimize_scalar(
        value, bounds=(low, high), method="bounded", options={"maxiter": MOST_STEPS, "xatol": 1e-4}
    )
    exponent = float(inner.x if inner.fun < values[best] else EXPONENTS[best])
    start = Start.whole_fleet(
        f"speed to the power {exponent:.3g}", fleet, exponent_routing(fleet, exponent)
    )
    return start, simplex(start.network(network), objective)

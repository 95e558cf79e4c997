"""How many updates the server collects before it makes them, best with routing and concurrency."""

import math
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike

from sojourn.errors import InvalidInput, Unreachable
from sojourn.network import Fleet, Network, named_routing
from sojourn.optimize.concurrency import optimize_concurrency, smallest_of_valley
from sojourn.optimize.objectives import Objective, form_of
from sojourn.optimize.routing import Progress, optimize_routing
from sojourn.optimize.solution import Solution


def optimize_buffer(
    fleet: Fleet,
    objective: Objective,
    *,
    concurrency: int | None = None,
    routing: ArrayLike | str | None = None,
    server_rate: float | None = None,
    progress: Progress | None = None,
) -> Solution:
    r"""The buffer :math:`K` that makes ``objective`` best, with all that is left open best for each.

    The solution's objective has it in its ``form``. The objective is taken to have one valley in
    :math:`K`. With the best learning rate for every :math:`K` the least is at 1: what one update
    counts is then chosen freely, and updates that wait in a buffer are only staler. A learning rate
    that is given for the step of a whole buffer is divided by :math:`K` for each update, so where it
    is too large for one, a buffer helps. Cost: some ten plans.

    >>> from sojourn.constants import LearningConstants
    >>> from sojourn.network import built_in_fleet
    >>> from sojourn.optimize.objectives import PerRound
    >>> constants = LearningConstants(initial_gap=15, smoothness=1, gradient_noise=3, heterogeneity=10)
    >>> asked = {"concurrency": 20, "routing": "uniform"}
    >>> found = optimize_buffer(built_in_fleet("twenty"), PerRound(constants, 0.1, 1000), **asked)
    >>> found.objective.form.buffer
    29
    """
    if not hasattr(objective, "form"):
        raise InvalidInput(
            f"{objective.name} does not depend on how many updates the server collects: leave out "
            "the buffer"
        )
    form, found = form_of(objective), dict[int, Solution | Unreachable]()
    settings: dict[str, Any] = {"server_rate": server_rate}

    def solved(buffer: int) -> Solution:
        wanted: Any = replace(objective, form=replace(form, buffer=buffer))  # type: ignore[type-var]
        if progress is not None:
            progress(f"buffer {buffer}")
        if concurrency is None:
            return optimize_concurrency(fleet, wanted, routing=routing, **settings)
        if routing is None:
            return optimize_routing(fleet, concurrency, wanted, **settings)
        p = named_routing(fleet, routing) if isinstance(routing, str) else routing
        return Solution.at(Network(fleet, p, concurrency, **settings), wanted)

    def value(buffer: int) -> float:
        if buffer not in found:
            try:
                found[buffer] = solved(buffer)
            except Unreachable as error:
                found[buffer] = error
        reached = found[buffer]
        return reached.value if isinstance(reached, Solution) else math.inf

    best = found[smallest_of_valley(value)]
    if not isinstance(best, Solution):
        raise best
    return best

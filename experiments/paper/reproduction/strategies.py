"""The strategies that training claims compare: the paper's four routings, and ours beside them."""

from typing import Any

import numpy as np

from reproduction.settings import Setting, Size
from sojourn.errors import UnknownName
from sojourn.fleet import ROUTINGS, named_routing
from sojourn.planning.objectives import Objective, PerRound, PerTime, TimeBudget
from sojourn.planning.search.routing import optimize_routing
from sojourn.theory.constants import LearningConstants
from sojourn.types import FloatArray

NEVER_QUEUE: dict[str, dict[str, Any]] = {
    "never-queue": {"name": "async-sgd"},
    "never-queue, unbiased": {"name": "async-sgd", "debias": 1.0},
}
"""Rules under which no client has more than one task, by the name of their strategy."""

STRATEGIES = (*ROUTINGS, "g-optimal", "h-optimal", "h-printed", "plan", *NEVER_QUEUE)


def strategy_of(
    strategy: str,
    setting: Setting,
    size: Size,
    constants: LearningConstants,
    measured: LearningConstants | None,
) -> dict[str, Any]:
    """The table of a strategy in an experiment: a routing of the paper's rule, or a rule of ours."""
    if strategy in NEVER_QUEUE:
        return {
            "name": strategy,
            "rule": NEVER_QUEUE[strategy],
            "policy": "never-queue",
            "concurrency": min(setting.concurrency, setting.fleet.size),
        }
    routing = routing_of(strategy, setting, size, constants, measured)
    return {"name": strategy, "routing": routing.tolist()}


def routing_of(
    strategy: str,
    setting: Setting,
    size: Size,
    constants: LearningConstants,
    measured: LearningConstants | None,
) -> FloatArray:
    """The routing of every client of a setting under ``strategy``.

    ``g-optimal`` and ``h-optimal`` minimise G and H with the paper's ``constants``, ``h-printed`` is
    the vector that the paper prints, which sums to 1.004, rescaled to 1. ``plan`` is what `sojourn plan` makes of the constants
    ``measured`` on the data, for the rounds or the time of the run and the paper's concurrency; the
    learning rate is left to the plan, whose routing is then trained at the paper's rate like all.
    """
    rate = setting.learning_rate
    if strategy in ROUTINGS:
        return named_routing(setting.fleet, strategy)
    if strategy == "g-optimal":
        return _best(setting, PerRound(constants, learning_rate=rate, rounds=0))
    if strategy == "h-optimal":
        return _best(setting, PerTime(constants, learning_rate=rate, rounds=0))
    if strategy == "h-printed" and setting.printed is not None:
        each = np.repeat(setting.printed, setting.fleet.size // setting.printed.size)
        return np.asarray(each / each.sum(), dtype=np.float64)
    if strategy == "plan" and measured is not None:
        return _best(setting, _objective_of_plan(setting, size, measured))
    raise UnknownName("strategy", strategy, STRATEGIES)


def _objective_of_plan(setting: Setting, size: Size, measured: LearningConstants) -> Objective:
    if setting.axis == "time" and size.time is not None:
        return TimeBudget(measured, time=size.time)
    return PerRound(measured, learning_rate=None, rounds=float(size.rounds or 0))


def _best(setting: Setting, objective: Objective) -> FloatArray:
    """The optimum as probabilities of the setting's clients, slowest first.

    Equal clients are grouped while optimising, so that the search can single out one or two of
    them; the setting's clients are in order of speed, and so is what is returned.
    """
    rates, counts = np.unique(setting.fleet.service_rates, return_counts=True)
    grouped = type(setting.fleet)(rates, counts)
    routing = optimize_routing(grouped, setting.concurrency, objective).network.client_routing
    return np.asarray(routing / routing.sum(), dtype=np.float64)

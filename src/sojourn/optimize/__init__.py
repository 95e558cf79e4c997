"""Routing, concurrency and learning rate that are best for an objective: a plan."""

from sojourn.optimize.concurrency import ConcurrencySolution, optimize_concurrency
from sojourn.optimize.grouping import Grouping, group_clients
from sojourn.optimize.objectives import (
    Objective,
    PerRound,
    PerTime,
    Throughput,
    TimeBudget,
    TimeToAccuracy,
)
from sojourn.optimize.plan import Plan, Prediction, plan
from sojourn.optimize.routing import Attempt, Solution, optimize_routing

__all__ = [
    "Attempt",
    "ConcurrencySolution",
    "Grouping",
    "Objective",
    "PerRound",
    "PerTime",
    "Plan",
    "Prediction",
    "Solution",
    "Throughput",
    "TimeBudget",
    "TimeToAccuracy",
    "group_clients",
    "optimize_concurrency",
    "optimize_routing",
    "plan",
]

"""Routing, concurrency and learning rate that are best for an objective: a plan."""

from sojourn.optimize.concurrency import ConcurrencySolution, optimize_concurrency
from sojourn.optimize.frontier import Frontier, frontier
from sojourn.optimize.grouping import Grouping, group_clients
from sojourn.optimize.objectives import (
    Objective,
    PerRound,
    PerTime,
    Throughput,
    TimeBudget,
    TimeToAccuracy,
)
from sojourn.optimize.planning import Plan, Prediction, plan
from sojourn.optimize.routing import Attempt, Solution, optimize_routing
from sojourn.optimize.sensitivity import Worth, sensitivity

__all__ = [
    "Attempt",
    "ConcurrencySolution",
    "Frontier",
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
    "Worth",
    "frontier",
    "group_clients",
    "optimize_concurrency",
    "optimize_routing",
    "plan",
    "sensitivity",
]

"""The routing and the concurrency that are best for an objective."""

from sojourn.optimize.buffer import optimize_buffer
from sojourn.optimize.concurrency import optimize_concurrency
from sojourn.optimize.energy import Energy, TimeAndEnergy
from sojourn.optimize.grouping import Grouping, group_clients
from sojourn.optimize.noise import NoiseRate
from sojourn.optimize.objectives import (
    Evaluation,
    Objective,
    PerRound,
    PerTime,
    Throughput,
    TimeBudget,
    TimeToAccuracy,
)
from sojourn.optimize.registry import OBJECTIVES, objective_from_table
from sojourn.optimize.routing import optimize_routing
from sojourn.optimize.solution import Attempt, Solution

__all__ = [
    "OBJECTIVES",
    "Attempt",
    "Energy",
    "Evaluation",
    "Grouping",
    "NoiseRate",
    "Objective",
    "PerRound",
    "PerTime",
    "Solution",
    "Throughput",
    "TimeAndEnergy",
    "TimeBudget",
    "TimeToAccuracy",
    "group_clients",
    "objective_from_table",
    "optimize_buffer",
    "optimize_concurrency",
    "optimize_routing",
]

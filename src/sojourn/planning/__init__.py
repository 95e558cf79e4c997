"""Plans for a fleet: routing, concurrency and learning rate, what they promise and trade."""

from sojourn.planning.frontier import (
    EnergyFrontier,
    Frontier,
    energy_frontier,
    frontier,
    time_and_energy,
)
from sojourn.planning.plan import Plan, Prediction, plan
from sojourn.planning.sensitivity import Sensitivity, sensitivity

__all__ = [
    "EnergyFrontier",
    "Frontier",
    "Plan",
    "Prediction",
    "Sensitivity",
    "energy_frontier",
    "frontier",
    "plan",
    "sensitivity",
    "time_and_energy",
]

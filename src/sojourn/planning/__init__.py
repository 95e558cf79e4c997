"""Plans for a fleet: routing, concurrency and learning rate, what they promise and trade."""

from sojourn.planning.frontier import Frontier, frontier
from sojourn.planning.plan import Plan, Prediction, plan
from sojourn.planning.sensitivity import Sensitivity, sensitivity
from sojourn.planning.tradeoff import EnergyFrontier, energy_frontier, time_and_energy

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

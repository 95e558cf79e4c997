"""Plans for a fleet: routing, concurrency and learning rate, what they promise and trade."""

from sojourn.planning.frontier import Frontier, frontier
from sojourn.planning.plan import Plan, Prediction, plan
from sojourn.planning.sensitivity import Sensitivity, sensitivity

__all__ = ["Frontier", "Plan", "Prediction", "Sensitivity", "frontier", "plan", "sensitivity"]

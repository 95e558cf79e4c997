"""Exact steady state of the closed Jackson network.

Two engines behind one door, ``steady_state``: mean-value analysis for small populations, a contour
integral for large ones. ``occupancy`` adds links and server; ``analyze`` and ``covariance`` are what
users call.
"""

from sojourn.theory.jackson.analysis import Analysis, analyze, covariance
from sojourn.theory.jackson.occupancy import Occupancy, link_times, occupancy
from sojourn.theory.jackson.steady_state import SteadyState, steady_state

__all__ = [
    "Analysis",
    "Occupancy",
    "SteadyState",
    "analyze",
    "covariance",
    "link_times",
    "occupancy",
    "steady_state",
]

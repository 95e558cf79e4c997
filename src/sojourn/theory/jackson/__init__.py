"""Exact steady state of the closed Jackson network.

Two engines behind one door, ``steady_state``: mean-value analysis for small populations, a contour
integral for large ones. ``occupancy`` adds links and server; ``analyze`` and ``covariance`` are what
users call.
"""

from sojourn.theory.jackson.analysis import (
    Analysis as Analysis,
    analyze as analyze,
    covariance as covariance,
)
from sojourn.theory.jackson.occupancy import (
    Occupancy as Occupancy,
    occupancy as occupancy,
)
from sojourn.theory.jackson.steady_state import (
    SteadyState as SteadyState,
    steady_state as steady_state,
)

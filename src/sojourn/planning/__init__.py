"""Plans for a fleet: routing, concurrency and learning rate, what they promise and trade."""

from sojourn.planning.frontier import (
    EnergyFrontier as EnergyFrontier,
    Frontier as Frontier,
    energy_frontier as energy_frontier,
    frontier as frontier,
    time_and_energy as time_and_energy,
)
from sojourn.planning.plan import Plan as Plan, Prediction as Prediction, plan as plan
from sojourn.planning.sensitivity import Sensitivity as Sensitivity, sensitivity as sensitivity

"""Who the clients are (`Fleet`), how tasks reach them (`Network`), and the closed-form routings."""

from sojourn.fleet.fleet import Fleet
from sojourn.fleet.named import BUILT_IN_FLEETS, built_in_fleet
from sojourn.fleet.network import (
    MOST_TASKS,
    ROUTINGS,
    Network,
    balanced_routing,
    check_concurrency,
    named_routing,
    square_root_routing,
    uniform_routing,
)

__all__ = [
    "BUILT_IN_FLEETS",
    "MOST_TASKS",
    "ROUTINGS",
    "Fleet",
    "Network",
    "balanced_routing",
    "built_in_fleet",
    "check_concurrency",
    "named_routing",
    "square_root_routing",
    "uniform_routing",
]

"""Who the clients are (`Fleet`), how tasks reach them (`Network`), and the closed-form routings."""

from sojourn.network.fleet import BUILT_IN_FLEETS, Fleet, built_in_fleet
from sojourn.network.network import MOST_TASKS, Network, check_concurrency
from sojourn.network.routings import (
    ROUTINGS,
    balanced_routing,
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

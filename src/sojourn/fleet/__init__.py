"""Who the clients are (`Fleet`), how tasks reach them (`Network`), and the closed-form routings."""

from sojourn.fleet.fleet import Fleet as Fleet
from sojourn.fleet.named import BUILT_IN_FLEETS as BUILT_IN_FLEETS, built_in_fleet as built_in_fleet
from sojourn.fleet.network import (
    MOST_TASKS as MOST_TASKS,
    ROUTINGS as ROUTINGS,
    Network as Network,
    balanced_routing as balanced_routing,
    check_concurrency as check_concurrency,
    named_routing as named_routing,
    square_root_routing as square_root_routing,
    uniform_routing as uniform_routing,
)

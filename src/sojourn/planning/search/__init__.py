"""Searches for the routing, the concurrency and the buffer that are best for an objective."""

from sojourn.planning.search.concurrency import (
    optimize_buffer as optimize_buffer,
    optimize_concurrency as optimize_concurrency,
)
from sojourn.planning.search.routing import (
    Attempt as Attempt,
    Solution as Solution,
    optimize_routing as optimize_routing,
)
from sojourn.planning.search.starts import Grouping as Grouping, group_clients as group_clients

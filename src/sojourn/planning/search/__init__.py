"""Searches for the routing, the concurrency and the buffer that are best for an objective."""

from sojourn.planning.search.concurrency import optimize_buffer, optimize_concurrency
from sojourn.planning.search.routing import optimize_routing
from sojourn.planning.search.solution import Attempt, Solution
from sojourn.planning.search.starts import Grouping, group_clients

__all__ = [
    "Attempt",
    "Grouping",
    "Solution",
    "group_clients",
    "optimize_buffer",
    "optimize_concurrency",
    "optimize_routing",
]

"""Whether what a rule remembers fits into this machine."""

import os

from sojourn.errors import InvalidInput
from sojourn.rules.state import Rule
from sojourn.types import Vector


def check_memory(rule: Rule, clients: int, weights: Vector) -> None:
    """Raise if the rule's ``memory``, of numbers like the weights', exceeds this machine's.

    Rules that do not say what they keep are taken to keep little.
    """
    count = getattr(rule, "memory", lambda clients, dimension: 0)(clients, weights.size)
    needed, present = count * weights.itemsize, _physical_bytes()
    if present is not None and needed > present:
        raise InvalidInput(
            f"the rule '{rule.name}' keeps {count:,} numbers beyond the weights, for {clients:,} "
            f"clients and {weights.size:,} weights: {needed / 1e9:,.1f} GB, where this machine has "
            f"{present / 1e9:,.1f} GB. Take a rule that keeps no table, such as 'async-sgd' with "
            "momentum at the server."
        )


def vectors_kept(rule: Rule, clients: int) -> int:
    """How many vectors as long as the weights the rule keeps beyond them.

    >>> from sojourn.rules.tables import ACE
    >>> vectors_kept(ACE(), clients=30)
    31
    """
    memory = getattr(rule, "memory", lambda clients, dimension: 0)
    return int(memory(clients, 2) - memory(clients, 1))


def _physical_bytes() -> int | None:
    """All the memory there is; what is free now says little, since caches give way."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None

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


def keeps_table(rule: Rule, clients: int) -> bool:
    """Whether the rule keeps at least a vector as long as the weights for every client.

    >>> from sojourn.rules.tables import ACE
    >>> from sojourn.rules.gradients import AsyncSGD
    >>> keeps_table(ACE(), clients=30), keeps_table(AsyncSGD(), clients=30)
    (True, False)
    """
    return _vectors(rule, clients) >= clients


def memory_note(rule: Rule, clients: int, weights: Vector) -> str:
    """What the rule keeps beyond the weights, in a sentence; raises if it does not fit.

    >>> import numpy as np
    >>> from sojourn.rules.tables import ACE
    >>> memory_note(ACE(), 30, np.zeros(4810, dtype=np.float32))
    "the rule 'ace' keeps 31 vectors of 4,810 numbers, for 30 clients: 0.6 MB"
    """
    check_memory(rule, clients, weights)
    vectors = _vectors(rule, clients)
    megabytes = vectors * weights.size * weights.itemsize / 1e6
    size = f"{megabytes / 1e3:,.1f} GB" if megabytes >= 1e3 else f"{megabytes:,.1f} MB"
    return (
        f"the rule '{rule.name}' keeps {vectors:,} vectors of {weights.size:,} numbers, for "
        f"{clients:,} clients: {size}"
    )


def _vectors(rule: Rule, clients: int) -> int:
    memory = getattr(rule, "memory", lambda clients, dimension: 0)
    return int(memory(clients, 2) - memory(clients, 1))


def _physical_bytes() -> int | None:
    """All the memory there is; what is free now says little, since caches give way."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None

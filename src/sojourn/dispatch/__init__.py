r"""Dispatch policies: who gets the next task.

A policy is a small frozen value. What it decides by, it sees through a `View` of the clients; its
memory during one run is a `Chooser`. The same choosers serve the simulator's plain event loop and
the server of a deployment; the compiled kernel has forms of its own for the first five policies
here, which the tests hold against the plain loop.

===============  =================================================================================
policy           the next task goes to
===============  =================================================================================
``routed``       a client drawn from the routing, busy or not (the paper)
``never-queue``  the idle client that is furthest behind its target rate; nobody ever waits
``idle``         a client drawn uniformly among the idle ones
``shuffled``     clients in a fresh random order every n dispatches
``synchronous``  a cohort of m distinct clients, drawn when the last of the cohort before is done
``restart``      as ``never-queue``; a running task that has become too stale begins anew
``first-of``     a cohort; after its first results the rest are stopped and the next one begins
``attempts``     whoever has attempts left in this round, each of which may be cut short
===============  =================================================================================
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sojourn._support.extensions import from_table, to_table
from sojourn.dispatch.policies import (
    Idle,
    NeverQueue,
    Routed,
    Shuffled,
    Synchronous,
    intervals,
)
from sojourn.dispatch.policy import Chooser, Policy, View, not_deployable
from sojourn.dispatch.stopping import Attempts, FirstOf, Restart
from sojourn.errors import InvalidInput

__all__ = [
    "POLICIES",
    "Attempts",
    "Chooser",
    "FirstOf",
    "Idle",
    "NeverQueue",
    "Policy",
    "Restart",
    "Routed",
    "Shuffled",
    "Synchronous",
    "View",
    "as_policy",
    "intervals",
    "not_deployable",
    "policy_to_table",
]

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (Routed, NeverQueue, Idle, Shuffled, Synchronous, Restart, FirstOf, Attempts)
}
"""Every policy by the name that configuration calls it."""


def as_policy(
    given: "str | Mapping[str, object] | Policy", where: str = "policy", folder: Path | None = None
) -> Policy:
    """A policy as it is, or of its name (``module:name`` for one's own), or from its table.

    >>> as_policy("never-queue"), as_policy({"name": "restart", "max-staleness": 5})
    (NeverQueue(patience=None), Restart(max_staleness=5))
    """
    if not isinstance(given, str | Mapping):
        policy: Any = given
    else:
        policy = from_table(given, POLICIES, "policy", where=where, folder=folder)
    if not isinstance(policy, Policy):
        raise InvalidInput(
            f"{where}: a policy must be an instance of sojourn.dispatch.Policy; it is {policy!r}"
        )
    return policy


def policy_to_table(policy: Policy) -> "str | dict[str, object]":
    """What `as_policy` reads back: the name alone where there are no parameters.

    >>> policy_to_table(NeverQueue())
    'never-queue'
    """
    table = to_table(policy, POLICIES)
    return str(table["name"]) if len(table) == 1 else table

"""Policies by name, from configuration and back to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sojourn.dispatch.attempts import Attempts
from sojourn.dispatch.policies import Idle, NeverQueue, Routed, Shuffled, Synchronous
from sojourn.dispatch.policy import Policy
from sojourn.dispatch.stopping import FirstOf, Restart
from sojourn.errors import InvalidInput
from sojourn.extensions import from_table, to_table

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (Routed, NeverQueue, Idle, Shuffled, Synchronous, Restart, FirstOf, Attempts)
}
"""Every policy by the name that configuration calls it."""


def as_policy(
    given: "str | Mapping[str, Any] | Policy", where: str = "policy", folder: Path | None = None
) -> Policy:
    """A policy as it is, or of its name (``module:name`` for one's own), or from its table.

    >>> as_policy("never-queue"), as_policy({"name": "restart", "max-staleness": 5})
    (NeverQueue(), Restart(max_staleness=5))
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


def policy_to_table(policy: Policy) -> "str | dict[str, Any]":
    """What `as_policy` reads back: the name alone where there are no knobs.

    >>> policy_to_table(NeverQueue())
    'never-queue'
    """
    table = to_table(policy, POLICIES)
    return str(table["name"]) if len(table) == 1 else table

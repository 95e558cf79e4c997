"""Rules by name, from configuration and back to it, and whether a rule and a policy agree."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, cast

from sojourn._support.extensions import Parts, from_table, to_table
from sojourn.dispatch import Attempts, FirstOf, Policy, Restart
from sojourn.errors import InvalidInput
from sojourn.rules import attempts, differences, gradients, local_work, tables
from sojourn.rules.privacy import Privacy
from sojourn.rules.server import (
    SCHEDULES,
    SERVERS,
    RateSchedule,
    Server,
)
from sojourn.rules.state import (
    Rule,
)
from sojourn.rules.weighting import Weighting

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        gradients.GeneralizedAsyncSGD,
        gradients.AsyncSGD,
        gradients.DelayAdaptive,
        differences.FedAsync,
        differences.FedBuff,
        gradients.ShuffledAsyncSGD,
        gradients.Ringmaster,
        gradients.MinibatchSGD,
        differences.FedAvg,
        tables.ACE,
        tables.ACED,
        tables.RoutedSAGA,
        tables.CA2FL,
        tables.Ringleader,
        tables.Malenia,
        tables.AREA,
        gradients.Rennala,
        gradients.PickySGD,
        gradients.DCASGD,
        gradients.MSynchronousSGD,
        differences.FADAS,
        differences.FedFa,
        attempts.MindFlayer,
        attempts.Shadowheart,
        local_work.DelayedNesterov,
        local_work.MomentumLookAhead,
        local_work.HeLoCo,
        local_work.OrMo,
        local_work.RingmasterLMO,
    )
}
"""Every rule by the name that configuration calls it."""

_PARTS: Parts = {
    Server: ("server optimiser", SERVERS),
    RateSchedule: ("schedule", SCHEDULES),
}
_LOCAL = ("local_steps", "local_learning_rate", "proximal")
_PRIVACY = ("privacy_clip", "privacy_noise")
_SHARED = ("debias", "cap", "server", "schedule", *_LOCAL, *_PRIVACY)
"""Parameters that so many rules have that they are written down only where they are set."""


METHODS = ("memory", "sent", "learning_rate_scale", "client_shift", "client_state")
"""Methods that a rule may have; a parameter of such a name would be called."""
VALUES: dict[str, tuple[type, ...]] = {"weighting": (Weighting,), "privacy": (Privacy, NoneType)}
"""Values that it may have."""


def check_rule(rule: Rule) -> None:
    """Raise unless ``rule`` is one."""
    callables = (getattr(rule, name, None) for name in ("begin", "apply"))
    if isinstance(rule, type):
        raise InvalidInput(f"rule must be a rule, not its class: write {rule.__name__}()")
    if isinstance(rule, str) or not all(map(callable, callables)):
        raise InvalidInput(
            "rule must be a rule, such as AsyncSGD(), with begin and apply; it is "
            f"{rule!r}. rule_from_table('async-sgd') makes one of its name."
        )
    taken = [name for name in METHODS if not callable(getattr(rule, name, len))]
    taken += [
        name
        for name, kinds in VALUES.items()
        if hasattr(rule, name) and not isinstance(getattr(rule, name), kinds)
    ]
    if taken:
        raise InvalidInput(
            f"the rule {rule!r} has a field '{taken[0]}', but '{taken[0]}' of a rule is something else "
            "that Sojourn uses: give the field another name"
        )


def rule_from_table(
    table: str | Mapping[str, object], where: str = "rule", folder: Path | None = None
) -> Rule:
    """The rule that a configuration file describes: a name, or a table of ``name`` and parameters.

    Parameters are the rule's keyword arguments, hyphenated; ``where`` opens the message of an error. A
    rule of one's own is named ``"module:Class"``, its module installed or lying in ``folder``.

    >>> rule_from_table("async-sgd")
    AsyncSGD()
    >>> rule_from_table({"name": "ringmaster", "max-staleness": 5, "server": {"name": "adam"}})
    Ringmaster(server=Adam(), max_staleness=5)
    """
    rule: Rule = from_table(table, RULES, "rule", where=where, folder=folder, parts=_PARTS)
    check_rule(rule)
    return rule


def rule_to_table(rule: Rule) -> dict[str, object]:
    """What `rule_from_table` reads back: the name and every parameter that is set.

    A rule of one's own is named by its module and class, where it can be found again by them.

    >>> rule_to_table(gradients.Ringmaster(max_staleness=5))
    {'name': 'ringmaster', 'max-staleness': 5}
    """
    return to_table(rule, RULES, shared=_SHARED)


def check_pair(rule: Rule, policy: Policy, clients: int) -> None:
    """Raise if the parameters of ``rule`` and ``policy`` contradict one another.

    >>> check_pair(gradients.MSynchronousSGD(first=3), FirstOf(first=2), clients=5)
    Traceback (most recent call last):
    ...
    sojourn.errors.InvalidInput: the rule 'm-synchronous' takes the first 3 results, but the policy 'first-of' stops after 2: give both the same 'first'
    """
    if isinstance(policy, FirstOf):
        if isinstance(rule, gradients.MSynchronousSGD) and rule.first != policy.first:
            raise InvalidInput(
                f"the rule '{rule.name}' takes the first {rule.first} results, but the policy "
                f"'{policy.name}' stops after {policy.first}: give both the same 'first'"
            )
        if isinstance(rule, gradients.Rennala) and rule.batch_size != policy.first:
            raise InvalidInput(
                f"the rule '{rule.name}' collects {rule.batch_size} gradients, but the policy "
                f"'{policy.name}' stops after {policy.first}: let its 'first' be the 'batch-size'"
            )
    elif isinstance(policy, Restart) and isinstance(rule, gradients.Ringmaster):
        if rule.max_staleness < policy.max_staleness:
            raise InvalidInput(
                f"the rule '{rule.name}' drops what is {rule.max_staleness} versions old, but the policy "
                f"'{policy.name}' stops tasks only at {policy.max_staleness}: give both the same "
                "'max-staleness'"
            )
    elif isinstance(policy, Attempts):
        _check_attempts(rule, policy.quotas(clients), clients)


def _check_attempts(rule: Rule, quotas: list[int], clients: int) -> None:
    if isinstance(rule, attempts.MindFlayer):
        wanted = clients if rule.attempts is None else rule.attempts
        if wanted != sum(quotas):
            raise InvalidInput(
                f"the rule '{rule.name}' waits for {wanted} attempts, but its policy makes "
                f"{sum(quotas)} in a round: let 'attempts' of the rule be the sum over the clients"
            )
    elif isinstance(rule, attempts.Shadowheart) and rule.quotas(clients) != quotas:
        raise InvalidInput(
            f"the rule '{rule.name}' waits for {sum(rule.quotas(clients))} gradients of its clients, "
            f"but its policy asks for {sum(quotas)}: let 'attempts' of the policy be the rule's "
            "'gradients', and 0 for clients without messages"
        )


def rule_parameters() -> frozenset[str]:
    """The keys of the parameters of all built-in rules, as configuration files write them.

    >>> "server" in rule_parameters()
    True
    """
    names = (
        field.name
        for rule in RULES.values()
        for field in dataclasses.fields(cast("type[DataclassInstance]", rule))
    )
    return frozenset(name.replace("_", "-") for name in names)

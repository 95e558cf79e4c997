"""Rules by name, from configuration and back to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sojourn.errors import InvalidInput
from sojourn.extensions import Parts, from_table, to_table
from sojourn.rules.attempts import MindFlayer, Shadowheart
from sojourn.rules.differences import FADAS, FedAsync, FedAvg, FedBuff, FedFa
from sojourn.rules.gradients import (
    DCASGD,
    AsyncSGD,
    DelayAdaptive,
    GeneralizedAsyncSGD,
    MinibatchSGD,
    MSynchronousSGD,
    PickySGD,
    Rennala,
    Ringmaster,
    ShuffledAsyncSGD,
)
from sojourn.rules.rounds import Malenia, Ringleader
from sojourn.rules.schedules import SCHEDULES, RateSchedule
from sojourn.rules.server import SERVERS, Server
from sojourn.rules.state import Rule
from sojourn.rules.tables import ACE, ACED, AREA, CA2FL, RoutedSAGA

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        GeneralizedAsyncSGD,
        AsyncSGD,
        DelayAdaptive,
        FedAsync,
        FedBuff,
        ShuffledAsyncSGD,
        Ringmaster,
        MinibatchSGD,
        FedAvg,
        ACE,
        ACED,
        RoutedSAGA,
        CA2FL,
        Ringleader,
        Malenia,
        AREA,
        Rennala,
        PickySGD,
        DCASGD,
        MSynchronousSGD,
        FADAS,
        FedFa,
        MindFlayer,
        Shadowheart,
    )
}
"""Every rule by the name that configuration calls it."""

_PARTS: Parts = {
    Server: ("server optimiser", SERVERS),
    RateSchedule: ("schedule", SCHEDULES),
}
_LOCAL = ("local_steps", "local_learning_rate", "proximal")
_SHARED = ("debias", "cap", "server", "schedule", *_LOCAL)
"""Knobs that so many rules have that they are written down only where they are set."""


def check_rule(rule: Rule) -> None:
    """Raise unless ``rule`` is one."""
    callables = (getattr(rule, name, None) for name in ("begin", "apply"))
    if isinstance(rule, str | type) or not all(map(callable, callables)):
        raise InvalidInput(
            "rule must be a rule, such as AsyncSGD(), with begin and apply; it is "
            f"{rule!r}. rule_from_table('async-sgd') makes one of its name."
        )


def rule_from_table(
    table: str | Mapping[str, Any], where: str = "rule", folder: Path | None = None
) -> Rule:
    """The rule that a configuration file describes: a name, or a table of ``name`` and knobs.

    Knobs are the rule's keyword arguments, hyphenated; ``where`` opens the message of an error. A
    rule of one's own is named ``"module:Class"``, its module installed or lying in ``folder``.

    >>> rule_from_table("async-sgd")
    AsyncSGD()
    >>> rule_from_table({"name": "ringmaster", "max-staleness": 5, "server": {"name": "adam"}})
    Ringmaster(server=Adam(), max_staleness=5)
    """
    rule: Rule = from_table(table, RULES, "rule", where=where, folder=folder, parts=_PARTS)
    check_rule(rule)
    return rule


def rule_to_table(rule: Rule) -> dict[str, Any]:
    """What `rule_from_table` reads back: the name and every knob that is set.

    A rule of one's own is named by its module and class, where it can be found again by them.

    >>> rule_to_table(Ringmaster(max_staleness=5))
    {'name': 'ringmaster', 'max-staleness': 5}
    """
    return to_table(rule, RULES, shared=_SHARED)

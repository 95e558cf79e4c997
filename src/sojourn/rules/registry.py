"""Rules by name, from configuration and back to it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from sojourn.config import Table
from sojourn.errors import InvalidInput, UnknownName
from sojourn.extensions import is_extension, load_extension
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
from sojourn.rules.knobs import set_knobs
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
    )
}
"""Every rule by the name that configuration calls it."""

_PARTS: dict[Any, tuple[str, Mapping[str, type]]] = {
    Server: ("server optimiser", SERVERS),
    RateSchedule: ("schedule", SCHEDULES),
}
_SHARED = ("debias", "cap", "server")
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
    given = Table({"name": table} if isinstance(table, str) else table, where)
    name = given.take("name", str)
    if not is_extension(name):
        made: Rule = _named("rule", RULES, name, given)
        return made
    kind = load_extension(name, "rule", folder)
    rule: Rule = _made(kind, given) if isinstance(kind, type) else kind
    given.close()
    check_rule(rule)
    return rule


def rule_to_table(rule: Rule) -> dict[str, Any]:
    """What `rule_from_table` reads back: the name and every knob that is set.

    A rule of one's own is named by its module and class, where it can be found again by them.

    >>> rule_to_table(Ringmaster(max_staleness=5))
    {'name': 'ringmaster', 'max-staleness': 5}
    """
    kind = type(rule)
    place = f"{kind.__module__}:{kind.__qualname__}"
    own = RULES.get(rule.name) is not kind
    found = own and is_extension(place) and kind.__module__ != "__main__"
    return {"name": place if found else rule.name, **_knobs(rule)}


def _named(what: str, kinds: Mapping[str, type], name: str, given: Table) -> Any:
    if name not in kinds:
        raise UnknownName(what, name, kinds)
    made = _made(kinds[name], given)
    given.close()
    return made


def _made(kind: type, given: Table) -> Any:
    knobs: dict[str, Any] = {}
    if dataclasses.is_dataclass(kind):
        types = get_type_hints(kind)
        for knob in (knob for knob in dataclasses.fields(kind) if knob.init):
            value = _taken(given, knob.name.replace("_", "-"), types[knob.name])
            if value is not None:
                knobs[knob.name] = value
    given.close()
    try:
        return kind(**knobs)
    except UnknownName:
        raise
    except InvalidInput as error:
        raise InvalidInput(f"{given.where}: {error}") from error


def _taken(given: Table, key: str, annotation: Any) -> Any:
    """The value of a knob, if it is there: a number, text, a list, or a table with a name."""
    if annotation in _PARTS:
        value = given.take(key, (str, dict), default=None)
        if value is None:
            return None
        part = Table({"name": value} if isinstance(value, str) else value, f"{given.where}: {key}")
        return _named(*_PARTS[annotation], part.take("name", str), part)
    for plain in (bool, int, float):
        if annotation in (plain, plain | None):
            return given.take(key, plain, default=None)
    if getattr(annotation, "__origin__", None) is tuple:
        value = given.take(key, list, default=None)
        return None if value is None else tuple(value)
    return given.take(key, str, default=None)


def _knobs(value: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {}
    changed = set_knobs(value)
    every = {knob.name: getattr(value, knob.name) for knob in dataclasses.fields(value)}
    kept = {k: v for k, v in every.items() if k in changed or k not in (*_SHARED, "schedule")}
    return {k.replace("_", "-"): _written(v) for k, v in kept.items() if v is not None}


def _written(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"name": getattr(value, "name", ""), **_knobs(value)}
    return value

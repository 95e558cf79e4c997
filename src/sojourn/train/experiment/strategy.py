"""The strategies of an experiment: a routing or a plan, a rule, a concurrency, learning rates."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sojourn.checks import check_positive
from sojourn.config import Table
from sojourn.dispatch import Policy, as_policy
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.extensions import modules_of
from sojourn.files import read_text
from sojourn.inputs import is_named_routing, read_routing
from sojourn.laws import ServiceLaw, fleet_laws
from sojourn.network import Fleet, Network, named_routing
from sojourn.planning import Plan
from sojourn.rules import Rule, check_rule, rule_from_table, rule_to_table
from sojourn.rules.pairing import check_pair
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.simulate import simulate
from sojourn.simulation.traces import read_laws

Result = TypeVar("Result")

LONGEST_NAME = 150


@dataclass(frozen=True, kw_only=True, eq=False)
class Strategy:
    """One of the things compared: a routing (or a plan), a rule, a concurrency, learning rates.

    ``routing`` is as it was given: a name, numbers per class (those of a file, if one was named), or
    the path of a plan, whose file is then kept as ``plan_text``; ``network`` holds what it means. Both
    matter only if the policy of the ``scenario`` routes. Of several ``learning_rates`` the best on pilot
    seeds and held-out samples is used. ``modules`` define the rule, the policy, the laws and the objective of the plan.
    """

    name: str
    routing: str | list[float]
    network: Network
    rule: Rule
    learning_rates: tuple[float, ...]
    scenario: Scenario
    plan_text: str | None = None
    modules: frozenset[str] = frozenset()

    @property
    def slug(self) -> str:
        """The name as part of a file name."""
        return file_name(self.name)


def read_strategies(
    table: Table, fleet: Fleet, folder: Path, common: Mapping[str, Any]
) -> tuple[Strategy, ...]:
    """All strategies in an experiment's table, which also holds what they have in common.

    ``common`` is what the experiment says of every scenario: ``start``, ``paired`` and ``around``,
    the `Surroundings`.
    """
    defaults = {
        "concurrency": table.take("concurrency", int, default=None),
        "learning-rate": table.take("learning-rate", (float, list), default=None),
        "rule": table.take("rule", (str, dict), default="generalized-async-sgd"),
        "law": _law(table, None),
        "policy": table.take("policy", (str, dict), default=None),
        **common,
    }
    entries = []
    for routing in table.take("strategies", list, default=[]):
        if not isinstance(routing, str):
            raise InvalidFile(
                f"{table.where}: 'strategies' lists routings and plan files by name; {routing!r} "
                "is no name. Anything else goes into a [[strategy]] table."
            )
        entries.append(Table({"routing": routing}, f"{table.where}: strategy '{routing}'"))
    entries += table.tables("strategy", default=[])
    if not entries:
        raise InvalidFile(
            f"{table.where}: nothing to compare. List routings: strategies = "
            '["uniform", "balanced"], or write [[strategy]] tables.'
        )
    strategies = tuple(_strategy(entry, defaults, fleet, folder) for entry in entries)
    for entry, strategy in zip(entries, strategies, strict=True):
        said(entry.where, _first_round, strategy)
    slugs = [strategy.slug for strategy in strategies]
    for strategy in strategies:
        if slugs.count(strategy.slug) > 1:
            raise InvalidFile(
                f"{table.where}: two strategies are called '{strategy.name}'. Give each [[strategy]] "
                "a 'name' of its own."
            )
    return strategies


def _strategy(table: Table, defaults: Mapping[str, Any], fleet: Fleet, folder: Path) -> Strategy:
    where = table.where
    given = table.take("routing", (str, list), default=None)
    routing = "uniform" if given is None else given
    text, plan = None, None
    if isinstance(routing, str) and routing.endswith(".toml"):
        text, plan = _read_plan(routing, fleet, where, folder)
    rule, policy = _rule_and_policy(table, defaults, plan, folder)
    said(where, _check_policy, rule, policy, None if plan and not plan.policy.routes else given)
    said(where, check_pair, rule, policy, fleet.size)
    law = _law(table, defaults["law"])
    laws = said(where, fleet_laws, fleet) if law is None else None
    if laws is None:
        laws = said(where, read_laws, law or "exponential", fleet, f"{where}: law", folder)
    scenario = said(where, _scenario, laws, policy, rule, defaults)
    concurrency = table.take("concurrency", int, default=None)
    rates = table.take("learning-rate", (float, list), default=defaults["learning-rate"])
    if plan is not None:
        network, default_name = plan.network, Path(str(routing)).stem
        rates = plan.learning_rate if rates is None else rates
    else:
        default_name = Path(routing).stem if isinstance(routing, str) else "given routing"
        concurrency = defaults["concurrency"] if concurrency is None else concurrency
        routing = said(where, _routing, routing, fleet, folder)
        network = said(where, _routed, routing, fleet)
    network = defaults["around"].around(network)
    if concurrency is not None:
        network = said(where, partial(replace, network, concurrency=concurrency))
    name = table.take("name", str, default=default_name)
    if len(name.encode()) > LONGEST_NAME:
        raise InvalidFile(
            f"{where}: 'name' has at most {LONGEST_NAME} bytes, because files are called after it; "
            f"it has {len(name.encode())}"
        )
    strategy = Strategy(
        name=name,
        routing=routing,
        network=network,
        rule=rule,
        learning_rates=learning_rates_given(rates, where),
        scenario=scenario,
        plan_text=text,
        modules=frozenset(modules_of(rule, policy, *laws, plan and plan.objective)),
    )
    table.close()
    return strategy


def _law(table: Table, default: Any) -> Any:
    """What is said of the service times: ``law``, or ``trace``, a file of observed durations."""
    law = table.take("law", (str, dict, list), default=None)
    trace = table.take("trace", str, default=None)
    if trace is None:
        return default if law is None else law
    if law is not None:
        raise InvalidFile(f"{table.where}: 'trace' is a law by itself; leave out 'law'")
    return {"name": "trace", "file": trace}


def _rule_and_policy(
    table: Table, defaults: Mapping[str, Any], plan: Plan | None, folder: Path
) -> tuple[Rule, Policy]:
    """What the strategy says; else what its plan was tuned with; else what the experiment says."""
    where = table.where
    tuned = plan is not None and plan.rule is not None and "rule" not in table.values
    if tuned and plan is not None and plan.rule is not None:
        rule: Rule = plan.rule
        usual: Any = plan.policy
    else:
        rule = _rule(table, defaults["rule"], folder)
        usual = defaults["policy"] or rule.policy
    given = table.take("policy", (str, dict), default=usual)
    return rule, said(where, as_policy, given, f"{where}: policy", folder)


def _scenario(
    laws: tuple[ServiceLaw, ...], policy: Policy, rule: Rule, defaults: Mapping[str, Any]
) -> Scenario:
    return Scenario(
        law=laws,
        policy=policy,
        start=defaults["start"],
        work=rule.local_steps,
        paired=defaults["paired"],
        **defaults["around"].parts,
    )


def _check_policy(rule: Rule, policy: Policy, routing: str | list[Any] | None) -> None:
    """Refuse a routing that would have no effect: strategies must differ where they say so."""
    check_rule(rule)
    if policy.routes or routing is None:
        return
    plan = isinstance(routing, str) and routing.endswith(".toml")
    raise InvalidInput(
        f"the routing {routing!r} would have no effect: with policy '{policy.name}'"
        + (f", which is that of the rule '{rule.name}'," if policy.name == rule.policy else "")
        + ' clients are not chosen by it. To choose them by it give policy = "routed"; or leave out '
        + (
            "the plan, and copy the concurrency and learning-rate you want from it."
            if plan
            else "the routing."
        )
    )


def _first_round(strategy: Strategy) -> None:
    """Simulate one round, so that what cannot be simulated is said before anything is trained."""
    simulate(strategy.network, strategy.scenario, rounds=1)


def strategy_table(strategy: Strategy) -> dict[str, Any]:
    """What `read_strategies` reads back; a routing without effect is left out."""
    rates = list(strategy.learning_rates)
    scenario = strategy.scenario.to_table()
    routing = f"plans/{strategy.slug}.toml" if strategy.plan_text else strategy.routing
    return {
        "name": strategy.name,
        **({"routing": routing} if strategy.scenario.policy.routes or strategy.plan_text else {}),
        "rule": rule_to_table(strategy.rule),
        "concurrency": strategy.network.concurrency,
        "learning-rate": rates[0] if len(rates) == 1 else rates,
        "law": scenario["law"],
        "policy": scenario["policy"],
    }


def _rule(table: Table, default: str | dict[str, Any], folder: Path) -> Rule:
    given = table.take("rule", (str, dict), default=default)
    steps = table.take("local-steps", int, default=None)
    rule = {"name": given} if isinstance(given, str) else dict(given)
    if steps is not None:
        rule["local-steps"] = steps
    return said(table.where, rule_from_table, rule, f"{table.where}: rule", folder)


def _routing(given: str | list[Any], fleet: Fleet, folder: Path) -> str | list[Any]:
    """A name, which stays one, or numbers: as given, or as in the file that is named."""
    if isinstance(given, list):
        return given
    read = read_routing(given, fleet, folder)
    return given if is_named_routing(given, fleet, read) else read.tolist()


def _routed(routing: str | list[Any], fleet: Fleet) -> Network:
    """A routing by name, or numbers per class or per client; as many tasks as clients."""
    if isinstance(routing, str):
        return Network(fleet, named_routing(fleet, routing), fleet.size)
    if len(routing) == fleet.size and fleet.size > fleet.classes:
        parents = np.repeat(np.arange(fleet.classes), fleet.counts)
        each = fleet.select(parents, np.ones(fleet.size))
        return Network(each, routing, fleet.size, parents=parents)
    return Network(fleet, routing, fleet.size)


def _read_plan(name: str, fleet: Fleet, where: str, folder: Path) -> tuple[str, Plan]:
    path = folder / name
    plan = Plan.read(path, folder)
    if plan.fleet != fleet:
        raise InvalidFile(f"{where}: the plan {path} was made for another fleet than this one's")
    return read_text(path, encoding="utf-8"), plan


def learning_rates_given(given: Any, where: str) -> tuple[float, ...]:
    """What ``learning-rate`` says: one number or several."""
    if given is None:
        raise InvalidFile(f"{where}: the key 'learning-rate' is missing")
    rates = given if isinstance(given, list) else [given]
    for rate in rates:
        said(where, check_positive, "a learning rate", rate)
    if not rates or len(set(rates)) != len(rates):
        raise InvalidFile(f"{where}: learning rates must be a list of different numbers: {rates}")
    return tuple(float(rate) for rate in rates)


def file_name(text: str) -> str:
    """``text`` with everything that may trouble a file system replaced by hyphens.

    >>> file_name("p*_H, m = 30")
    'p-_H-m-30'
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.") or "strategy"


def said(where: str, check: Callable[..., Result], *values: Any) -> Result:
    """``check(*values)``, its complaint opened with the place in the file."""
    try:
        return check(*values)
    except InvalidInput as error:
        text = str(error)
        raise InvalidFile(text if text.startswith(where) else f"{where}: {text}") from error

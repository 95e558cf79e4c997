"""What a deployment is asked to do, as Flower's run configuration says it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sojourn.config import Table
from sojourn.deploy.pacing import LARGEST_SPEED
from sojourn.deploy.quarantine import POINTS_AWAY, Quarantine
from sojourn.deploy.replanning import Replan
from sojourn.deploy.routing import check_policy
from sojourn.deploy.screening import Norm, Screen, screens_named
from sojourn.deploy.screening.norm import LARGEST_RATIO
from sojourn.dispatch import Policy, as_policy
from sojourn.errors import InvalidFile
from sojourn.network import ROUTINGS, Fleet, Network, named_routing, uniform_routing
from sojourn.rules import Rule, rule_from_table
from sojourn.types import FloatArray

if TYPE_CHECKING:
    from sojourn.planning import Plan

PARTITION = "partition-id"
"""What a node's configuration calls the number of its client, here as in Flower's simulation."""

PAUSE = "pause-seconds"
"""A node configured with this sleeps as long in every task, to play a slower client."""

MOST_CLIENTS = 100_000
"""One server looks at every client several times a second."""

WHERE = "[tool.flwr.app.config]"
OWN_TABLE = "task."
"""Keys of the table ``[tool.flwr.app.config.task]`` are the user's own."""
DEFAULT_LEARNING_RATE = 0.1
"""Where neither the configuration nor a plan says one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings:
    """Every choice of a run; the keys of the configuration are these names, hyphenated.

    ``updates`` is how many tasks are used before the run ends. ``routing`` names a closed-form
    routing over ``fleet``, or a file with a column ``routing`` (both CSV), or ``plan`` a plan file which then also gives concurrency
    and learning rate (and rule and policy, if it was tuned and the configuration names no rule);
    both files lie beside ``task.py``. ``policy`` is the rule's if not given; one
    that does not route takes neither, and goes by the speeds that are seen while running. With ``adapt`` the routing is computed again from these. Deadlines are in seconds, and ``longest_deadline`` 0
    means that none is too long. ``depth`` 0 means 2, or 1 in Flower's simulation, which
    would work on two messages of a client at once.
    """

    clients: int
    updates: int
    concurrency: int
    learning_rate: float
    rule: Rule
    policy: Policy
    network: Network
    rates_known: bool
    routing: str | None = None
    plan: Path | None = None
    adapt: bool = False
    replan_every: int = 50
    depth: int = 0
    patience: int = 3
    screens: tuple[Screen, ...] = (Norm(),)
    largest_speed: float = LARGEST_SPEED
    quarantine: Quarantine = Quarantine()
    shortest_deadline: float = 10.0
    first_deadline: float = 30.0
    longest_deadline: float = 0.0
    join_seconds: float = 60.0
    evaluate_every: int = 10
    checkpoint_seconds: float = 30.0
    seed: int = 0
    run_folder: Path = Path("run")
    resume: bool = False
    predict: bool = True
    task: Mapping[str, Any] = field(default_factory=dict)

    def replan(self) -> Replan | None:
        """How routing is computed from service rates while running; ``None`` if it is not."""
        if not (self.adapt and self.policy.routes):
            return None
        if self.plan is not None:
            weights = self.network.fleet.expand(self.network.fleet.relative_weights)
            return _replan_like(self.plan, self.concurrency, self.rule.local_steps, weights)
        name = self.routing or "uniform"
        return lambda rates: named_routing(Fleet(rates), name)


def own_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration says to ``task.py`` alone.

    >>> own_settings({"clients": 3, "task.folder": "/data", "task.model.width": 64})
    {'folder': '/data', 'model.width': 64}
    """
    return {
        key.removeprefix(OWN_TABLE): value
        for key, value in config.items()
        if key.startswith(OWN_TABLE)
    }


def read_settings(config: Mapping[str, Any], folder: Path) -> Settings:
    """Check a run configuration; files that it names are sought in ``folder``."""
    given = {key: value for key, value in config.items() if not key.startswith(OWN_TABLE)}
    rule_table, policy_table = _flat_table(given, "rule"), _flat_table(given, "policy")
    table = Table(given, WHERE)
    clients = _at_least(table, "clients", int, 1)
    if clients > MOST_CLIENTS:
        raise InvalidFile(f"{WHERE}: 'clients' is at most {MOST_CLIENTS}; it is {clients}")
    asked = _Asked(
        fleet=table.take("fleet", str, default=""),
        plan=table.take("plan", str, default=""),
        routing=table.take("routing", str, default="") or None,
        concurrency=table.take("concurrency", int, default=0),
        learning_rate=table.take("learning-rate", float, default=0.0),
    )
    plain = _plain_settings(table)
    table.close()
    if asked.plan and (asked.routing is not None or asked.fleet):
        raise InvalidFile(f"{WHERE}: 'plan' holds fleet and routing; leave these two out")
    plan = _read_plan(folder / asked.plan) if asked.plan else None
    network = _network(asked, plan, clients, folder, adapt=plain["adapt"])
    rule, policy = _rule_and_policy(rule_table, policy_table, plan, folder)
    _check_routing(asked, plan, policy, adapt=plain["adapt"])
    return Settings(
        clients=clients,
        concurrency=network.concurrency,
        learning_rate=_learning_rate(asked, plan),
        rule=rule,
        policy=policy,
        network=network,
        rates_known=bool(asked.plan or asked.fleet),
        routing=asked.routing,
        plan=folder / asked.plan if asked.plan else None,
        task=own_settings(config),
        **plain,
    )


class _Asked(NamedTuple):
    """What the configuration says of the network; what is empty is left to a plan or a default."""

    fleet: str
    plan: str
    routing: str | None
    concurrency: int
    learning_rate: float

    @property
    def goes_by_speed(self) -> bool:
        """Whether a routing is named that needs to know how fast clients are."""
        return self.routing not in (None, "uniform")


def _plain_settings(table: Table) -> dict[str, Any]:
    """Those fields of `Settings` that are numbers and choices by themselves."""
    return {
        "updates": _at_least(table, "updates", int, 1),
        "adapt": table.take("adapt", bool, default=False),
        "replan_every": _at_least(table, "replan-every", int, 1, default=50),
        "depth": _at_least(table, "depth", int, 0, default=0),
        "patience": _at_least(table, "patience", int, 1, default=3),
        "screens": screens_named(
            table.take("screen", str, default=""),
            largest_ratio=_at_least(table, "largest-update", float, 1.0, default=LARGEST_RATIO),
        ),
        "largest_speed": _at_least(table, "largest-speed", float, 0.0, default=LARGEST_SPEED),
        "quarantine": Quarantine(
            refused=_at_least(table, "quarantine-refused", int, 0, default=10),
            agreement=_at_least(table, "quarantine-agreement", float, -1.0, default=POINTS_AWAY),
        ),
        "shortest_deadline": _at_least(table, "shortest-deadline", float, 0.1, default=10.0),
        "first_deadline": _at_least(table, "first-deadline", float, 0.1, default=30.0),
        "longest_deadline": _at_least(table, "longest-deadline", float, 0.0, default=0.0),
        "join_seconds": _at_least(table, "join-seconds", float, 0.0, default=60.0),
        "evaluate_every": _at_least(table, "evaluate-every", int, 1, default=10),
        "checkpoint_seconds": _at_least(table, "checkpoint-seconds", float, 0.0, default=30.0),
        "seed": _at_least(table, "seed", int, 0, default=0),
        "run_folder": Path(table.take("run-folder", str, default="") or "run"),
        "resume": table.take("resume", bool, default=False),
        "predict": table.take("predict", bool, default=True),
    }


def _network(
    asked: _Asked, plan: "Plan | None", clients: int, folder: Path, *, adapt: bool
) -> Network:
    """The plan's network, or the fleet (without one, clients that are alike) with its routing."""
    if plan is not None:
        network = replace(plan.network, concurrency=asked.concurrency or plan.concurrency)
    else:
        fleet = _read_fleet(asked.fleet, folder) if asked.fleet else Fleet(np.full(clients, 1.0))
        network = Network(
            fleet, _routing(asked, fleet, folder, adapt), asked.concurrency or clients
        )
    if network.size != clients:
        raise InvalidFile(
            f"{WHERE}: 'clients' is {clients}; the {'plan' if asked.plan else 'fleet'} has "
            f"{network.size}"
        )
    return network


def _learning_rate(asked: _Asked, plan: "Plan | None") -> float:
    usual = DEFAULT_LEARNING_RATE if plan is None else plan.learning_rate or 0.0
    rate = asked.learning_rate or usual
    if rate <= 0:
        none = " (the plan gives none)" if plan is not None and rate == 0 else ""
        raise InvalidFile(f"{WHERE}: 'learning-rate' must be positive; it is {rate:g}{none}")
    return rate


def _check_routing(asked: _Asked, plan: "Plan | None", policy: Policy, *, adapt: bool) -> None:
    """A routing must have an effect, and the speeds that it goes by must be known or learned."""
    routes = asked.goes_by_speed if plan is None else plan.policy.routes
    if routes and not policy.routes:
        raise InvalidFile(
            f"{WHERE}: with the policy '{policy.name}' clients are not chosen by a routing. Leave out "
            "'routing' and 'plan' (speeds may be in a 'fleet' file), or set policy = \"routed\"."
        )
    if asked.goes_by_speed and not (asked.fleet or adapt):
        raise InvalidFile(
            f"{WHERE}: routing '{asked.routing}' needs the clients' speeds. Name a 'fleet' file, or set "
            "adapt = true to learn them while running."
        )


def _rule_and_policy(
    rule_table: dict[str, Any], policy_table: dict[str, Any], plan: "Plan | None", folder: Path
) -> tuple[Rule, Policy]:
    """What the configuration says; else what the plan was tuned with; else the usual."""
    if plan is not None and plan.rule is not None and not rule_table:
        rule, usual = plan.rule, plan.policy
    else:
        named = {"name": "generalized-async-sgd", **rule_table}
        rule = rule_from_table(named, f"{WHERE}: rule", folder)
        usual = as_policy(rule.policy)
    policy = as_policy(policy_table or usual, f"{WHERE}: policy", folder)
    return rule, check_policy(policy)


def _flat_table(given: dict[str, Any], what: str) -> dict[str, Any]:
    """A rule or policy is a name, or a table ``[tool.flwr.app.config.rule]``; takes its keys away.

    Flower hands tables over flat: ``rule.server.name`` is the key ``name`` of the table ``server``.
    """
    flat = {key: given.pop(key) for key in [*given] if key.startswith(f"{what}.")}
    name = given.pop(what, None)
    if name is not None and not isinstance(name, str):
        raise InvalidFile(f"{WHERE}: '{what}' must be text; it is {name!r}")
    table: dict[str, Any] = {"name": name} if name else {}
    for key, value in flat.items():
        *path, last = key.split(".")[1:]
        place = table
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise InvalidFile(f"{WHERE}: '{key}' is given, and '{part}' as {place!r}, too")
        place[last] = value
    return table


def _at_least(table: Table, key: str, kind: type, least: float, **default: Any) -> Any:
    value = table.take(key, kind, **default)
    if not value >= least:
        raise InvalidFile(f"{WHERE}: '{key}' must be at least {least:g}; it is {value}")
    return value


def _read_fleet(name: str, folder: Path) -> Fleet:
    from sojourn.inputs import read_fleet  # not above: it loads what a client's process never needs

    return read_fleet(name, folder)


def _routing(asked: _Asked, fleet: Fleet, folder: Path, adapt: bool) -> FloatArray:
    """A closed-form routing by name, or a file of one's own, which says nothing of other speeds."""
    if asked.routing is None:
        return uniform_routing(fleet)
    from sojourn.inputs import is_named_routing, read_routing

    routing = read_routing(asked.routing, fleet, folder)
    if adapt and not is_named_routing(asked.routing, fleet, routing):
        raise InvalidFile(
            f"{WHERE}: adapt = true computes the routing again from speeds, and the file "
            f"'{asked.routing}' does not say how. Name {', '.join(ROUTINGS)}, or a plan."
        )
    return routing


def _read_plan(path: Path) -> "Plan":
    from sojourn.planning import Plan

    return Plan.read(path)


def _replan_like(path: Path, concurrency: int, local_steps: int, weights: FloatArray) -> Replan:
    """The plan's own objective, minimised again at other speeds; those of plans are per gradient."""
    from sojourn.optimize import optimize_routing
    from sojourn.planning import Plan

    objective = Plan.read(path).objective

    def replan(rates: FloatArray) -> FloatArray:
        fleet = Fleet(local_steps * rates, weight=weights)
        solution = optimize_routing(fleet, concurrency, objective)
        return solution.network.client_routing

    return replan

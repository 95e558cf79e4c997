"""A strategy: what is run, whoever runs it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sojourn._support.checks import check_positive
from sojourn._support.configuration import Table
from sojourn._support.extensions import modules_of
from sojourn._support.files import file_name, printable
from sojourn.dispatch import Policy, as_policy, not_deployable, policy_to_table
from sojourn.errors import InvalidFile, InvalidInput, reading
from sojourn.fleet import Fleet, Network, named_routing
from sojourn.fleet.laws import Law, ServiceLaw, fleet_laws, law_to_table
from sojourn.fleet.named import is_named_routing, read_fleet, read_routing
from sojourn.planning import Plan
from sojourn.planning.objectives import Objective
from sojourn.rules import Rule, epoch_steps, rule_from_table, rule_to_table
from sojourn.rules.registry import check_pair, rule_parameters
from sojourn.rules.state import with_local_steps
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.simulate import simulate
from sojourn.strategy.choices import (
    ENTRY_KEYS,
    EXPERIMENT_KEYS,
    Choices,
    NamedTable,
    learning_rates_given,
    local_steps_given,
)
from sojourn.strategy.file import StrategyFile, read_strategy_file, write_strategy_file

LONGEST_NAME = 150
"""Bytes: a file name may have 255, and those of runs have the seed and more behind it."""
USUAL_RULE = "generalized-async-sgd"


@dataclass(frozen=True, kw_only=True, eq=False)
class Origin:
    """Where a strategy comes from; nothing that it does depends on it.

    ``routing`` is as it was given: a name, numbers, or the path of a plan or strategy file, whose
    text is then ``file_text``. ``planned`` is that file's own concurrency and learning rate,
    ``objective`` what its routing was optimised for, ``evidence`` what it was chosen by.
    """

    routing: str | list[float] = "uniform"
    file_text: str | None = None
    planned: Choices = field(default_factory=Choices)
    objective: Objective | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """What is run: who gets which task, how many are in flight, and what the server does with results.

    ``network`` has the fleet, the routing and the concurrency; the routing matters only if the policy
    of the ``scenario`` routes. Of several ``learning_rates`` the best on pilot seeds and held-out
    samples is used; there is none where nobody named one, which is enough to simulate. ``local_epochs``
    becomes local steps of the rule where the samples of clients are known: see `with_samples`.

    >>> from sojourn.fleet import built_in_fleet
    >>> Strategy.read("three-clusters", Choices(concurrency=30, policy="never-queue"))
    Strategy('three-clusters': never-queue, generalized-async-sgd, 30 tasks in flight)
    """

    name: str
    network: Network
    scenario: Scenario
    rule: Rule
    learning_rates: tuple[float, ...] = ()
    local_epochs: float | None = None
    origin: Origin = field(default_factory=Origin, compare=False)

    @classmethod
    def from_table(
        cls, table: Table, fleet: Fleet, environment: Choices, folder: Path
    ) -> "Strategy":
        """The strategy in one table of an experiment, whose own choices are the ``environment``.

        Files and modules are looked for in ``folder``.
        """
        name = table.take("name", str, default=None)
        choices = Choices.take(table, fleet, folder, ENTRY_KEYS)
        table.close(inside={"rule": rule_parameters()})
        return cls.resolve(
            choices, environment, fleet=fleet, folder=folder, where=table.where, name=name
        )

    @classmethod
    def read(
        cls,
        source: str | os.PathLike[str],
        choices: Choices | None = None,
        *,
        folder: Path | None = None,
    ) -> "Strategy":
        """The strategy in a plan or strategy file, or one for a fleet (CSV, or a built-in name).

        ``choices`` go before the file's. A fleet by itself needs a concurrency.
        """
        choices = choices or Choices()
        text = os.fspath(source)
        if not text.endswith(".toml"):
            fleet = read_fleet(text, folder)
            if choices.concurrency is None:
                raise InvalidInput("a fleet needs a concurrency, the number of tasks in flight")
            return cls.resolve(choices, fleet=fleet, folder=folder, name=printable(Path(text).stem))
        file = read_strategy_file(text if folder is None else folder / text)
        beside = Path(text).parent if folder is None else (folder / text).parent
        name = file.name or Path(text).stem
        return cls.resolve(choices, file=file, folder=beside, name=name)

    @classmethod
    def of_plan(cls, plan: Plan, policy: Policy | None = None) -> "Strategy":
        """What a plan recommends, or its routing under another ``policy``."""
        chosen = plan.recommended_policy if policy is None else policy
        rate = plan.learning_rate
        return cls(
            name=chosen.name,
            network=plan.network if chosen.routes else plan.unrouted_network,
            scenario=Scenario(law=fleet_laws(plan.fleet) or Law("exponential"), policy=chosen),
            rule=rule_from_table(USUAL_RULE),
            learning_rates=() if rate is None else (rate,),
            origin=Origin(objective=plan.objective),
        )

    @classmethod
    def resolve(
        cls,
        choices: Choices,
        environment: Choices | None = None,
        *,
        fleet: Fleet | None = None,
        file: StrategyFile | None = None,
        folder: Path | None = None,
        where: str = "",
        name: str | None = None,
    ) -> "Strategy":
        """The strategy that these choices make: the one place that says which of them holds.

        ``choices`` go before the ``file`` (the one that their routing names, or one given), which goes
        before the ``environment``, which goes before the rule's usual ones. ``fleet`` may be left out
        where a file has it. Errors open with ``where``, the place in a file that the choices stand in.
        """
        with reading(where):
            return cls._resolved(choices, environment or Choices(), fleet, file, folder, name)

    @classmethod
    def _resolved(
        cls,
        choices: Choices,
        environment: Choices,
        fleet: Fleet | None,
        file: StrategyFile | None,
        folder: Path | None,
        name: str | None,
    ) -> "Strategy":
        given = choices.routing
        if isinstance(given, str) and given.endswith(".toml"):
            file = read_strategy_file((folder or Path()) / given, folder)
            if fleet is not None and file.fleet != fleet:
                raise InvalidInput(f"the file {given} was made for another fleet than this one's")
            _check_same_world(file, choices, environment)
        if fleet is None:
            if file is None:
                raise InvalidInput("a strategy needs a fleet, or a file that has one")
            fleet = file.fleet
        if file is None:  # A file's rule has its own.
            choices = choices.with_local_work(environment)
        found = choices.over(file.choices if file else Choices()).over(environment)
        rule = _rule(found, fleet, folder)
        policy = as_policy(found.policy or rule.policy, folder=folder)
        idle_file = file is not None and _is_unrouted(file.choices.policy, folder)
        _check_routing(rule, policy, None if idle_file else given)
        check_pair(rule, policy, fleet.size)
        epochs = found.local_epochs
        if epochs is not None:
            epochs = check_positive("local-epochs", epochs)
        laws = found.law or fleet_laws(fleet) or (Law("exponential"),)
        network, routing = _network(found, file, fleet, folder)
        strategy = cls(
            name=_checked_name(name or _usual_name(given)),
            network=network,
            scenario=_scenario(laws, policy, rule, found),
            rule=rule,
            learning_rates=learning_rates_given(found.learning_rate),
            local_epochs=epochs,
            origin=Origin(
                routing=routing,
                file_text=file.text if file else None,
                planned=file.choices if file else Choices(),
                objective=file.objective if file else None,
                evidence=file.evidence if file else {},
            ),
        )
        if found.offline is not None and not strategy.scenario.has_calendar(network):
            raise InvalidInput(
                "'offline' has no effect: clients are always there. Give the fleet mean_up and "
                "mean_down, or 'hours'."
            )
        return strategy

    def with_samples(self, sizes: Sequence[int], batch_size: int) -> "Strategy":
        r"""The strategy with ``local_epochs`` as local steps, and service times to match.

        .. math:: H_i = \lceil e \lceil N_i/b \rceil \rceil

        ``sizes`` are the samples :math:`N_i` of every client, shape ``(n,)``.
        """
        if self.local_epochs is None:
            return self
        steps = tuple(epoch_steps(self.local_epochs, size, batch_size) for size in sizes)
        rule = with_local_steps(self.rule, steps)
        scenario = replace(self.scenario, work=rule.local_steps)
        return replace(self, rule=rule, scenario=scenario, local_epochs=None)

    @property
    def policy(self) -> Policy:
        """Who gets the next task."""
        return self.scenario.policy

    @property
    def concurrency(self) -> int:
        """How many tasks are in flight, m."""
        return self.network.concurrency

    @property
    def slug(self) -> str:
        """The name as part of a file name."""
        return file_name(self.name)

    @property
    def modules(self) -> frozenset[str]:
        """The modules that define the rule, the policy, the laws and the plan's objective."""
        scenario = self.scenario
        laws = (*scenario.law, scenario.link_law, scenario.server_law)
        return frozenset(modules_of(self.rule, self.policy, *laws, self.origin.objective))

    def not_deployable(self) -> str | None:
        """Why a real server cannot run it; ``None`` if it can."""
        return not_deployable(self.policy)

    def to_table(self) -> dict[str, object]:
        """What `from_table` reads back; a file that it follows is named by its `slug`.

        A routing without effect is left out.
        """
        rates = list(self.learning_rates)
        follows_file = self.origin.file_text is not None
        routing = f"plans/{self.slug}.toml" if follows_file else self.origin.routing
        laws = [law_to_table(law) for law in self.scenario.law]
        table = {
            "name": self.name,
            "routing": routing if self.policy.routes or follows_file else None,
            "rule": rule_to_table(self.rule),
            "local-epochs": self.local_epochs,
            "concurrency": self.concurrency,
            "learning-rate": rates[0] if len(rates) == 1 else rates or None,
            "law": laws[0] if len(laws) == 1 else laws,
            "policy": policy_to_table(self.policy),
        }
        return {key: value for key, value in table.items() if value is not None}

    def write(
        self,
        path: str | os.PathLike[str],
        *,
        evidence: Mapping[str, object] | None = None,
        provenance: Mapping[str, object] | None = None,
    ) -> None:
        """Write a file that `read` reads back, and every command takes.

        ``evidence`` says what the strategy was chosen by.
        """
        written = self.scenario.to_table()
        world = ("law", "link-law", "server-law", "offline", "hours", "drift")
        write_strategy_file(
            path,
            self.network,
            {
                "name": self.name,
                "policy": policy_to_table(self.policy),
                "rule": rule_to_table(self.rule),
                **({} if self.local_epochs is None else {"local-epochs": self.local_epochs}),
                **{key: written[key] for key in world if key in written},
            },
            learning_rate=self.learning_rates[0] if self.learning_rates else None,
            evidence=self.origin.evidence if evidence is None else evidence,
            provenance=provenance or {},
        )

    def __hash__(self) -> int:
        return hash((self.name, self.network.size, self.concurrency, self.learning_rates))

    def __repr__(self) -> str:
        return (
            f"Strategy('{self.name}': {self.policy.name}, {self.rule.name}, "
            f"{self.concurrency} task{'' if self.concurrency == 1 else 's'} in flight)"
        )


def read_strategies(
    table: Table, fleet: Fleet, folder: Path, *, none_needed: bool = False
) -> tuple[tuple[Strategy, ...], Choices]:
    """All strategies in an experiment's table, and what the experiment says of all of them.

    Without any it is refused, unless ``none_needed``.
    """
    environment = Choices.take(table, fleet, folder, EXPERIMENT_KEYS)
    entries = []
    for routing in table.take("strategies", list, default=[]):
        if not isinstance(routing, str):
            raise InvalidFile(
                f"{table.where}: 'strategies' lists routings and plan files by name; {routing!r} "
                "is no name. Anything else goes into a [[strategy]] table."
            )
        entries.append(Table({"routing": routing}, f"{table.where}: strategy '{routing}'"))
    entries += table.tables("strategy", default=[])
    if not entries and not none_needed:
        raise InvalidFile(
            f"{table.where}: nothing to compare. List routings: strategies = "
            '["uniform", "balanced"], or write [[strategy]] tables.'
        )
    strategies = tuple(Strategy.from_table(entry, fleet, environment, folder) for entry in entries)
    for entry, strategy in zip(entries, strategies, strict=True):
        # One simulated round finds what cannot be simulated before anything is trained.
        with reading(entry.where):
            simulate(strategy.network, strategy.scenario, rounds=1)
    slugs = [strategy.slug for strategy in strategies]
    for strategy in strategies:
        if slugs.count(strategy.slug) > 1:
            raise InvalidFile(
                f"{table.where}: two strategies are called '{strategy.name}'. Give each [[strategy]] "
                "a 'name' of its own."
            )
    return strategies, environment


def _rule(found: Choices, fleet: Fleet, folder: Path | None) -> Rule:
    given: NamedTable = found.rule or USUAL_RULE
    table: dict[str, object] = {"name": given} if isinstance(given, str) else dict(given)
    steps = table.get("local-steps") if found.local_steps is None else found.local_steps
    if found.local_epochs is not None:
        steps = None  # They follow from the samples: see `Strategy.with_samples`.
        table.pop("local-steps", None)
    if steps is not None:
        chosen = local_steps_given(steps, fleet)
        table["local-steps"] = list(chosen) if isinstance(chosen, tuple) else chosen
    return rule_from_table(table, folder=folder)


def _scenario(laws: tuple[ServiceLaw, ...], policy: Policy, rule: Rule, found: Choices) -> Scenario:
    usual = "stationary" if found.steady and policy.routes else "spread"
    return Scenario(
        law=laws,
        policy=policy,
        start=usual if found.start is None else found.start,
        work=rule.local_steps,
        paired=bool(found.paired),
        link_law=found.link_law,
        server_law=found.server_law,
        offline=found.offline or "wait",
        hours=found.hours,
        drift=found.drift,
    )


def _network(
    found: Choices, file: StrategyFile | None, fleet: Fleet, folder: Path | None
) -> tuple[Network, str | list[float]]:
    """The network, and its routing as it was given (that of a file as numbers)."""
    given = found.routing
    if file is not None and (given is None or given == "" or str(given).endswith(".toml")):
        network, routing = file.network, given or "uniform"
    else:
        routing = _named_or_numbers(given or "uniform", fleet, folder)
        network = _routed(routing, fleet)
        if file is not None:
            network = replace(network, server_rate=file.network.server_rate)
    if found.server_rate is not None:
        network = replace(network, server_rate=found.server_rate)
    concurrency = fleet.size if found.concurrency is None else found.concurrency
    return replace(network, concurrency=concurrency), routing


def _named_or_numbers(
    given: str | list[float], fleet: Fleet, folder: Path | None
) -> str | list[float]:
    """A name, which stays one, or numbers: as given, or as in the file that is named."""
    if isinstance(given, list):
        return given
    read = read_routing(given, fleet, folder)
    return given if is_named_routing(given, fleet, read) else read.tolist()


def _routed(routing: str | list[float], fleet: Fleet) -> Network:
    """A routing by name, or numbers per class or per client; as many tasks as clients."""
    if isinstance(routing, str):
        return Network(fleet, named_routing(fleet, routing), fleet.size)
    if len(routing) == fleet.size and fleet.size > fleet.classes:
        parents = np.repeat(np.arange(fleet.classes), fleet.counts)
        each = fleet.select(parents, np.ones(fleet.size))
        return Network(each, routing, fleet.size, parents=parents)
    return Network(fleet, routing, fleet.size)


def _is_unrouted(policy: NamedTable | None, folder: Path | None) -> bool:
    return policy is not None and not as_policy(policy, "policy", folder).routes


def _check_routing(rule: Rule, policy: Policy, routing: str | list[float] | None) -> None:
    """Refuse a routing that would have no effect: strategies must differ where they say so."""
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


def _check_same_world(file: StrategyFile, choices: Choices, environment: Choices) -> None:
    """Refuse a file that was made for another world than the experiment's.

    Strategies of one experiment meet the same service times, links and absences, or the comparison
    between them says nothing.
    """
    usual = Choices(
        law=fleet_laws(file.fleet) or (Law("exponential"),),
        link_law=Law("exponential"),
        server_law=Law("exponential"),
        offline="wait",
    )
    world = environment.over(usual)
    for key in ("law", "link_law", "server_law", "offline", "hours", "drift"):
        meant, met = getattr(file.choices, key), getattr(world, key)
        if meant is None or getattr(choices, key) is not None or meant == met:
            continue
        name = key.replace("_", "-")
        raise InvalidInput(
            f"the file was made for {name} = {_in_words(meant)}, but here it would meet "
            f"{_in_words(met)}. Write {name} in the experiment"
            + (
                ", or in the [[strategy]] table."
                if key == "law"
                else ", or take it out of the file."
            )
        )


def _in_words(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(dict.fromkeys(str(law) for law in value))
    return "none" if value is None else str(value)


def _usual_name(routing: str | list[float] | None) -> str:
    if isinstance(routing, list):
        return "given routing"
    return Path(routing or "uniform").stem


def _checked_name(name: str) -> str:
    if len(name.encode()) > LONGEST_NAME:
        raise InvalidInput(
            f"'name' has at most {LONGEST_NAME} bytes, because files are called after it; it has "
            f"{len(name.encode())}"
        )
    return name

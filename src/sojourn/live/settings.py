"""What the explorer is asked about: a fleet, who gets the next task, how many at once, the step."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, TypeAlias

from sojourn.analysis import analyze
from sojourn.checks import check_number
from sojourn.config import Table
from sojourn.dispatch import NeverQueue, Policy, Routed
from sojourn.errors import InvalidInput, UnknownName
from sojourn.inputs import DEFAULT_CONSTANTS
from sojourn.jackson import Analysis
from sojourn.network import Fleet, Network, uniform_routing
from sojourn.optimize import NoiseRate, TimeToAccuracy, group_clients
from sojourn.optimize.exponent import exponent_routing
from sojourn.planning import Plan, plan
from sojourn.planning.measured import Measured
from sojourn.provenance import provenance
from sojourn.rules import AsyncSGD, GeneralizedAsyncSGD, Rule

Wanted: TypeAlias = NoiseRate | TimeToAccuracy


@dataclass(frozen=True)
class Way:
    """A way to choose clients that the page offers: a policy, and whether its routing is planned."""

    policy: Policy
    in_words: str
    planned: bool = False


WAYS = {
    Routed.name: Way(Routed(), "routing"),
    "planned": Way(Routed(), "best routing", planned=True),
    NeverQueue.name: Way(NeverQueue(), "never queue"),
}
GOALS: dict[str, Callable[[float], Wanted]] = {
    NoiseRate.name: lambda _: NoiseRate(),
    "time-to-accuracy": partial(TimeToAccuracy, DEFAULT_CONSTANTS),
}
"""What plans are compared by, given the squared gradient norm to reach."""
NAMED = {0.0: "uniform", 0.5: "square-root", 1.0: "balanced"}
"""What routings are called whose probabilities are a power of the speeds, by that power."""
MOST_CLASSES = 8
"""Classes that a person can move one by one."""
LEAST_EXPONENT, MOST_EXPONENT = -1.0, 2.0
MOST_CONCURRENCY = 10**6
PARTITIONS = ("dirichlet(0.5)", "homogeneous", "by-speed")


@dataclass(frozen=True, eq=False)
class Settings:
    r"""One way to drive a fleet, as the page states it.

    ``dispatch`` is ``routed`` (:math:`p_i \propto \mu_i^a` with ``exponent`` a), ``planned`` (the best
    routing for ``goal`` with as many tasks) or ``never-queue``; ``debias`` is that of the server's
    rule. ``partition`` and ``horizon`` are for the pilot.
    """

    fleet: Fleet
    concurrency: int
    dispatch: str = Routed.name
    exponent: float = 0.0
    learning_rate: float = 0.02
    debias: float = 1.0
    goal: str = NoiseRate.name
    squared_gradient_norm: float = 0.5
    partition: str = PARTITIONS[0]
    horizon: float | None = None

    @classmethod
    def from_table(cls, values: Mapping[str, Any], base: Fleet) -> "Settings":
        """What the page sent, checked; classes are those of ``base``, at other speeds and sizes."""
        table = Table(values, "the settings")
        rates = table.take("rates", list, default=base.service_rates.tolist())
        counts = table.take("counts", list, default=base.counts.tolist())
        if len(rates) != base.classes or len(counts) != base.classes:
            raise InvalidInput(
                f"the fleet has {base.classes} classes; {len(rates)} speeds and {len(counts)} counts "
                "were given"
            )
        fleet = base.select(range(base.classes), counts, base.names).with_rates(rates)
        found = cls(
            fleet=fleet,
            concurrency=table.take("concurrency", int, default=fleet.size),
            dispatch=_among("dispatch", table.take("dispatch", str, default=Routed.name), WAYS),
            exponent=check_number(
                "the exponent",
                table.take("exponent", float, default=0.0),
                least=LEAST_EXPONENT,
                most=MOST_EXPONENT,
            ),
            learning_rate=check_number(
                "the learning rate", table.take("learning_rate", float, default=0.02), above=0.0
            ),
            debias=check_number(
                "debias", table.take("debias", float, default=1.0), least=0.0, most=1.0
            ),
            goal=_among("goal", table.take("goal", str, default=NoiseRate.name), GOALS),
            squared_gradient_norm=check_number(
                "the target", table.take("squared_gradient_norm", float, default=0.5), above=0.0
            ),
            partition=table.take("partition", str, default=PARTITIONS[0]),
            horizon=table.take("horizon", float, default=None),
        )
        table.close()
        if found.partition not in PARTITIONS:
            raise UnknownName("partition", found.partition, PARTITIONS)
        if not 1 <= found.concurrency <= MOST_CONCURRENCY:
            raise InvalidInput(
                f"tasks in flight must be 1 to {MOST_CONCURRENCY}; {found.concurrency} were given"
            )
        return found

    def to_table(self) -> dict[str, Any]:
        """What `from_table` reads back."""
        return {
            "rates": self.fleet.service_rates.tolist(),
            "counts": self.fleet.counts.tolist(),
            "concurrency": self.concurrency,
            "dispatch": self.dispatch,
            "exponent": self.exponent,
            "learning_rate": self.learning_rate,
            "debias": self.debias,
            "goal": self.goal,
            "squared_gradient_norm": self.squared_gradient_norm,
            "partition": self.partition,
            **({} if self.horizon is None else {"horizon": self.horizon}),
        }

    @cached_property
    def objective(self) -> Wanted:
        """What plans are compared by."""
        return GOALS[self.goal](self.squared_gradient_norm)

    @property
    def way(self) -> Way:
        """How clients are chosen."""
        return WAYS[self.dispatch]

    @property
    def policy(self) -> Policy:
        """Who gets the next task."""
        return self.way.policy

    @property
    def rule(self) -> Rule:
        """What the server does with a gradient."""
        return GeneralizedAsyncSGD() if self.debias == 1.0 else AsyncSGD(debias=self.debias)

    @cached_property
    def network(self) -> Network:
        """Fleet, routing and tasks in flight; never queueing has no routing."""
        if self.way.planned:
            return planned(self.fleet, self.objective, self.concurrency).network
        return Network(
            self.fleet,
            exponent_routing(self.fleet, self.exponent)
            if self.policy.routes
            else uniform_routing(self.fleet),
            self.concurrency,
        )

    @cached_property
    def analysis(self) -> Analysis:
        """The steady state."""
        return analyze(self.network, self.policy)

    def to_plan(self) -> Plan:
        """The settings as a plan to simulate, train and deploy, with the learning rate stated."""
        criterion = "noise rate in steady state, by theory"
        score = self.analysis.noise_rate
        return Plan(
            fleet=self.fleet,
            objective=Measured(criterion, score, self.learning_rate),
            network=self.network,
            learning_rate=self.learning_rate,
            value=score,
            provenance=provenance(explored=self.in_words()),
            policy=self.policy,
            rule=self.rule,
            evidence={"explored": self.in_words()},
        )

    def in_words(self) -> str:
        """The settings in a line, for legends and tables."""
        way = self.way.in_words
        if self.policy.routes and not self.way.planned:
            named = NAMED.get(self.exponent)
            way = f"{named} {way}" if named else f"{way} by speed^{self.exponent:g}"
        weight = {1.0: "unbiased", 0.0: "equal weights"}.get(self.debias, f"debias {self.debias:g}")
        return f"{way}, {self.concurrency} tasks, {weight}, η {self.learning_rate:.3g}"


def _among(what: str, given: str, known: Collection[str]) -> str:
    if given not in known:
        raise UnknownName(what, given, known)
    return given


def movable(fleet: Fleet) -> Fleet:
    """The fleet with few enough classes to move one by one: similar clients grouped where need be.

    >>> from sojourn.network import built_in_fleet
    >>> movable(built_in_fleet("fifty")).classes <= MOST_CLASSES
    True
    """
    found, tolerance = fleet, 0.02
    while found.classes > MOST_CLASSES:
        found = group_clients(fleet, tolerance=tolerance).fleet
        tolerance *= 1.5
        if tolerance > 1e12:
            raise InvalidInput(
                f"the fleet has {fleet.classes} classes that differ in more than speed, and at most "
                f"{MOST_CLASSES} can be moved by hand: leave out links, powers or laws"
            )
    return found


def planned(fleet: Fleet, objective: Wanted, concurrency: int | None) -> Plan:
    """`sojourn.planning.plan`, remembering the last ones asked for."""
    return _planned(FleetKey(fleet), objective, concurrency)


class FleetKey:
    """A fleet to look things up by."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        arrays = (fleet.service_rates, fleet.counts, *fleet.columns.values())
        self._parts = tuple(values.tobytes() for values in arrays)

    def __hash__(self) -> int:
        return hash(self._parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FleetKey) and self.fleet == other.fleet


@lru_cache(maxsize=64)
def _planned(key: FleetKey, objective: Wanted, concurrency: int | None) -> Plan:
    return plan(key.fleet, objective, concurrency=concurrency)

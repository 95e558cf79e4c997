"""What the explorer is asked about: a fleet, who gets the next task, how many at once, the step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TypeAlias

from sojourn._support.checks import check_number
from sojourn._support.configuration import Table
from sojourn.dispatch import NeverQueue, Policy, Routed
from sojourn.dispatch.analysis import analyze
from sojourn.errors import InvalidInput, UnknownName
from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.planning import Plan, plan
from sojourn.planning.objectives import NoiseRate, TimeToAccuracy
from sojourn.planning.search import group_clients
from sojourn.planning.search.exponent import exponent_routing
from sojourn.rules import AsyncSGD, GeneralizedAsyncSGD, Rule
from sojourn.simulation.scenario import Scenario
from sojourn.strategy import Origin, Strategy
from sojourn.theory.constants import DEFAULT_CONSTANTS
from sojourn.theory.jackson import Analysis

Wanted: TypeAlias = NoiseRate | TimeToAccuracy


@dataclass(frozen=True)
class Choice:
    """A way to choose clients that the page offers: a policy, and whether its routing is planned."""

    policy: Policy
    in_words: str
    planned: bool = False


CHOICES = {
    Routed.name: Choice(Routed(), "routing"),
    "planned": Choice(Routed(), "best routing", planned=True),
    NeverQueue.name: Choice(NeverQueue(), "never queue"),
}
GOALS: dict[str, Callable[[float], Wanted]] = {
    NoiseRate.name: lambda _: NoiseRate(),
    "time-to-accuracy": partial(TimeToAccuracy, DEFAULT_CONSTANTS),
}
"""What plans are compared by, given the squared gradient norm to reach."""
NAMED = {0.0: "uniform", 0.5: "square-root", 1.0: "balanced"}
"""What routings are called whose probabilities are a power of the speeds, by that power."""
SENT = {
    "concurrency": int,
    "dispatch": str,
    "exponent": float,
    "learning_rate": float,
    "debias": float,
    "goal": str,
    "squared_gradient_norm": float,
    "partition": str,
    "horizon": float,
}
"""What the page sends beside speeds and counts of clients, and of which type."""
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
    def from_table(cls, values: Mapping[str, object], base: Fleet) -> "Settings":
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
        given = {name: table.take(name, kind, default=None) for name, kind in SENT.items()}
        table.close()
        set_values = {name: value for name, value in given.items() if value is not None}
        settings = cls(fleet, **{"concurrency": fleet.size, **set_values})
        if not 1 <= settings.concurrency <= MOST_CONCURRENCY:
            raise InvalidInput(
                f"tasks in flight must be 1 to {MOST_CONCURRENCY}; {settings.concurrency} were given"
            )
        return settings

    def __post_init__(self) -> None:
        for what, given, known in (
            ("dispatch", self.dispatch, CHOICES),
            ("goal", self.goal, GOALS),
            ("partition", self.partition, PARTITIONS),
        ):
            if given not in known:
                raise UnknownName(what, given, known)
        check_number("the exponent", self.exponent, least=LEAST_EXPONENT, most=MOST_EXPONENT)
        check_number("the learning rate", self.learning_rate, above=0.0)
        check_number("debias", self.debias, least=0.0, most=1.0)
        check_number("the target", self.squared_gradient_norm, above=0.0)
        if self.horizon is not None:
            check_number("the horizon", self.horizon, above=0.0)

    def to_table(self) -> dict[str, object]:
        """What `from_table` reads back."""
        return {
            "rates": self.fleet.service_rates.tolist(),
            "counts": self.fleet.counts.tolist(),
            **{name: value for name in SENT if (value := getattr(self, name)) is not None},
        }

    @cached_property
    def objective(self) -> Wanted:
        """What plans are compared by."""
        return GOALS[self.goal](self.squared_gradient_norm)

    @property
    def choice(self) -> Choice:
        """How clients are chosen."""
        return CHOICES[self.dispatch]

    @property
    def policy(self) -> Policy:
        """Who gets the next task."""
        return self.choice.policy

    @property
    def rule(self) -> Rule:
        """What the server does with a gradient."""
        return GeneralizedAsyncSGD() if self.debias == 1.0 else AsyncSGD(debias=self.debias)

    @cached_property
    def network(self) -> Network:
        """Fleet, routing and tasks in flight; never queueing has no routing."""
        if self.choice.planned:
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

    def to_strategy(self) -> Strategy:
        """The settings as a strategy to simulate, train and deploy."""
        return Strategy(
            name=self.in_words(),
            network=self.network,
            scenario=Scenario.of(self.network, policy=self.policy),
            rule=self.rule,
            learning_rates=(self.learning_rate,),
            origin=Origin(
                evidence={
                    "criterion": "noise rate in steady state, by theory",
                    "score": self.analysis.noise_rate,
                }
            ),
        )

    def in_words(self) -> str:
        """The settings in a line, for legends and tables."""
        way = self.choice.in_words
        if self.policy.routes and not self.choice.planned:
            named = NAMED.get(self.exponent)
            way = f"{named} {way}" if named else f"{way} by speed^{self.exponent:g}"
        weight = {1.0: "unbiased", 0.0: "equal weights"}.get(self.debias, f"debias {self.debias:g}")
        return f"{way}, {self.concurrency} tasks, {weight}, η {self.learning_rate:.3g}"


def movable(fleet: Fleet) -> Fleet:
    """The fleet with few enough classes to move one by one: similar clients grouped where need be.

    >>> from sojourn.fleet import built_in_fleet
    >>> movable(built_in_fleet("fifty")).classes <= MOST_CLASSES
    True
    """
    grouped, tolerance = fleet, 0.02
    while grouped.classes > MOST_CLASSES:
        grouped = group_clients(fleet, tolerance=tolerance).fleet
        tolerance *= 1.5
        if tolerance > 1e12:
            raise InvalidInput(
                f"the fleet has {fleet.classes} classes that differ in more than speed, and at most "
                f"{MOST_CLASSES} can be moved by hand: leave out links, powers or laws"
            )
    return grouped


@lru_cache(maxsize=64)
def planned(fleet: Fleet, objective: Wanted, concurrency: int | None) -> Plan:
    """`sojourn.planning.plan`, remembering the last ones asked for."""
    return plan(fleet, objective, concurrency=concurrency)

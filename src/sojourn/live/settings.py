"""What the explorer is asked about, what theory says of it, and what it recommends instead.

Every number is from the package's own functions.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import TypeAlias

import numpy as np

from sojourn._support.checks import check_number
from sojourn._support.configuration import Table
from sojourn._support.numbers import number
from sojourn.dispatch import NeverQueue, Policy, Routed
from sojourn.dispatch.analysis import analyze
from sojourn.errors import InvalidInput, UnknownName, Unreachable
from sojourn.figures.heatmap import level_text, levels, shade
from sojourn.figures.timeline import Timeline
from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.planning import Plan, plan
from sojourn.planning.frontier import ObjectiveMap
from sojourn.planning.objectives import NoiseRate, TimeToAccuracy
from sojourn.planning.search import group_clients
from sojourn.planning.search.exponent import exponent_routing
from sojourn.rules import AsyncSGD, GeneralizedAsyncSGD, Rule, Weighting
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.simulate import previews
from sojourn.strategy import Origin, Strategy
from sojourn.theory.constants import DEFAULT_CONSTANTS
from sojourn.theory.floor import noise_floor
from sojourn.theory.jackson import Analysis
from sojourn.theory.stability import largest_stable_step
from sojourn.types import FloatArray

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
EXPONENTS = np.linspace(-0.25, 1.5, 15)
"""Of the map, from more tasks for the slow to more than balanced for the fast."""
MAP_ROWS = 15
MOST_DRAWN = 1200
"""Tasks in the timeline: beyond that bars are hairs."""
TASKS_SHOWN = 6.0
"""Mean service times of the median client that the timeline lasts."""
MOST_PAIRED = 5000
"""Clients up to which each has a stream of service times of its own: 100,000 streams take 4 s."""
SEED = 1
ROUNDING = 1e-9
"""Part of a client's tasks below which a difference is a rounding error."""
SAME = 0.005
"""Relative difference up to which two settings are called equally good."""
SAFE = 0.5
"""Part of the largest stable learning rate that is recommended."""
GRADIENTS = 2000.0
"""About how many a pilot computes if nobody ever waits."""


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

    @cached_property
    def weights(self) -> FloatArray:
        """What an update of a client of each class counts, by the rule's debias; the mean is 1."""
        fleet = self.analysis.network.fleet
        divisors = Weighting(debias=self.debias).divisors(fleet.expand(self.analysis.shares))
        firsts = np.cumsum(fleet.counts) - fleet.counts
        return np.asarray(fleet.relative_weights / divisors[firsts])

    @property
    def waiting(self) -> FloatArray:
        """Tasks that wait at a client of each class; rounding errors are no tasks."""
        tasks = self.analysis.mean_tasks_full
        waiting = tasks - self.analysis.utilization
        return np.where(waiting > ROUNDING * tasks, waiting, 0.0)

    @property
    def stable_step(self) -> float:
        """The largest learning rate that delayed steps bear, times the curvature of the loss."""
        square = self.analysis.weight_square
        if self.debias != 1.0:
            counts = self.analysis.network.fleet.counts
            square = float(counts @ (self.analysis.shares * self.weights**2))
        return largest_stable_step(self.policy.in_flight(self.network), max(1.0, square))

    @property
    def time_to_target(self) -> float | None:
        """Time units to the target by the bound, at its best learning rate.

        Infinite where it is out of reach; ``None`` where the bound says nothing.
        """
        if isinstance(self.objective, NoiseRate) or not self.policy.routes:
            return None
        try:
            return self.objective.evaluate(self.network).value
        except Unreachable:
            return float("inf")

    @property
    def pilot_time(self) -> float:
        """Time units of a pilot: unless given the same for all settings of a fleet, to one digit.

        >>> Settings(Fleet([0.01, 0.1, 1.0], counts=[10, 10, 10]), 30).pilot_time
        200.0
        """
        usual = float(f"{GRADIENTS / self.fleet.total_rate:.1g}")
        return usual if self.horizon is None else self.horizon

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


def summary(settings: Settings, curvature: float | None) -> dict[str, object]:
    """The numbers of one setting, for tiles and for comparisons."""
    analysis, known = settings.analysis, curvature or DEFAULT_CONSTANTS.smoothness
    fleet = analysis.network.fleet
    floor = noise_floor(settings.fleet, settings.concurrency)
    worst = int(np.argmax(analysis.staleness))
    return {
        "words": settings.in_words(),
        "settings": settings.to_table(),
        "throughput": analysis.throughput,
        "noise_rate": analysis.noise_rate,
        "noise_floor": floor,
        "noise_over_floor": analysis.noise_rate / floor,
        "worst_staleness": float(analysis.staleness[worst]),
        "worst_class": fleet.label(worst),
        "mean_staleness_time": analysis.mean_staleness_time,
        "waiting": float(fleet.counts @ settings.waiting),
        "busy": float(fleet.counts @ analysis.utilization) / fleet.size,
        "stable_step": settings.stable_step,
        "stable_rate": settings.stable_step / known,
        "curvature": known,
        "curvature_measured": curvature is not None,
        "time_to_target": settings.time_to_target,
        "in_flight": settings.policy.in_flight(settings.network),
    }


def class_rows(settings: Settings) -> list[dict[str, object]]:
    """Who works, who waits, what an update weighs: a row per class."""
    analysis = settings.analysis
    fleet, waiting = analysis.network.fleet, settings.waiting
    return [
        {
            "name": fleet.label(k),
            "count": int(fleet.counts[k]),
            "rate": float(fleet.service_rates[k]),
            "share": float(fleet.counts[k] * analysis.shares[k]),
            "busy": float(analysis.utilization[k]),
            "waiting": float(waiting[k]),
            "staleness": float(analysis.staleness[k]),
            "staleness_time": float(analysis.staleness_time[k]),
            "weight": float(settings.weights[k]),
        }
        for k in range(fleet.classes)
    ]


def landscape(settings: Settings) -> dict[str, object]:
    """The map of the goal over (exponent, m), as on a plan's page: in times of the best.

    ``never`` is the column of never queueing, where theory knows it; ``best`` the best routing.
    """
    found = _landscape(settings.fleet, settings.objective)
    exponent, tasks, value = found.best
    shades, beside = (None if times is None else levels(times) for times in found.times)
    assert shades is not None
    used = {*shades.ravel().tolist(), *([] if beside is None else beside.tolist())}
    return {
        "exponents": EXPONENTS.tolist(),
        "tasks": found.tasks.tolist(),
        "values": found.values.tolist(),
        "shades": [[shade(level) for level in line] for line in shades.tolist()],
        "never": None
        if found.never is None or beside is None
        else {
            "values": found.never.tolist(),
            "shades": [shade(level) for level in beside.tolist()],
        },
        "legend": [
            [shade(level), level_text(level)]
            for level in sorted(used, key=lambda level: level % 99)
        ],
        "best": {"exponent": exponent, "tasks": tasks, "value": value},
    }


@lru_cache(maxsize=32)
def _landscape(fleet: Fleet, goal: Wanted) -> ObjectiveMap:
    """The map, remembering the last ones asked for."""
    most = max(2, 3 * fleet.size)
    tasks = np.unique(np.geomspace(1, most, MAP_ROWS).round().astype(np.int64))
    return ObjectiveMap.of(fleet, goal, EXPONENTS, tasks)


def timeline(settings: Settings) -> Timeline:
    """Who computes what when in the beginning, over a time that depends on the fleet alone."""
    fleet = settings.fleet
    until = TASKS_SHOWN * float(np.median(fleet.expand(1.0 / fleet.service_rates)))
    until = min(until, MOST_DRAWN / settings.analysis.throughput)
    # Times of each client's own keep its bars where they are when settings change.
    paired = fleet.size <= MOST_PAIRED
    scenario = Scenario.of(settings.network, policy=settings.policy, paired=paired)
    runs = {"now": (settings.network, scenario)}
    return previews(runs, until=until, seed=SEED)["now"]


def command(settings: Settings, source: str, base: Fleet) -> dict[str, object]:
    """The command that prints the same numbers, and which files it needs saved first."""
    same = settings.fleet == base
    name, m = shlex.quote(source) if same else "fleet.csv", settings.concurrency
    needs = [] if same else ["fleet.csv"]
    if settings.choice.planned:
        line = f"sojourn plan {name} --concurrency {m}"
        if not isinstance(settings.objective, NoiseRate):
            line += (
                f" --constants default --squared-gradient-norm {settings.squared_gradient_norm:g}"
            )
    elif not settings.policy.routes:
        line = f"sojourn analyze {name} --concurrency {m} --policy {settings.policy.name}"
    elif settings.exponent in NAMED:
        line = f"sojourn analyze {name} --concurrency {m} --routing {NAMED[settings.exponent]}"
    else:
        line, needs = "sojourn simulate strategy.toml", ["strategy.toml"]
    return {"line": line, "needs": needs}


def advice(settings: Settings, curvature: float | None = None) -> dict[str, object]:
    """The recommended plan with what it gains, and the settings that "use this" brings.

    The learning rate it brings is at most half of the largest stable one, at the ``curvature`` that a
    pilot has measured or else at the assumed one.
    """
    title, text, better, is_best = (
        _least_noise(settings) if isinstance(settings.objective, NoiseRate) else _soonest(settings)
    )
    use: dict[str, object] = {"dispatch": better.dispatch, "concurrency": better.concurrency}
    stable = better.stable_step / (curvature or DEFAULT_CONSTANTS.smoothness)
    use["learning_rate"] = float(f"{min(settings.learning_rate, SAFE * stable):.2g}")
    return {"title": title, "text": text, "is_best": is_best, "use": use}


def _least_noise(settings: Settings) -> tuple[str, str, Settings, bool]:
    """Title and text, the better settings, and whether the present ones are as good."""
    size = settings.fleet.size
    best = planned(settings.fleet, settings.objective, None)
    never = replace(settings, dispatch=NeverQueue.name, concurrency=size)
    routed = replace(settings, dispatch="planned", concurrency=best.concurrency)
    # Without links never queueing is at the floor; with links one task each may leave clients idle.
    better = min((never, routed), key=lambda way: way.analysis.noise_rate)
    now, then = settings.analysis, better.analysis
    less, more = now.noise_rate / then.noise_rate, then.throughput / now.throughput
    way = "Never queue" if better is never else "Route as planned"
    if less < 1.0 + SAME:
        title = "Nothing brings less noise than this"
        text = (
            f"With {settings.concurrency} tasks in flight the noise rate is {number(now.noise_rate)}, and "
            f"a task takes {number(now.mean_staleness_time)} time units on average. What is left to "
            "choose is how much an update of a slow client counts: try it below."
        )
    else:
        title = f"{way}: noise {number(less)} times lower, {number(more)} times as many updates"
        text = (
            f"{better.concurrency} tasks in flight{', one each' if better is never else ''}: noise "
            f"rate {number(then.noise_rate)} instead of {number(now.noise_rate)}, "
            f"{number(then.throughput)} updates per time unit instead of {number(now.throughput)}, and a task "
            f"takes {number(then.mean_staleness_time)} time units on average instead of "
            f"{number(now.mean_staleness_time)}."
        )
    return title, text, better, less < 1.0 + SAME


def _soonest(settings: Settings) -> tuple[str, str, Settings, bool]:
    """The same for the time to a target."""
    best = planned(settings.fleet, settings.objective, None)
    better = replace(settings, dispatch="planned", concurrency=best.concurrency)
    shares = ", ".join(f"{row['share']:.0%} to {row['name']}" for row in class_rows(better))
    now = settings.time_to_target
    gain = None if now is None else now / best.value
    is_best = gain is not None and gain < 1.0 + SAME
    tasks = f"{best.concurrency} task{'s' if best.concurrency > 1 else ''} in flight"
    if gain is None:
        title = f"The target after {best.value:.3g} time units: {tasks}"
        text = f"{shares}. The bound speaks of routed tasks only, so it cannot rank never queueing."
    elif is_best:
        title = "By the bound nothing reaches the target sooner"
        text = f"{best.value:.3g} time units, with {tasks}: {shares}."
    else:
        ahead = "The target comes in reach" if gain == float("inf") else f"{gain:.3g} times sooner"
        title = f"{ahead}: {tasks} instead of {settings.concurrency}"
        text = f"{best.value:.3g} time units to the target. {shares}."
    text += (
        " Constants are assumed (L = 10, σ = 1, M = 1, A = 2.3): sojourn calibrate measures them."
    )
    return title, text, better, is_best

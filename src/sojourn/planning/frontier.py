"""Trade-offs as curves and maps: throughput against staleness, time against energy, routing against tasks."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from threadpoolctl import threadpool_limits

from sojourn._support.numbers import number
from sojourn.dispatch import NeverQueue
from sojourn.errors import InvalidInput, UnknownName
from sojourn.figures.figure import Figure, Series, View
from sojourn.figures.notebook import table_html
from sojourn.fleet import (
    ROUTINGS,
    Fleet,
    Network,
    balanced_routing,
    check_concurrency,
    named_routing,
    uniform_routing,
)
from sojourn.planning.objectives import (
    Energy,
    NoiseRate,
    Objective,
    Throughput,
    TimeAndEnergy,
    TimeToAccuracy,
)
from sojourn.planning.plan import Plan
from sojourn.planning.search.concurrency import optimize
from sojourn.planning.search.descent import OverRoutings, lbfgs, softmax
from sojourn.planning.search.exponent import exponent_map
from sojourn.planning.search.starts import PACE_SETTER_MASS, Start, group_clients, pace_setters
from sojourn.theory.bounds import PAPER, Form, Penalties, penalties
from sojourn.theory.constants import LearningConstants
from sojourn.types import FloatArray, IntArray, Step

Penalty = Literal["staleness", "routing"]
PENALTIES = ("staleness", "routing")

_IN_WORDS: dict[Penalty, str] = {
    "staleness": "staleness by weight of updates, rounds",
    "routing": "weight of updates (1: all alike)",
}

MOST_TRACED = 200
"""Classes beyond which curves and maps are those of a grouped fleet."""
CLOSEST = 0.995
"""How near to the greatest throughput the curve goes; at it the penalties are infinite."""
MULTIPLIER_STEPS = 12
"""Most updates of the multiplier for one point of the curve."""
REACHED = 1e-4
"""How far below its log throughput a point may stay."""
SAME = 1e-6
"""Difference in log penalty and log throughput at which two paths are one."""


@dataclass(frozen=True, eq=False)
class Frontier:
    r"""For each throughput the least penalty, both of shape ``(points,)``, and marked routings.

    ``penalty`` names which: ``staleness`` is :math:`S_2 = \sum_i E[X_i]/p_i^2`, ``routing``
    :math:`S_1 = \sum_i 1/p_i`, each divided by :math:`n^2` so that uniform routing has
    :math:`S_1 = 1` and :math:`S_2 = m - 1`. ``marks`` maps a name to (throughput, penalty).
    """

    penalty: Penalty
    throughput: FloatArray
    least: FloatArray
    networks: tuple[Network, ...]
    marks: Mapping[str, tuple[float, float]]

    def __repr__(self) -> str:
        slow, fast = (number(float(x)) for x in (self.throughput[0], self.throughput[-1]))
        return f"Frontier({len(self.networks)} networks, {slow} to {fast} updates per time unit)"

    def _repr_html_(self) -> str:
        points = {
            f"point {k}": xy
            for k, xy in enumerate(zip(self.throughput, self.least, strict=True), 1)
        }
        rows = [
            (name, number(float(x)), number(float(y)))
            for name, (x, y) in {**self.marks, **points}.items()
        ]
        return table_html(
            repr(self), ("routing", "updates per time unit", f"{self.penalty} penalty"), rows
        )

    def plot(self) -> Figure:
        """The frontier as a line, and the marked routings as points on or above it."""
        line = Series("frontier", self.throughput, self.least)
        points = [
            Series(name, [x], [y], kind="points", text=(name,))
            for name, (x, y) in self.marks.items()
        ]
        slow, fast = self.throughput[0], self.throughput[-1]
        alt = (
            f"From {slow:.3g} to {fast:.3g} updates per time unit, the least {self.penalty} "
            f"penalty rises from {self.least[0]:.3g} to {self.least[-1]:.3g}; "
        )
        alt += "; ".join(f"{name} at {x:.3g}, {y:.3g}" for name, (x, y) in self.marks.items())
        view = View(
            x_label="updates per time unit",
            y_label=_IN_WORDS[self.penalty],
            series=(line, *points),
            log_x=True,
            log_y=True,
        )
        return Figure("frontier", "More updates per time unit, or fresher ones", alt, (view,))


def frontier(
    fleet: Fleet,
    concurrency: int,
    *,
    penalty: Penalty = "staleness",
    points: int = 25,
    server_rate: float | None = None,
    plan: Plan | None = None,
    progress: Step | None = None,
) -> Frontier:
    r"""The least staleness penalty for each throughput that ``concurrency`` tasks can reach.

    .. math:: \min_p \log S(p) \quad \text{such that} \quad \log\lambda(p) \ge \tau

    for :math:`\tau` from the throughput of the least penalty to 99.5 % of the greatest, by the
    method of multipliers, each point begun from the last; several curves are followed, with and
    without pace-setters, and the lowest kept. Uniform, balanced and square-root routing, and
    ``plan`` if given, are marked. The curve is a single point where all clients are alike and
    nothing is to be traded. ``server_rate`` is that of the networks. ``progress`` is called with a
    word for every point. Cost: some hundred short descents.

    >>> from sojourn.fleet import built_in_fleet
    >>> curve = frontier(built_in_fleet("three-clusters"), 30, points=5)
    >>> bool(np.all(np.diff(curve.throughput) > 0) and np.all(np.diff(curve.least) > 0))
    True
    """
    m = check_concurrency(concurrency)
    if penalty not in PENALTIES:
        raise UnknownName("penalty", penalty, PENALTIES)
    if m == 1 and penalty == "staleness":
        raise InvalidInput(
            "with one task in flight nothing is stale: ask for penalty='routing', or for more tasks"
        )
    if points < 2:
        raise InvalidInput(f"a frontier needs at least 2 points; {points} were asked for")
    with threadpool_limits(limits=1, user_api="blas"):
        balanced = Network(fleet, balanced_routing(fleet), m, server_rate=server_rate)
        fastest = lbfgs(balanced, Throughput()).value
        paths = _distinct([_Path(start, m, penalty, server_rate) for start in _starts(fleet)])
        first = min(paths, key=lambda path: path.penalty)
        reached = [(first.state, first.network)]
        for target in _targets(first.log_throughput, math.log(CLOSEST * fastest), points):
            if progress is not None:
                progress(f"throughput {math.exp(target):.4g} of {fastest:.4g}")
            reached.append(_least(paths, target))
    throughput = np.array([state.throughput for state, _ in reached])
    least = np.array([_penalty(state, penalty) for state, _ in reached])
    marked = {
        name: Network(fleet, named_routing(fleet, name), m, server_rate=server_rate)
        for name in ROUTINGS
    }
    if plan is not None:
        marked["plan"] = plan.network
    return Frontier(
        penalty=penalty,
        throughput=throughput,
        least=least,
        networks=tuple(network for _, network in reached),
        marks={name: _mark(network, penalty) for name, network in marked.items()},
    )


def plan_frontier(plan: Plan, progress: Step | None = None) -> Frontier:
    """The `frontier` on which a plan lies, traced for a grouped fleet beyond 200 classes."""
    return frontier(
        traced_fleet(plan.fleet),
        plan.concurrency,
        penalty="staleness" if plan.concurrency > 1 else "routing",
        server_rate=plan.network.server_rate,
        plan=plan,
        progress=progress,
    )


def traced_fleet(fleet: Fleet) -> Fleet:
    """The fleet that curves and maps are computed for: grouped where it has very many classes."""
    return fleet if fleet.classes <= MOST_TRACED else group_clients(fleet, tolerance=0.05).fleet


def _starts(fleet: Fleet) -> Iterator[Start]:
    """Uniform routing, and one or two of the slowest or the fastest clients setting the pace."""
    uniform = uniform_routing(fleet)
    yield Start("uniform", fleet, fleet, np.arange(fleet.classes), uniform)
    for place in sorted({0, fleet.classes - 1}):
        for setters in (1, 2):
            yield from pace_setters(fleet, uniform, place, setters, PACE_SETTER_MASS[0])


def _targets(slowest: float, greatest: float, points: int) -> FloatArray:
    """Log throughputs of all points but the first; none if it is the fastest already."""
    if greatest - slowest <= REACHED:
        return np.empty(0)
    return np.linspace(slowest, greatest, points)[1:]


def _distinct(paths: list["_Path"]) -> list["_Path"]:
    """One path for each place where paths begin."""
    kept: list[_Path] = []
    for path in paths:
        here = np.log(path.penalty), path.log_throughput
        if not any(
            np.allclose(here, (np.log(other.penalty), other.log_throughput), rtol=0, atol=SAME)
            for other in kept
        ):
            kept.append(path)
    return kept


def _least(paths: list["_Path"], target: float) -> tuple[Penalties, Network]:
    for path in paths:
        path.move_to(target)
    reached = [path for path in paths if path.log_throughput >= target - REACHED] or paths
    best = min(reached, key=lambda path: path.penalty)
    return best.state, best.network


class _Path:
    """One curve of local minima, followed from its unconstrained end towards greater throughput."""

    def __init__(
        self, start: Start, concurrency: int, penalty: Penalty, server_rate: float | None
    ) -> None:
        self._start, self._which = start, penalty
        self._theta = np.log(start.routing)
        self._multiplier = 0.0
        # In softmax coordinates as all later ones, to the last bit.
        p = softmax(start.fleet, self._theta)
        self.state = penalties(Network(start.fleet, p, concurrency, server_rate=server_rate))
        self.move_to(-math.inf)

    @property
    def network(self) -> Network:
        """Where the path is, its clients numbered as in the fleet."""
        return self._start.merged(self.state.network)

    @property
    def penalty(self) -> float:
        return _penalty(self.state, self._which)

    @property
    def log_throughput(self) -> float:
        return math.log(self.state.throughput)

    def move_to(self, target: float) -> None:
        """The least penalty nearby with a log throughput of at least ``target``.

        Method of multipliers: the constraint pulls with a force that is learnt step by step.
        """
        stiffness = 10.0

        def lagrangian(network: Network) -> tuple[float, FloatArray]:
            s = penalties(network)
            value, g = s.staleness, s.staleness_gradient
            if self._which == "routing":
                value, g = s.routing, s.routing_gradient
            pull = self._multiplier + stiffness * (target - math.log(s.throughput))
            force = max(0.0, pull)
            total = math.log(value) + (force**2 - self._multiplier**2) / (2.0 * stiffness)
            return total, g / value - force * s.log_throughput_gradient

        function = OverRoutings(self.state.network, lagrangian)
        for _ in range(MULTIPLIER_STEPS):
            self._theta = function.minimize(
                self._theta, bounded=True, gtol=1e-8, ftol=1e-14, maxiter=300
            )
            self.state = penalties(function.network(self._theta))
            force = max(0.0, self._multiplier + stiffness * (target - self.log_throughput))
            settled = abs(force - self._multiplier) <= 1e-6 * max(1.0, force)
            self._multiplier = force
            if settled:
                break
            stiffness = min(2.0 * stiffness, 1e4)


def _mark(network: Network, penalty: Penalty) -> tuple[float, float]:
    s = penalties(network)
    return s.throughput, _penalty(s, penalty)


def _penalty(s: Penalties, penalty: Penalty) -> float:
    return (s.staleness if penalty == "staleness" else s.routing) / s.network.size**2


@dataclass(frozen=True, eq=False)
class ObjectiveMap:
    """An objective over powers of speed (columns) and tasks in flight (rows), and of never queueing.

    ``values`` are those of routings proportional to a power of speed, ``nan`` out of reach;
    ``never`` has one for every number of tasks, and only for the noise rate, where it is known of
    never queueing.
    """

    exponents: FloatArray
    tasks: IntArray
    values: FloatArray
    never: FloatArray | None
    maximize: bool

    @classmethod
    def of(
        cls,
        fleet: Fleet,
        objective: Objective,
        exponents: FloatArray,
        tasks: IntArray,
        *,
        server_rate: float | None = None,
    ) -> "ObjectiveMap":
        """The map of a fleet; of one with very many classes that of its groups. Cost: an evaluation per cell."""
        grouped = traced_fleet(fleet)
        values = exponent_map(grouped, objective, exponents, tasks, server_rate=server_rate)
        noise = []
        if isinstance(objective, NoiseRate):
            uniform = uniform_routing(fleet)
            for m in tasks.tolist():
                network = Network(fleet, uniform, m, server_rate=server_rate)
                if (analysis := NeverQueue().analysis(network)) is not None:
                    noise.append(analysis.noise_rate)
        never = np.array(noise) if noise else None
        reached = np.where(np.isfinite(values), values, math.nan)
        return cls(exponents, tasks, reached, never, objective.maximize)

    @property
    def best(self) -> tuple[float, int, float]:
        """Exponent, tasks in flight and value of the best routing on the map."""
        find = np.nanargmax if self.maximize else np.nanargmin
        row, column = np.unravel_index(int(find(self.values)), self.values.shape)
        return (
            float(self.exponents[column]),
            int(self.tasks[row]),
            float(self.values[row, column]),
        )

    @property
    def times(self) -> tuple[FloatArray, FloatArray | None]:
        """How many times the best of all the values are, infinite out of reach; and those of never queueing."""
        best = self.best[2]
        if self.maximize:
            return np.nan_to_num(best / self.values, nan=math.inf), None
        if self.never is None:
            return np.nan_to_num(self.values / best, nan=math.inf), None
        best = min(best, float(self.never.min()))
        return np.nan_to_num(self.values / best, nan=math.inf), self.never / best


@dataclass(frozen=True, eq=False)
class EnergyFrontier:
    """For each ``energy_share`` the best network, its time and its energy, ``(points,)`` each."""

    energy_share: FloatArray
    time: FloatArray
    energy: FloatArray
    networks: tuple[Network, ...]

    def plot(self) -> Figure:
        """Energy against time, from the fastest plan to the thriftiest."""
        line = Series("time and energy", self.time, self.energy, kind="track")
        alt = (
            f"From {self.time[0]:.3g} time units at {self.energy[0]:.3g} of energy to "
            f"{self.time[-1]:.3g} at {self.energy[-1]:.3g}."
        )
        view = View("time to the accuracy", "energy to the accuracy", (line,))
        return Figure("energy", "Faster, or with less energy", alt, (view,))


def time_and_energy(
    fleet: Fleet,
    constants: LearningConstants,
    *,
    squared_gradient_norm: float,
    energy_share: float = 0.5,
    concurrency: int | None = None,
    server_rate: float | None = None,
    server_power: float = 0.0,
    form: Form = PAPER,
    progress: Step | None = None,
) -> TimeAndEnergy:
    """The objective that weighs energy against time, each relative to its best for this fleet.

    The separate optima are found first, at ``concurrency`` or the best one for each. Cost: two plans.
    """
    alone = TimeToAccuracy(constants, squared_gradient_norm, form=form)
    energy = Energy(constants, squared_gradient_norm, server_power=server_power, form=form)
    best = partial(
        optimize, fleet, concurrency=concurrency, server_rate=server_rate, progress=progress
    )
    return TimeAndEnergy(
        constants,
        squared_gradient_norm,
        server_power=server_power,
        form=form,
        energy_share=energy_share,
        best_energy=best(energy).value,
        best_time=best(alone).value,
    )


def energy_frontier(
    fleet: Fleet,
    constants: LearningConstants,
    *,
    squared_gradient_norm: float,
    points: int = 9,
    concurrency: int | None = None,
    server_rate: float | None = None,
    server_power: float = 0.0,
    progress: Step | None = None,
) -> EnergyFrontier:
    r"""Time and energy to an accuracy for :math:`\rho` from 0 (time alone) to 1 (energy alone).

    Routing, learning rate and, unless given, concurrency are best for each. Cost: a plan per point.

    >>> fleet = Fleet([1.0, 4.0], counts=[5, 5], power_compute=[1.0, 9.0], power_idle=[0.1, 0.1])
    >>> constants = LearningConstants(initial_gap=2.3, smoothness=10, gradient_noise=1, heterogeneity=1)
    >>> curve = energy_frontier(fleet, constants, squared_gradient_norm=0.5, points=3)
    >>> bool(np.all(np.diff(curve.time) > 0) and np.all(np.diff(curve.energy) < 0))
    True
    """
    if points < 2:
        raise InvalidInput(f"a frontier needs at least 2 points; {points} were asked for")
    alone = TimeToAccuracy(constants, squared_gradient_norm)
    energy = Energy(constants, squared_gradient_norm, server_power=server_power)
    best = partial(
        optimize, fleet, concurrency=concurrency, server_rate=server_rate, progress=progress
    )
    fastest, thriftiest = best(alone), best(energy)
    shares = np.linspace(0.0, 1.0, points)
    both = TimeAndEnergy(
        constants,
        squared_gradient_norm,
        server_power=server_power,
        best_energy=thriftiest.value,
        best_time=fastest.value,
    )
    between = [replace(both, energy_share=share) for share in shares[1:-1].tolist()]
    found = [fastest, *map(best, between), thriftiest]
    networks = tuple(one.network for one in found)
    return EnergyFrontier(
        energy_share=shares,
        time=np.array([alone.evaluate(network).value for network in networks]),
        energy=np.array([energy.evaluate(network).value for network in networks]),
        networks=networks,
    )

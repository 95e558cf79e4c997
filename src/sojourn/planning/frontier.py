"""The trade-off between throughput and staleness, as a curve."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from threadpoolctl import threadpool_limits

from sojourn.bounds import Penalties, penalties
from sojourn.errors import InvalidInput, UnknownName
from sojourn.figure import Figure, Series, View
from sojourn.network import (
    ROUTINGS,
    Fleet,
    Network,
    balanced_routing,
    check_concurrency,
    named_routing,
    uniform_routing,
)
from sojourn.optimize.descent import OverRoutings, lbfgs, softmax
from sojourn.optimize.objectives import Throughput
from sojourn.optimize.routing import Progress
from sojourn.optimize.starts import PACE_SETTER_MASS, Start, pace_setters
from sojourn.planning.plan import Plan
from sojourn.types import FloatArray

Penalty = Literal["staleness", "routing"]
PENALTIES = ("staleness", "routing")

_IN_WORDS: dict[Penalty, str] = {
    "staleness": "staleness by weight of updates, rounds",
    "routing": "weight of updates (1: all alike)",
}

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

    def plot(self) -> Figure:
        """The frontier as a line, and the marked routings as points on or above it."""
        line = Series("frontier", self.throughput, self.least)
        points = [
            Series(name, [x], [y], kind="points", text=(name,))
            for name, (x, y) in self.marks.items()
        ]
        slow, fast = self.throughput[0], self.throughput[-1]
        alt = (
            f"From {slow:.3g} to {fast:.3g} updates per unit of time, the least {self.penalty} "
            f"penalty rises from {self.least[0]:.3g} to {self.least[-1]:.3g}; "
        )
        alt += "; ".join(f"{name} at {x:.3g}, {y:.3g}" for name, (x, y) in self.marks.items())
        view = View(
            x_label="updates per unit of time",
            y_label=_IN_WORDS[self.penalty],
            series=(line, *points),
            log_x=True,
            log_y=True,
        )
        return Figure("frontier", "More updates per unit of time, or fresher ones", alt, (view,))


def frontier(
    fleet: Fleet,
    concurrency: int,
    *,
    penalty: Penalty = "staleness",
    points: int = 25,
    server_rate: float | None = None,
    plan: Plan | None = None,
    progress: Progress | None = None,
) -> Frontier:
    r"""The least staleness penalty for each throughput that ``concurrency`` tasks can reach.

    .. math:: \min_p \log S(p) \quad \text{such that} \quad \log\lambda(p) \ge \tau

    for :math:`\tau` from the throughput of the least penalty to 99.5 % of the greatest, by the
    method of multipliers, each point begun from the last; several curves are followed, with and
    without pace-setters, and the lowest kept. Uniform, balanced and square-root routing, and
    ``plan`` if given, are marked. The curve is a single point where all clients are alike and nothing
    is to be traded. ``server_rate`` is that of the networks. ``progress`` is told of every point. Cost: some hundred short descents.

    >>> from sojourn.network import built_in_fleet
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
        balanced = balanced_routing(fleet)
        fastest = lbfgs(fleet, m, Throughput(), balanced, server_rate=server_rate).value
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


def _starts(fleet: Fleet) -> Iterator[Start]:
    """Uniform routing, and one or two of the slowest or the fastest clients setting the pace."""
    uniform = uniform_routing(fleet)
    yield Start("uniform", fleet, fleet, np.arange(fleet.classes), uniform)
    for place in sorted({0, fleet.classes - 1}):
        for number in (1, 2):
            yield from pace_setters(fleet, uniform, place, number, PACE_SETTER_MASS[0])


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
        self._server_rate = server_rate
        self._start, self._fleet = start, start.fleet
        self._concurrency, self._which = concurrency, penalty
        self._theta = np.log(start.routing)
        self._multiplier = 0.0
        self.state = self._measure(self._theta)
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

    def _measure(self, theta: FloatArray) -> Penalties:
        p = softmax(self._fleet, theta)
        return penalties(Network(self._fleet, p, self._concurrency, server_rate=self._server_rate))

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

        function = OverRoutings(
            self._fleet, self._concurrency, lagrangian, server_rate=self._server_rate
        )
        for _ in range(MULTIPLIER_STEPS):
            self._theta = function.minimize(
                self._theta, bounded=True, gtol=1e-8, ftol=1e-14, maxiter=300
            )
            self.state = self._measure(self._theta)
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

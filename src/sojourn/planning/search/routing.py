"""The best routing for a fleet at a given concurrency: several descents, the best kept."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from threadpoolctl import threadpool_limits

from sojourn.errors import UnknownName, Unreachable
from sojourn.fleet import Fleet, Network, square_root_routing, uniform_routing
from sojourn.planning.objectives import Objective, PerRound, ToAccuracy, is_guaranteed
from sojourn.planning.search.descent import (
    MOST_STEPS,
    TOLERANCE,
    Descent,
    adam,
    has_gradient,
    lbfgs,
)
from sojourn.planning.search.exponent import search_along_exponent
from sojourn.planning.search.starts import (
    LARGE_FLEET,
    PACE_SETTER_MASS,
    Start,
    closed_form_starts,
    neighbouring_pace_setters,
    pace_setter_starts,
    pace_setters,
)
from sojourn.types import FloatArray, IntArray, Step

MOST_SHOWN = 12
"""Classes that the ``repr`` of a solution lists."""


@dataclass(frozen=True)
class Attempt:
    """One descent: where it began and where it ended; without gradients the norm is NaN."""

    start: str
    value: float
    gradient_norm: float
    steps: int


@dataclass(frozen=True, eq=False)
class Solution:
    """The best network found: its routing, its concurrency, or both were optimised.

    ``network`` may have more classes than the fleet, since the best routing may single out one or
    two clients of a class; its ``parents`` give the fleet's class of each of its classes.
    ``attempts`` are the descents at its concurrency (none if the routing was given), ``tried`` maps
    every concurrency tried to its value (only one if it was given). ``interrupted`` says that the
    search was broken off, and this is the best until then.
    """

    objective: Objective
    network: Network
    value: float
    learning_rate: float | None
    tried: Mapping[int, float]
    attempts: tuple[Attempt, ...] = field(default=())
    interrupted: bool = False

    @classmethod
    def at(
        cls,
        network: Network,
        objective: Objective,
        attempts: tuple[Attempt, ...] = (),
        *,
        interrupted: bool = False,
    ) -> "Solution":
        """What the objective is at the best network of the only concurrency tried."""
        found = objective.evaluate(network)
        tried = {network.concurrency: found.value}
        rate = found.learning_rate
        return cls(objective, network, found.value, rate, tried, attempts, interrupted)

    @property
    def concurrency(self) -> int:
        """The number of tasks in flight, :math:`m`."""
        return self.network.concurrency

    @property
    def is_guarantee(self) -> bool | None:
        """Whether the learning rate is within ``max_learning_rate``; ``None`` without one."""
        return is_guaranteed(self.objective, self.network, self.learning_rate)

    def __repr__(self) -> str:
        fleet, p = self.network.fleet, self.network.routing
        lines = [
            f"Solution: {self.objective.name} {self.value:.8g} with {self.concurrency} tasks in "
            f"flight, {' and '.join(self._tries())}"
        ]
        if self.learning_rate is not None:
            kind = "a guarantee" if self.is_guarantee else "a proxy: above max_learning_rate"
            lines.append(f"  learning rate {self.learning_rate:.4g} ({kind})")
        shown = range(min(fleet.classes, MOST_SHOWN))
        lines += [
            f"  {fleet.label(k)}: {fleet.counts[k]} x {p[k]:.6g} (rate {fleet.service_rates[k]:.4g})"
            for k in shown
        ]
        if fleet.classes > len(shown):
            lines.append(f"  ... and {fleet.classes - len(shown)} more classes")
        return "\n".join(lines)

    def _tries(self) -> list[str]:
        tries = [f"best of {len(self.attempts)} descents"] if self.attempts else []
        if len(self.tried) > 1 or not tries:
            tries.append(f"{len(self.tried)} concurrencies tried")
        return tries


Method = Literal["lbfgs", "adam"]
METHODS = ("lbfgs", "adam")

SAME_VALUE = 1e-7
"""Relative difference of two values up to which neither is worth a search around it."""
OUTLINE_TOLERANCE, OUTLINE_STEPS = 1e-6, 100
"""When to end descents on an outline, which only tell where to begin."""

MANY_CLASSES = 200
"""From so many classes on, starts are compared on an outline of the fleet."""
OUTLINE_CLASSES = 50
"""Classes of the outline, about."""


def optimize_routing(
    fleet: Fleet,
    concurrency: int,
    objective: Objective,
    *,
    method: Method = "lbfgs",
    server_rate: float | None = None,
    progress: Step | None = None,
) -> Solution:
    r"""The routing that makes ``objective`` best with ``concurrency`` tasks in flight.

    The objectives are not convex and their minima break symmetries, so L-BFGS descends from
    uniform, balanced and square-root routing, and from pace-setters: one or a few clients split off
    at a high probability. If pace-setters win, their neighbours in speed are tried until none is
    better. From 200 classes on, starts are compared on an outline of some 50 runs of like speeds,
    and the best of them descend on the fleet itself. An objective without a gradient is searched
    along the exponent of :math:`p_i \propto \mu_i^\alpha`, then class by class if they are few.
    ``method="adam"`` is the paper's single descent from the uniform vector, as a reference.
    ``server_rate`` is that of the networks tried. ``progress`` is called with the name of every
    start. Interrupted (Ctrl-C) after its first descent, the search gives the best until then. Cost:
    milliseconds for tens of clients, seconds for 100,000 distinct speeds.

    >>> from sojourn.theory.constants import LearningConstants
    >>> from sojourn.fleet import built_in_fleet
    >>> from sojourn.planning.objectives import PerTime
    >>> constants = LearningConstants(initial_gap=15, smoothness=1, gradient_noise=3, heterogeneity=10)
    >>> objective = PerTime(constants, learning_rate=0.01, rounds=0)
    >>> optimize_routing(built_in_fleet("three-clusters"), 30, objective)
    Solution: per-time 1266.5528 with 30 tasks in flight, best of ... descents
      learning rate 0.01 (a proxy: above max_learning_rate)
      slow: 10 x 0.00226... (rate 0.01)
      medium: 10 x 0.0262... (rate 0.1)
      fast, the others: 8 x 0.0347... (rate 1)
      fast, 2 of 10: 2 x 0.218... (rate 1)
    """
    if method not in METHODS:
        raise UnknownName("method", method, METHODS)
    uniform = Network(fleet, uniform_routing(fleet), concurrency, server_rate=server_rate)
    with threadpool_limits(limits=1, user_api="blas"):
        if method == "adam":
            start = next(closed_form_starts(fleet))
            return _solution(objective, [(start, adam(uniform, objective))])
        if not has_gradient(uniform, objective):
            return _solution(objective, [search_along_exponent(uniform, objective)])
        ended: list[tuple[Start, Descent]] = []
        try:
            ended.extend(_search(uniform, objective, progress))
        except KeyboardInterrupt:
            if not ended:
                raise
            return _solution(objective, ended, interrupted=True)
        return _solution(objective, ended)


def _search(
    network: Network,
    objective: Objective,
    progress: Step | None,
    *,
    tolerance: float = TOLERANCE,
    most_steps: int = MOST_STEPS,
) -> Iterator[tuple[Start, Descent]]:
    """Descents for the fleet, the tasks and the server of ``network``, whatever its routing."""

    def descend(
        starts: Iterable[Start], ended: list[tuple[Start, Descent]]
    ) -> Iterator[tuple[Start, Descent]]:
        for start in starts:
            if progress is not None:
                progress(start.name)
            begin = start.network(network)
            try:
                descent = lbfgs(begin, objective, tolerance=tolerance, most_steps=most_steps)
            except Unreachable:
                continue
            ended.append((start, descent))
            yield ended[-1]

    fleet = network.fleet
    many = fleet.classes >= MANY_CLASSES
    ended: list[tuple[Start, Descent]] = []
    if many:
        yield from descend(_starts_by_outline(network, objective, progress), ended)
    else:
        yield from descend(closed_form_starts(fleet), ended)
        yield from descend(pace_setter_starts(fleet, square_root_routing(fleet)), ended)
    if not ended:
        yield from descend(_attainable_start(network, objective), ended)
    best = _best(objective, ended)
    tried = {(start.place, start.number) for start, _ in ended}
    # Small fleets are searched to the next neighbour, large ones from a run of the outline down to
    # an eighth of it.
    step = fleet.classes // OUTLINE_CLASSES if many else max(2, fleet.classes // 8)
    finest = max(1, step // 8) if many else 1
    while best[0].group and step >= finest:
        base, mass = square_root_routing(fleet), PACE_SETTER_MASS[0]
        if many or fleet.size >= LARGE_FLEET:
            base = without_setters(best[0], best[1].network, fleet)
            mass = best[0].mass(best[1].network)
        around: list[tuple[Start, Descent]] = []
        yield from descend(neighbouring_pace_setters(base, best[0], mass, step, tried), around)
        better = _best(objective, [best, *around])
        if abs(better[1].value - best[1].value) <= SAME_VALUE * best[1].value:
            step //= 2
        else:
            best = better


def _starts_by_outline(
    network: Network, objective: Objective, progress: Step | None
) -> Iterator[Start]:
    """The best symmetric start as an outline of the fleet has it, and the best if it is better."""
    coarse = outline(network.fleet)
    uniform = next(closed_form_starts(coarse.fleet)).network(network)
    tolerance, steps = OUTLINE_TOLERANCE, OUTLINE_STEPS
    try:
        ended = list(_search(uniform, objective, progress, tolerance=tolerance, most_steps=steps))
    except Unreachable:
        return
    symmetric = [pair for pair in ended if not pair[0].group]
    best = _best(objective, ended)
    for start, descent in [_best(objective, symmetric)] if symmetric else []:
        yield from coarse.starts(start, descent.network)
        if abs(descent.value - best[1].value) <= SAME_VALUE * best[1].value:
            return
    yield from coarse.starts(best[0], best[1].network)


def _attainable_start(network: Network, objective: Objective) -> Iterator[Start]:
    """The routing of least noise and staleness, when an accuracy is out of reach of all others."""
    floor, fleet, m = floor_of(objective), network.fleet, network.concurrency
    if floor is None:
        objective.evaluate(replace(network, routing=square_root_routing(fleet)))
        raise Unreachable(f"{objective.name} is not defined for any routing tried")
    least = optimize_routing(fleet, m, floor, server_rate=network.server_rate).network
    try:
        objective.evaluate(least)
    except Unreachable as error:
        raise Unreachable(
            f"{error} This is the least that any routing attains with {m} tasks in "
            "flight: lower the learning rate, or leave it out to have it chosen."
        ) from error
    yield Start("least noise", fleet, least.fleet, least.parents, least.routing)


def floor_of(objective: Objective) -> Objective | None:
    """What to minimise to get within reach of an objective that not every routing reaches."""
    if isinstance(objective, ToAccuracy) and objective.learning_rate is not None:
        return PerRound(objective.constants, objective.learning_rate, 1e300, objective.form)
    return None


def _best(objective: Objective, ended: list[tuple[Start, Descent]]) -> tuple[Start, Descent]:
    sign = -1.0 if objective.maximize else 1.0
    return min(ended, key=lambda pair: sign * pair[1].value)


def _solution(
    objective: Objective, ended: list[tuple[Start, Descent]], *, interrupted: bool = False
) -> Solution:
    start, descent = _best(objective, ended)
    attempts = tuple(Attempt(s.name, d.value, d.gradient_norm, d.steps) for s, d in ended)
    network = start.merged(descent.network)
    return Solution.at(network, objective, attempts, interrupted=interrupted)


@dataclass(frozen=True, eq=False)
class Outline:
    """Runs of classes in the order of speed, each as one class of ``fleet``.

    Run ``j`` holds the places ``edges[j]`` to ``edges[j + 1] - 1`` of the order; the slowest and
    the fastest class are runs of their own, since they are often the best pace-setters.
    """

    whole: Fleet
    fleet: Fleet
    edges: IntArray

    def starts(self, start: Start, ended: Network) -> Iterator[Start]:
        """Where to descend from on the whole fleet, given a descent on the outline from ``start``.

        Probabilities are interpolated between the runs' speeds; pace-setters are taken from the
        middle of their run.
        """
        routing = without_setters(start, ended, self.whole)
        if not start.group:
            name = f"{start.name}, by way of {self.fleet.classes} classes"
            yield Start.whole_fleet(name, self.whole, routing)
            return
        middle = int(self.edges[start.place] + self.edges[start.place + 1] - 1) // 2
        yield from pace_setters(self.whole, routing, middle, start.number, start.mass(ended))


def without_setters(start: Start, ended: Network, fleet: Fleet) -> FloatArray:
    """A routing of ``fleet`` like that of all but the pace-setters, by weight and interpolated between speeds."""
    others = np.setdiff1d(np.arange(start.parents.size), start.setters)
    speeds = ended.fleet.service_rates[others]
    p = (ended.routing / ended.fleet.relative_weights)[others]
    order = np.argsort(speeds, kind="stable")
    logs = np.interp(np.log(fleet.service_rates), np.log(speeds[order]), np.log(p[order]))
    weights = np.exp(logs - logs.max()) * fleet.relative_weights
    return np.asarray(weights / (fleet.counts @ weights), dtype=np.float64)


def outline(fleet: Fleet) -> Outline:
    """The fleet as some ``OUTLINE_CLASSES`` runs of equally many classes of like speed.

    A run's rate keeps its clients' total service time: the harmonic mean. Links and powers are means.
    """
    order = np.argsort(fleet.service_rates, kind="stable")
    inner = np.linspace(1, fleet.classes - 1, OUTLINE_CLASSES - 1).round().astype(np.int64)
    edges = np.concatenate([[0], inner, [fleet.classes]])
    counts = np.add.reduceat(fleet.counts[order], edges[:-1])
    times = np.add.reduceat((fleet.counts / fleet.service_rates)[order], edges[:-1])
    columns: dict[str, Any] = {
        name: np.add.reduceat((fleet.counts * values)[order], edges[:-1]) / counts
        for name, values in fleet.columns.items()
    }
    return Outline(fleet, Fleet(counts / times, counts, **columns), edges)

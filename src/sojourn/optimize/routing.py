"""The best routing for a fleet at a given concurrency: several descents, the best kept."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from threadpoolctl import threadpool_limits

from sojourn.bounds import max_learning_rate
from sojourn.errors import UnknownName, Unreachable
from sojourn.network import Fleet, Network, check_concurrency, square_root_routing, uniform_routing
from sojourn.optimize.coarse import MANY_CLASSES, OUTLINE_CLASSES, outline, without_setters
from sojourn.optimize.descent import Descent, adam, lbfgs
from sojourn.optimize.objectives import Objective, PerRound, TimeToAccuracy
from sojourn.optimize.starts import (
    LARGE_FLEET,
    PACE_SETTER_MASS,
    Start,
    closed_form_starts,
    neighbouring_pace_setters,
    pace_setter_starts,
)

Method = Literal["lbfgs", "adam"]
METHODS = ("lbfgs", "adam")

SAME_VALUE = 1e-7
"""Relative difference of two values up to which neither is worth a search around it."""
OUTLINE_TOLERANCE, OUTLINE_STEPS = 1e-6, 100
"""When to end descents on an outline, which only tell where to begin."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Attempt:
    """One descent: where it began and where it ended."""

    start: str
    value: float
    gradient_norm: float
    steps: int


@dataclass(frozen=True, eq=False)
class Solution:
    """The best routing found.

    ``network`` may have more classes than the fleet, since the best routing may single out one or
    two clients of a class; its ``parents`` give the fleet's class of each of its classes.
    ``gradient_norm`` is that of the logarithm of the objective in softmax coordinates.
    """

    objective: Objective
    network: Network
    value: float
    learning_rate: float | None
    gradient_norm: float
    attempts: tuple[Attempt, ...]

    @property
    def is_guarantee(self) -> bool | None:
        """Whether the learning rate is within ``max_learning_rate``; ``None`` without one."""
        if self.learning_rate is None or self.objective.constants is None:
            return None
        return self.learning_rate <= max_learning_rate(self.network, self.objective.constants)

    def __repr__(self) -> str:
        fleet, p = self.network.fleet, self.network.routing
        lines = [
            f"Solution: {self.objective.name} {self.value:.8g}, best of {len(self.attempts)} "
            f"descents (gradient norm {self.gradient_norm:.1g})"
        ]
        if self.learning_rate is not None:
            kind = "a guarantee" if self.is_guarantee else "a proxy: above max_learning_rate"
            lines.append(f"  learning rate {self.learning_rate:.4g} ({kind})")
        shown = range(min(fleet.classes, 12))
        lines += [
            f"  {fleet.label(k)}: {fleet.counts[k]} x {p[k]:.6g} (rate {fleet.service_rates[k]:.4g})"
            for k in shown
        ]
        if fleet.classes > len(shown):
            lines.append(f"  ... and {fleet.classes - len(shown)} more classes")
        return "\n".join(lines)


def optimize_routing(
    fleet: Fleet,
    concurrency: int,
    objective: Objective,
    *,
    method: Method = "lbfgs",
    progress: Progress | None = None,
) -> Solution:
    r"""The routing that makes ``objective`` best with ``concurrency`` tasks in flight.

    The objectives are not convex and their minima break symmetries, so L-BFGS descends from
    uniform, balanced and square-root routing, and from pace-setters: one or a few clients split off
    at a high probability. If pace-setters win, their neighbours in speed are tried until none is
    better. From 200 classes on, starts are compared on an outline of some 50 runs of like speeds, and
    the best of them descend on the fleet itself. ``method="adam"`` is the paper's single descent from the uniform vector, as a reference.
    ``progress`` is told the name of every start. Cost: milliseconds for tens of clients, seconds for
    100,000 distinct speeds.

    >>> from sojourn.bounds import LearningConstants
    >>> from sojourn.network import built_in_fleet
    >>> from sojourn.optimize.objectives import PerTime
    >>> constants = LearningConstants(initial_gap=15, smoothness=1, gradient_noise=3, heterogeneity=10)
    >>> objective = PerTime(constants, learning_rate=0.01, rounds=0)
    >>> optimize_routing(built_in_fleet("three-clusters"), 30, objective)
    Solution: per-time 1266.5528, best of ... descents (gradient norm ...)
      learning rate 0.01 (a proxy: above max_learning_rate)
      slow: 10 x 0.00226... (rate 0.01)
      medium: 10 x 0.0262... (rate 0.1)
      fast, the others: 8 x 0.0347... (rate 1)
      fast, 2 of 10: 2 x 0.218... (rate 1)
    """
    m = check_concurrency(concurrency)
    if method not in METHODS:
        raise UnknownName("method", method, METHODS)
    with threadpool_limits(limits=1, user_api="blas"):
        if method == "adam":
            start = next(closed_form_starts(fleet))
            descent = adam(fleet, m, objective, uniform_routing(fleet))
            return _solution(objective, [(start, descent)])
        return _solution(objective, list(_search(fleet, m, objective, progress)))


def _search(
    fleet: Fleet,
    concurrency: int,
    objective: Objective,
    progress: Progress | None,
    **ending: Any,
) -> Iterator[tuple[Start, Descent]]:
    def descend(starts: Iterable[Start]) -> list[tuple[Start, Descent]]:
        ended = []
        for start in starts:
            if progress is not None:
                progress(start.name)
            try:
                descent = lbfgs(start.fleet, concurrency, objective, start.routing, **ending)
            except Unreachable:
                continue
            ended.append((start, descent))
        return ended

    many = fleet.classes >= MANY_CLASSES
    if many:
        ended = descend(_starts_by_outline(fleet, concurrency, objective, progress))
    else:
        ended = descend(closed_form_starts(fleet))
        ended += descend(pace_setter_starts(fleet, square_root_routing(fleet)))
    ended = ended or descend(_attainable_start(fleet, concurrency, objective))
    yield from ended
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
        around = descend(neighbouring_pace_setters(base, best[0], mass, step, tried))
        yield from around
        better = _best(objective, [best, *around])
        if abs(better[1].value - best[1].value) <= SAME_VALUE * best[1].value:
            step //= 2
        else:
            best = better


def _starts_by_outline(
    fleet: Fleet, concurrency: int, objective: Objective, progress: Progress | None
) -> Iterator[Start]:
    """The best symmetric start as an outline of the fleet has it, and the best if it is better."""
    coarse = outline(fleet)
    try:
        ending = {"tolerance": OUTLINE_TOLERANCE, "most_steps": OUTLINE_STEPS}
        ended = list(_search(coarse.fleet, concurrency, objective, progress, **ending))
    except Unreachable:
        return
    symmetric = [pair for pair in ended if not pair[0].group]
    best = _best(objective, ended)
    for start, descent in [_best(objective, symmetric)] if symmetric else []:
        yield from coarse.starts(start, descent.network)
        if abs(descent.value - best[1].value) <= SAME_VALUE * best[1].value:
            return
    yield from coarse.starts(best[0], best[1].network)


def _attainable_start(fleet: Fleet, concurrency: int, objective: Objective) -> Iterator[Start]:
    """The routing of least noise and staleness, when an accuracy is out of reach of all others."""
    if not isinstance(objective, TimeToAccuracy) or objective.learning_rate is None:
        objective.evaluate(Network(fleet, square_root_routing(fleet), concurrency))
        raise Unreachable(f"{objective.name} is not defined for any routing tried")
    endless = PerRound(objective.constants, objective.learning_rate, rounds=1e300)
    floor = optimize_routing(fleet, concurrency, endless)
    if 8.0 * floor.value >= objective.accuracy:
        raise Unreachable(
            f"accuracy {objective.accuracy:g} is out of reach at learning rate "
            f"{objective.learning_rate:g} with {concurrency} tasks in flight: the least that any "
            f"routing attains is {8.0 * floor.value:.4g}. Ask for more than that, lower the learning "
            "rate, or leave it out to have it chosen."
        )
    network = floor.network
    yield Start("least noise", fleet, network.fleet, network.parents, network.routing)


def _best(objective: Objective, ended: list[tuple[Start, Descent]]) -> tuple[Start, Descent]:
    sign = -1.0 if objective.maximize else 1.0
    return min(ended, key=lambda pair: sign * pair[1].value)


def _solution(objective: Objective, ended: list[tuple[Start, Descent]]) -> Solution:
    start, descent = _best(objective, ended)
    network = start.merged(descent.network)
    evaluation = objective.evaluate(network)
    return Solution(
        objective=objective,
        network=network,
        value=evaluation.value,
        learning_rate=evaluation.learning_rate,
        gradient_norm=descent.gradient_norm,
        attempts=tuple(Attempt(s.name, d.value, d.gradient_norm, d.steps) for s, d in ended),
    )

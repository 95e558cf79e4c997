"""Pilot runs: candidates that share a schedule are trained together, judged on held-out samples."""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sojourn.runs.history import History
from sojourn.simulation.schedule import Schedule
from sojourn.strategy import Strategy
from sojourn.training.experiment.build import client_weights_of, validation_problem
from sojourn.training.experiment.experiment import Experiment
from sojourn.training.experiment.jobs import (
    ONE_AT_A_TIME,
    at_seed,
    schedule_of,
    using_threads,
)
from sojourn.training.problem.gradients import stacks_well
from sojourn.training.problem.problem import Problem
from sojourn.training.replay.run import Replay
from sojourn.training.replay.stack import Stack
from sojourn.training.replay.state import ReplayState
from sojourn.tuning.criteria import LAST, Criterion
from sojourn.tuning.successive_halving import RUNGS, Candidate
from sojourn.types import FloatArray

POINTS = 64
"""Evaluations of a whole run whose course counts: at times common to all, dense at the beginning."""
LAST_POINTS = 5
"""Evaluations before every rung where only the final value counts."""


@dataclass(frozen=True, eq=False)
class Pilot:
    """A job for one process: candidates with one schedule and seed, and how far to run them.

    Runs are evaluated at the times that ``criterion`` needs, and end once they have reached its target.
    """

    experiment: Experiment
    criterion: Criterion
    candidates: tuple[Candidate, ...]
    seed: int
    fraction: float


@dataclass(frozen=True, eq=False)
class Advanced:
    """The result of a `Pilot`: positions to go on from, histories so far, and what was computed.

    ``whole_runs`` is the work done in units of runs over the whole horizon, and ``seconds`` how long it took.
    """

    positions: tuple[ReplayState, ...]
    histories: tuple[History, ...]
    gradients: int
    whole_runs: float
    seconds: float


class _Cache(threading.local):
    """The last schedule of this thread: candidates of one group and seed share it."""

    schedule_key: tuple[object, ...] | None = None
    schedule: Schedule | None = None


_cache = _Cache()


class OutOfTime(Exception):
    """The deadline passed before a pilot reached its fraction of the horizon."""


def advance_until(
    deadline: float, pilot: Pilot, positions: Sequence[ReplayState | None]
) -> Advanced | None:
    """`advance`, given up at ``deadline`` (of the clock of the day, which other machines have, too)."""
    try:
        return advance(pilot, positions, deadline)
    except OutOfTime:
        return None


def advance(
    pilot: Pilot, positions: Sequence[ReplayState | None], deadline: float = math.inf
) -> Advanced:
    """Run every candidate from its position to the pilot's fraction of the horizon."""

    def check(done: int, total: int) -> None:
        if time.time() > deadline:
            raise OutOfTime

    begun = time.monotonic()
    check(0, 1)
    experiment = pilot.experiment
    with ONE_AT_A_TIME, using_threads(experiment.threads):
        problem = validation_problem(experiment, pilot.seed)
        schedule = schedule_for(
            experiment, experiment.strategies[pilot.candidates[0].strategy], pilot.seed
        )
        together = stacks_well(problem)
        runs = [_run(pilot, c, problem, schedule) for c in pilot.candidates]
        places = [
            run.beginning(together) if position is None else position
            for run, position in zip(runs, positions, strict=True)
        ]
        before = sum(place.round for place in places)
        until = rounds_until(experiment, schedule, pilot.fraction)
        Stack(runs).run(places, until=until, batched=together, advance=check)
        histories = tuple(
            run.history(place, experiment.strategies[c.strategy].name, {})
            for run, place, c in zip(runs, places, pilot.candidates, strict=True)
        )
    rounds = sum(place.round for place in places) - before
    gradients = round(rounds * float(np.mean(runs[0].rule.local_steps)))
    return Advanced(
        tuple(places),
        histories,
        gradients,
        rounds / max(1, schedule.rounds),
        time.monotonic() - begun,
    )


def schedule_for(experiment: Experiment, strategy: Strategy, seed: int) -> Schedule:
    """The schedule of a strategy over the whole horizon."""
    key = (group_key(strategy), experiment.rounds, experiment.time, seed)
    if _cache.schedule_key != key or _cache.schedule is None:
        _cache.schedule = schedule_of(experiment, strategy, seed)
        _cache.schedule_key = key
    return _cache.schedule


def group_key(strategy: Strategy) -> tuple[object, ...]:
    """Strategies with the same key share schedules and what clients compute: they run together."""
    rule, network = strategy.rule, strategy.network
    return (
        *(rule.sends, rule.local_steps, rule.proximal, strategy.local_epochs, strategy.scenario),
        *(network.concurrency, network.fleet),
        network.routing.tobytes() if strategy.scenario.policy.routes else b"",
    )


def horizon_of(experiment: Experiment, schedule: Schedule) -> float:
    """How long a run lasts, in virtual time."""
    return float(experiment.time if experiment.time is not None else schedule.time[-1])


def rounds_until(experiment: Experiment, schedule: Schedule, fraction: float) -> int:
    """How many rounds a run has completed after a fraction of the horizon."""
    if experiment.rounds is not None:
        return round(fraction * experiment.rounds)
    until = fraction * horizon_of(experiment, schedule)
    return int(np.searchsorted(schedule.time, until, side="right"))


def _run(pilot: Pilot, candidate: Candidate, problem: Problem, schedule: Schedule) -> Replay:
    experiment = pilot.experiment
    strategy = at_seed(experiment, experiment.strategies[candidate.strategy], pilot.seed)
    return Replay(
        schedule,
        problem,
        strategy.rule,
        learning_rate=candidate.learning_rate,
        seed=pilot.seed,
        client_weights=client_weights_of(experiment, problem),
        evaluate_at=evaluation_times(experiment, schedule, pilot.criterion),
        stop_at=pilot.criterion.stops_at,
    )


def evaluation_times(
    experiment: Experiment, schedule: Schedule, criterion: Criterion
) -> FloatArray:
    """When runs are evaluated, from the beginning to the horizon."""
    parts = evaluated_parts(criterion)
    if experiment.rounds is None:
        return np.asarray(parts * horizon_of(experiment, schedule))
    rounds = np.unique(np.ceil(parts * experiment.rounds).astype(int))
    return np.asarray(np.concatenate([[0.0], schedule.time])[rounds])


def evaluated_parts(criterion: Criterion) -> FloatArray:
    """The fractions of the horizon at which runs are evaluated, the beginning included.

    A final value is needed before each rung only. Where the course of a run counts, evaluations are at
    squares, since learning is fast at first and slow at the end.
    """
    if criterion.kind != "final":
        return np.asarray((np.arange(POINTS + 1) / POINTS) ** 2)
    last = np.linspace(1.0 - LAST, 1.0, LAST_POINTS)
    return np.unique([0.0, *np.outer(RUNGS, last).ravel()])

"""Pilot runs: candidates that share a schedule advance in lockstep, judged on held-out samples."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sojourn.history import History
from sojourn.simulation.schedule import Schedule
from sojourn.train.experiment.build import client_weights_of, validation_problem
from sojourn.train.experiment.cells import (
    ONE_AT_A_TIME,
    using_threads,
    whole_schedule,
)
from sojourn.train.experiment.experiment import Experiment
from sojourn.train.experiment.strategy import Strategy
from sojourn.train.replay.gradients import stacks_well
from sojourn.train.replay.loop import Replay
from sojourn.train.replay.problem import Problem
from sojourn.train.replay.replay import Lockstep
from sojourn.train.replay.state import ReplayState
from sojourn.tuning.criteria import Criterion
from sojourn.tuning.race import RUNGS, SPREAD_OF_SCORE, Candidate
from sojourn.types import FloatArray

POINTS = 64
"""Evaluations of a whole run where its course counts: at times common to all, dense at the beginning."""
LAST_POINTS = 5
"""Evaluations before every rung where only the final loss counts."""


@dataclass(frozen=True, eq=False)
class Pilot:
    """Work for one process: candidates of one schedule and seed, and how far to take them.

    Runs are evaluated where ``criterion`` looks.
    """

    experiment: Experiment
    criterion: Criterion
    candidates: tuple[Candidate, ...]
    seed: int
    fraction: float


@dataclass(frozen=True, eq=False)
class Advanced:
    """What became of a `Pilot`: positions to go on from, rows so far, gradients computed."""

    positions: tuple[ReplayState, ...]
    histories: tuple[History, ...]
    gradients: int


class _Cache(threading.local):
    """The schedule that this thread made last: candidates of one group and seed share it."""

    schedule_key: tuple[Any, ...] | None = None
    schedule: Schedule | None = None


_cache = _Cache()


def advance(pilot: Pilot, positions: Sequence[ReplayState | None]) -> Advanced:
    """Take every candidate from where it stands to the pilot's fraction of the horizon."""
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
        Lockstep(runs).run(places, until=until, batched=together)
        histories = tuple(
            run.history(place, experiment.strategies[c.strategy].name, {})
            for run, place, c in zip(runs, places, pilot.candidates, strict=True)
        )
    steps = runs[0].rule.local_steps
    return Advanced(tuple(places), histories, (sum(p.round for p in places) - before) * steps)


def schedule_for(experiment: Experiment, strategy: Strategy, seed: int) -> Schedule:
    """Who finishes when under a strategy over the whole horizon."""
    key = (group_key(strategy), experiment.rounds, experiment.time, seed)
    if _cache.schedule_key != key or _cache.schedule is None:
        _cache.schedule = whole_schedule(experiment, strategy, seed)
        _cache.schedule_key = key
    return _cache.schedule


def group_key(strategy: Strategy) -> tuple[Any, ...]:
    """Strategies with the same key share schedules and what clients do: they go in lockstep."""
    rule, network = strategy.rule, strategy.network
    return (
        *(rule.sends, rule.local_steps, rule.proximal, strategy.scenario),
        *(
            network.concurrency,
            network.fleet.service_rates.tobytes(),
            network.fleet.counts.tobytes(),
        ),
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
    strategy = experiment.strategies[candidate.strategy]
    run = Replay(
        schedule,
        problem,
        strategy.rule,
        learning_rate=candidate.learning_rate,
        seed=pilot.seed,
        client_weights=client_weights_of(experiment, problem),
    )
    run.evaluate(at=evaluation_times(experiment, schedule, pilot.criterion))
    return run


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
    """At which fractions of the horizon: where scores are read, at the beginning first of all.

    A final loss is read before the rungs alone. Where the course of a run counts, at squares, since
    learning is fast at first and slow at the end.
    """
    if criterion.kind != "final":
        return np.asarray((np.arange(POINTS + 1) / POINTS) ** 2)
    last = np.linspace(1.0 - SPREAD_OF_SCORE, 1.0, LAST_POINTS)
    return np.unique([0.0, *np.outer(RUNGS, last).ravel()])

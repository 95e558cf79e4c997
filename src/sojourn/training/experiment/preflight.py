"""What is found out before a run begins: mistakes, and how gradients are computed in all runs."""

import time
from dataclasses import dataclass

from sojourn._support.numbers import number
from sojourn.errors import InvalidInput
from sojourn.strategy import Strategy
from sojourn.training.experiment.build import VALIDATION, build_problem, held_out_counts
from sojourn.training.experiment.experiment import Experiment
from sojourn.training.experiment.jobs import ONE_AT_A_TIME, at_seed, schedule_of, using_threads
from sojourn.training.problem.gradients import (
    LONGEST_TRIAL,
    channels_last_pays,
    longest_run,
    stacked_gradients,
    stacks_well,
)
from sojourn.training.problem.problem import Problem
from sojourn.training.replay.checkpoint import problem_digest
from sojourn.training.replay.run import Replay
from sojourn.training.replay.stack import Stack


@dataclass(frozen=True)
class Preflight:
    """How gradients are computed, and what identifies a problem of the user's own."""

    batched: bool
    lockstep: bool
    channels_last: bool
    problem_digest: str | None
    light: bool = False


def preflight(experiment: Experiment) -> Preflight:
    """Build the problem of the first seed, and settle what is the same for all runs.

    Whatever is wrong with data, model or problem is said here, before anything is written.
    """
    seed = experiment.seeds[0]
    with ONE_AT_A_TIME, using_threads(experiment.threads):
        problem = build_problem(experiment, seed)
        _check_targets(experiment, problem)
        digest, light, layout = None, False, experiment.channels_last
        if experiment.problem is not None:
            # The layout in memory is no part of what a problem is.
            usual = problem.variant(channels_last=False) if layout else problem
            digest, light = problem_digest(usual), _is_light(usual, seed)
        if layout is None and channels_last_pays(problem):
            problem = problem.variant(channels_last=True)
        for strategy in experiment.strategies:
            _check_time(experiment, strategy, seed)
        if experiment.pilot_seeds:
            held_out_counts(problem.train_sizes, VALIDATION)
        lockstep = _goes_in_lockstep(experiment, problem)
        batched = experiment.batched
        if batched is None:
            batched = _together_pays(experiment, problem, seed)
        return Preflight(batched, lockstep, problem.channels_last, digest, light)


LIGHT_TASK = 0.01
"""Seconds that a gradient takes on one thread, below which more only wait for one another."""


def _is_light(problem: Problem, seed: int) -> bool:
    weights, seconds = problem.initial_weights().numpy(), []
    with using_threads(1):
        for number in range(4):
            begin = time.thread_time()
            problem.loss_and_array(weights, 0, number, seed)
            seconds.append(time.thread_time() - begin)
    return min(seconds) < LIGHT_TASK


def _check_targets(experiment: Experiment, problem: Problem) -> None:
    """Refuse targets that nothing can reach, now that the problem's measure is known."""
    given = {"targets": experiment.targets or (), "stop-at": (experiment.stop_at,)}
    for key, targets in given.items():
        for target in targets:
            if problem.measure.percent and target is not None and not 0.0 < target <= 1.0:
                raise InvalidInput(
                    f"'{key}' are accuracies above 0 and up to 1, such as 0.8 for 80 %; {target:g} is not"
                )


SOME_TASKS = 1_000
"""Tasks from which on something may have been learnt."""


def _check_time(experiment: Experiment, strategy: Strategy, seed: int) -> None:
    if experiment.time is None:
        return
    first = float(schedule_of(experiment, strategy, seed, rounds=1).time[0])
    if first > experiment.time:
        enough = SOME_TASKS / strategy.network.fleet.total_rate
        raise InvalidInput(
            f"no task completes within time {experiment.time:g} under '{strategy.name}': with seed "
            f"{seed} the first takes {first:.3g}. Give a longer 'time': busy clients of this fleet "
            f"finish {SOME_TASKS:,} tasks in {number(enough)}."
        )


LEAST_LONGEST_RUN = 4
"""Gradients that a stack has room for in a cache, where learning rates are worth stacking."""


def _goes_in_lockstep(experiment: Experiment, problem: Problem) -> bool:
    """As the experiment says; else by kind and size of the model, not by the clock.

    With gradients one by one, as somebody asked for, lockstep has nothing to give.
    """
    if experiment.lockstep is None:
        small = longest_run(problem) >= LEAST_LONGEST_RUN
        return experiment.batched is not False and small and stacks_well(problem)
    if experiment.lockstep and stacked_gradients(problem) is None:
        raise InvalidInput(
            "lockstep = true, but this model's tasks cannot be computed together: it draws random "
            "numbers (dropout), or torch.func.vmap cannot run it. Leave out lockstep."
        )
    return experiment.lockstep


def _together_pays(experiment: Experiment, problem: Problem, seed: int) -> bool:
    """Measured on the first strategy, so that all runs are computed alike, in whatever order."""
    strategy = at_seed(experiment, experiment.strategies[0], seed)
    rounds = min(experiment.rounds or LONGEST_TRIAL, LONGEST_TRIAL) + 1
    run = Replay(
        schedule_of(experiment, strategy, seed, rounds=rounds),
        problem,
        strategy.rule,
        learning_rate=strategy.learning_rates[0],
        seed=seed,
        evaluate_at=(),
    )
    position = run.beginning(None)
    return bool(Stack([run]).run([position], until=rounds - 1, only_settle=True))

"""What is found out about an experiment before its folder is made."""

from dataclasses import dataclass

from sojourn.errors import InvalidInput
from sojourn.train.experiment.build import build_problem
from sojourn.train.experiment.cells import ONE_AT_A_TIME, schedule_of, using_threads
from sojourn.train.experiment.experiment import Experiment
from sojourn.train.experiment.strategy import Strategy
from sojourn.train.replay.checkpoint import problem_digest
from sojourn.train.replay.gradients import LONGEST_TRIAL
from sojourn.train.replay.problem import Problem
from sojourn.train.replay.replay import Replay


@dataclass(frozen=True)
class Preflight:
    """Whether gradients are computed together, and what identifies a problem of the user's own."""

    batched: bool
    problem_digest: str | None


def preflight(experiment: Experiment) -> Preflight:
    """Build the problem of the first seed, and settle what is the same for all runs.

    Whatever is wrong with data, model or problem is said here, before anything is written.
    """
    seed = experiment.seeds[0]
    with ONE_AT_A_TIME, using_threads(experiment.threads):
        problem = build_problem(experiment, seed)
        for strategy in experiment.strategies:
            _check_time(experiment, strategy, seed)
        batched = experiment.batched
        if batched is None:
            batched = _together_pays(experiment, problem, seed)
        own = experiment.problem is not None
        return Preflight(batched, problem_digest(problem) if own else None)


def _check_time(experiment: Experiment, strategy: Strategy, seed: int) -> None:
    if experiment.time is None:
        return
    first = float(schedule_of(experiment, strategy, seed, rounds=1).time[0])
    if first > experiment.time:
        raise InvalidInput(
            f"no task completes within time {experiment.time:g} under '{strategy.name}': with seed "
            f"{seed} the first takes {first:.3g}. Give a longer 'time'."
        )


def _together_pays(experiment: Experiment, problem: Problem, seed: int) -> bool:
    """Measured on the first strategy, so that all runs are computed alike, in whatever order."""
    strategy = experiment.strategies[0]
    rounds = min(experiment.rounds or LONGEST_TRIAL, LONGEST_TRIAL) + 1
    replay = Replay(
        schedule_of(experiment, strategy, seed, rounds=rounds),
        problem,
        strategy.rule,
        learning_rate=strategy.learning_rates[0],
        seed=seed,
    )
    return replay.together_pays()

"""What runs will hold in memory and take in time, before anything is spent."""

import math
import time
from dataclasses import dataclass

from sojourn._support.progress import duration
from sojourn.rules import local_learning_rate
from sojourn.rules.state import check_memory
from sojourn.strategy import Strategy
from sojourn.training.experiment.build import build_problem, sample_bytes
from sojourn.training.experiment.experiment import Experiment
from sojourn.training.experiment.jobs import (
    ONE_AT_A_TIME,
    at_seed,
    expected_gradients_of,
    threads_for,
    using_threads,
)
from sojourn.training.problem.optimizer import ClientState
from sojourn.training.problem.problem import Problem
from sojourn.training.problem.samples import KEPT_BYTES
from sojourn.training.replay.state import MOST_BYTES, VERSIONS_BETWEEN

TRIAL_STEPS = 4
EVALUATIONS = 1.1
"""Evaluations take about a tenth of a run."""


@dataclass(frozen=True)
class RunSize:
    """Bytes that one run holds at most, beside the model and the data.

    ``versions`` vectors of weights are in flight; the rule keeps ``rule`` bytes, clients keep ``clients``
    from task to task (the state of their optimisers, their own buffers), and ``between`` are versions
    that may be evaluated later.
    """

    versions: int
    vector: int
    rule: int
    clients: int
    between: int

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.versions * self.vector + self.rule + self.clients + self.between

    def __str__(self) -> str:
        """A run's memory in words.

        >>> str(RunSize(versions=9, vector=40_000, rule=80_000, clients=640_000, between=0))
        '1.1 MB: 9 versions of the weights (0.4 MB), the rule 80 kB, state at clients 0.6 MB'
        """
        parts = [
            f"{self.versions:,} versions of the weights ({in_words(self.versions * self.vector)})"
        ]
        parts += [
            f"{name} {in_words(size)}"
            for name, size in (
                ("the rule", self.rule),
                ("state at clients", self.clients),
                ("versions between evaluations", self.between),
            )
            if size
        ]
        return f"{in_words(self.total)}: {', '.join(parts)}"


def run_size(problem: Problem, strategy: Strategy, *, refine: bool, client_bytes: int) -> RunSize:
    """What one run of ``strategy`` holds; ``client_bytes`` is what stays with one client."""
    weights = problem.initial_weights()
    check_memory(strategy.rule, problem.clients, weights.numpy())
    in_state = 8 if problem.optimizer is not None else weights.element_size()
    buffers = problem.initial_buffers().nbytes if problem.sends_buffers else 0
    numbers = getattr(strategy.rule, "memory", lambda clients, dimension: 0)
    vector = problem.dimension * weights.element_size() + buffers
    between = min(VERSIONS_BETWEEN * vector, MOST_BYTES) if refine else 0
    return RunSize(
        versions=strategy.concurrency + 1,
        vector=vector,
        rule=numbers(problem.clients, problem.dimension) * in_state,
        clients=problem.clients * client_bytes,
        between=between,
    )


def trial(problem: Problem, rate: float, seed: int) -> tuple[float, int]:
    """Seconds of processor time that one local step takes, and the bytes that it leaves with its client."""
    weights = problem.initial_weights().numpy()
    own: ClientState = {}
    seconds = []
    for task in range(2):  # The first one may have to compile something.
        begin = time.thread_time()
        if problem.takes_plain_steps:
            for number in range(TRIAL_STEPS):
                problem.loss_and_array(weights, 0, task * TRIAL_STEPS + number, seed)
        else:
            problem.train_client(weights, 0, task, seed, TRIAL_STEPS, rate, state=own)
        seconds.append((time.thread_time() - begin) / TRIAL_STEPS)
    return min(seconds), sum(array.nbytes for array in own.values()) if problem.stateful else 0


def size_note(
    experiment: Experiment, *, jobs: int = 1, timed: bool = True, seed: int | None = None
) -> str:
    """One sentence: how many runs and gradients, how long at most, and the memory of the largest run.

    Time assumes ``jobs`` runs at once, and gradients that are computed one by one; it is left out unless
    ``timed``. The problem is that of ``seed``, by default the first: to build another may take long.
    """
    seed = experiment.seeds[0] if seed is None else seed
    strategies = experiment.strategies
    with ONE_AT_A_TIME, using_threads(threads_for(experiment, None)):
        problem = build_problem(experiment, seed)
        rates = [rate for strategy in strategies for rate in strategy.learning_rates] or [1e-3]
        seconds, client_bytes = trial(
            problem, local_learning_rate(strategies[0].rule, min(rates)), seed
        )
    sizes = {
        strategy.name: run_size(
            problem,
            at_seed(experiment, strategy, seed),
            refine=experiment.refine,
            client_bytes=client_bytes,
        )
        for strategy in strategies
    }
    name = max(sizes, key=lambda key: sizes[key].total)
    memory = f"a run of '{name}' holds {sizes[name]}; samples take {_samples(problem)}"
    if not timed:
        return memory
    finals, pilots = len(experiment.seeds), len(experiment.pilot_seeds)
    gradients = sum(
        expected_gradients_of(experiment, strategy)
        * (finals + pilots * len(strategy.learning_rates))
        for strategy in strategies
    )
    runs = sum(finals + pilots * len(strategy.learning_rates) for strategy in strategies)
    longest = duration(EVALUATIONS * gradients * seconds / jobs)
    return (
        f"{runs:,} runs, about {gradients:,.0f} gradients of {1e3 * seconds:.2g} ms: at most about "
        f"{longest} of processor time{'' if jobs == 1 else f' with {jobs} jobs'}; {memory}"
    )


def _samples(problem: Problem) -> str:
    size = sample_bytes(problem)
    if math.isfinite(size):
        return in_words(int(size))
    return f"what their datasets need, and batches of the test set up to {in_words(KEPT_BYTES)}"


def in_words(size: int) -> str:
    """Bytes for people.

    >>> in_words(40_000), in_words(6_000_000_000)
    ('40 kB', '6.0 GB')
    """
    if size < 1e5:
        return f"{size / 1e3:.2g} kB" if size < 1e4 else f"{size / 1e3:.0f} kB"
    return f"{size / 1e6:,.1f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"

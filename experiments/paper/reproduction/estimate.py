"""What runs of training claims cost, timed here before any is begun."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reproduction.cell_runs import CellRunner
from reproduction.settings import TrainingCell
from reproduction.training import exponential
from sojourn._support.configuration import Table
from sojourn.training.experiment.build import build_problem
from sojourn.training.experiment.engines import LocalEngine
from sojourn.training.experiment.experiment import experiment_from_table
from sojourn.training.experiment.jobs import ONE_AT_A_TIME, schedule_of, threads_for, using_threads
from sojourn.training.replay.run import Replay
from sojourn.training.replay.stack import Stack

Run = tuple[TrainingCell, str]
"""A strategy in a cell."""

SECONDS_OF_TRIAL = 1.0
FIRST_ROUNDS, MOST_ROUNDS = 2, 400
RUNS_OF_TRIAL = 18
"""Abreast, where models are small: about half as many as go abreast at most."""


@dataclass(frozen=True)
class Cost:
    """Seconds of processor time on one data set: a gradient, an evaluation, a problem to be built."""

    gradient: float
    evaluation: float
    problem: float


class Prices:
    """What runs cost, by data set; ``known`` is what was timed before, and grows."""

    def __init__(self, runner: CellRunner, known: dict[str, list[float]]) -> None:
        self._runner, self.known = runner, known
        self._gradients: dict[tuple[str, ...], float] = {}

    def cost(self, data: str) -> Cost:
        """The seconds of a data set at this scale, timed once."""
        if data not in self.known:
            cost = timed(self._runner, data)
            self.known[data] = [cost.gradient, cost.evaluation, cost.problem]
        return Cost(*self.known[data])

    def run(self, cell: TrainingCell, strategy: str) -> float:
        """Seconds of one run."""
        cost, size = self.cost(cell.data), self._runner.settings.sizes[cell.data]
        training = self.gradients(cell, strategy) * cost.gradient
        return training + size.evaluations * cost.evaluation

    def choice_of_rates(self, cell: TrainingCell) -> float:
        """Seconds to try the learning rates of all strategies of a cell, where there are several."""
        setting = self._runner.settings.settings[cell.setting]
        each = sum(self.gradients(cell, name) for name in setting.strategies)
        return len(setting.tried_rates) * each * self.cost(cell.data).gradient

    def gradients(self, cell: TrainingCell, strategy: str) -> float:
        """About how many gradients one run computes, whatever the law of service times.

        The routing of a plan is not known before constants are measured: it is taken to be fast.
        """
        known = "balanced" if strategy == "plan" else strategy
        key = known, cell.setting, cell.data
        if key not in self._gradients:
            self._gradients[key] = self._runner.gradients(exponential(cell), known)
        return self._gradients[key]


@dataclass
class Wave:
    """Runs that are made together, beside those that were ``made`` before; ``spent`` is their price.

    What several statements rest on is paid once: runs, the problem of a seed, the choice of rates.
    """

    prices: Prices
    made: Mapping[Run, int]
    runs: dict[Run, int] = field(default_factory=dict)
    spent: float = 0.0
    purpose: int = 0
    _problems: dict[TrainingCell, int] = field(default_factory=dict)

    def price(self, runs: Mapping[Run, int]) -> float:
        """Seconds that these runs add."""
        missing = {
            run: pairs - max(self.made.get(run, 0), self.runs.get(run, 0))
            for run, pairs in runs.items()
        }
        seconds = sum(n * self.prices.run(*run) for run, n in missing.items() if n > 0)
        for cell, number in self._built(runs).items():
            more = max(0, number - self._problems.get(cell, 0))
            seconds += more * self.prices.cost(cell.data).problem
        known = {cell for cell, _ in (*self.made, *self.runs)}
        return seconds + sum(
            self.prices.choice_of_rates(cell) for cell in {cell for cell, _ in runs} - known
        )

    def add(self, runs: Mapping[Run, int]) -> None:
        """Take these runs into the wave."""
        self.spent += self.price(runs)
        for cell, number in self._built(runs).items():
            self._problems[cell] = max(number, self._problems.get(cell, 0))
        for run, pairs in runs.items():
            if pairs > self.made.get(run, 0):
                self.runs[run] = max(pairs, self.runs.get(run, 0))

    def _built(self, runs: Mapping[Run, int]) -> dict[TrainingCell, int]:
        """How many problems have to be built for runs, whatever the law of service times."""
        problems: dict[TrainingCell, int] = {}
        for run, pairs in runs.items():
            cell, new = exponential(run[0]), pairs - self.made.get(run, 0)
            problems[cell] = max(new, problems.get(cell, 0))
        return problems


def timed(runner: CellRunner, data: str) -> Cost:
    """Time a few gradients and evaluations, computed as they will be, with as many threads as a job has.

    By processor time, so that other work on the machine counts little.
    """
    size = runner.settings.sizes[data]
    values: dict[str, object] = {
        "fleet": "twenty",
        "data": size.of(data),
        "model": size.model,
        "batch-size": size.batch_size,
        "concurrency": 100,
        "learning-rate": 1e-6,
        "strategies": ["uniform"],
        "rounds": MOST_ROUNDS,
    }
    if runner.data_folder is not None:
        values["data-dir"] = runner.data_folder
    experiment = experiment_from_table(Table(values, "estimate"), Path())
    build_problem(experiment, 0)  # reads the data set, which later problems find read
    strategy, rule = experiment.strategies[0], experiment.strategies[0].rule
    threads = threads_for(experiment, LocalEngine(runner.jobs).threads())
    with ONE_AT_A_TIME, using_threads(threads):
        begin = time.process_time()
        problem = build_problem(experiment, 1)
        building = time.process_time() - begin
        schedules = [
            schedule_of(experiment, strategy, seed, rounds=MOST_ROUNDS)
            for seed in range(RUNS_OF_TRIAL if runner.small(data) else 1)
        ]
        runs = [
            Replay(s, problem, rule, learning_rate=1e-6, seed=1, evaluate_every=MOST_ROUNDS)
            for s in schedules
        ]
        positions = [run.beginning(runner.small(data)) for run in runs]
        begin = time.process_time()
        problem.evaluate(problem.initial_weights())
        evaluation = time.process_time() - begin

        def go_on(until: int) -> None:
            Stack(runs).run(positions, until=until, batched=runner.small(data))

        go_on(FIRST_ROUNDS)  # on a new machine these also compile
        done, begin = FIRST_ROUNDS, time.process_time()
        while done < MOST_ROUNDS - 1 and time.process_time() - begin < SECONDS_OF_TRIAL:
            done = min(MOST_ROUNDS - 1, 2 * done)
            go_on(done)
        gradient = (time.process_time() - begin) / ((done - FIRST_ROUNDS) * len(runs))
    return Cost(gradient, evaluation, building)


def in_words(seconds: float) -> str:
    """A duration that a person can plan with.

    >>> in_words(90), in_words(7200), in_words(1e6)
    ('2 minutes', '2 hours', '12 days')
    """
    for unit, length in (("day", 86_400.0), ("hour", 3_600.0), ("minute", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}s"
    return f"{max(seconds, 1):.0f} seconds"

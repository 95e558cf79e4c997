"""How long training claims will take, before they are begun."""

import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from sojourn.config import Table
from sojourn.errors import DataNotFound
from sojourn.reproduce.cell_runs import CellRunner
from sojourn.reproduce.settings import TrainingCell
from sojourn.train.experiment.cells import Cell, expected_gradients, kept, run_cell
from sojourn.train.experiment.engines import LocalEngine
from sojourn.train.experiment.experiment import experiment_from_table

TRIALS = 2


def estimated_seconds(
    runner: CellRunner, cells: Iterable[tuple[TrainingCell, tuple[str, ...]]]
) -> float:
    """Seconds for what is not yet done of ``cells``, from gradients and evaluations timed here.

    Cells whose data are missing count nothing.
    """
    total = 0.0
    for cell, also in cells:
        try:
            for folder, experiment in runner.experiments(cell, also):
                gradient, evaluation = _timed(
                    experiment.data,
                    experiment.data_dir,
                    experiment.model,
                    experiment.batch_size,
                    LocalEngine(runner.jobs).threads(),
                )
                for i, strategy in enumerate(experiment.strategies):
                    for seed in experiment.seeds:
                        one = Cell(i, seed, strategy.learning_rates[0])
                        if kept(experiment, one, folder) is None:
                            gradients = expected_gradients(experiment, one)
                            evaluations = gradients / (experiment.evaluate_every or gradients)
                            total += gradients * gradient + evaluations * evaluation
        except DataNotFound:
            continue
    return total / runner.jobs


@cache
def _timed(
    data: str, data_dir: str | None, model: str, batch_size: int, threads: int
) -> tuple[float, float]:
    """Seconds for one gradient and for one evaluation, with as many threads as a job will have.

    Tiny runs are timed and subtracted, so that what is done once per run does not count.
    """
    values: dict[str, object] = {
        "fleet": "twenty",
        "data": data,
        "model": model,
        "batch-size": batch_size,
        "learning-rate": 1e-6,
        "strategies": ["uniform"],
        "batched": False,
        "threads": threads,
    }
    if data_dir is not None:
        values["data-dir"] = data_dir

    def seconds(rounds: int, spacing: int) -> float:
        length = {"rounds": rounds, "evaluate-every": spacing, "refine": False}
        experiment = experiment_from_table(Table({**values, **length}, "estimate"), Path())
        begin = time.perf_counter()
        run_cell(experiment, Cell(0, 0, 1e-6))
        return time.perf_counter() - begin

    seconds(1, 1)
    short, longer = seconds(1, 1), seconds(1 + TRIALS, 1 + TRIALS)
    watched = seconds(1 + TRIALS, 1)
    return max(longer - short, 0.0) / TRIALS, max(watched - longer, 0.0) / TRIALS


def in_words(seconds: float) -> str:
    """A duration that a person can plan with.

    >>> in_words(90), in_words(7200), in_words(1e6)
    ('2 minutes', '2 hours', '12 days')
    """
    for unit, length in (("day", 86_400.0), ("hour", 3_600.0), ("minute", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}s"
    return f"{max(seconds, 1):.0f} seconds"

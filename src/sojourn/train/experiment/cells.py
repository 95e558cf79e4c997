"""One run of an experiment: a strategy, a seed and a learning rate; and where it is kept."""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from sojourn.history import History
from sojourn.runfolder import RunFolder
from sojourn.simulation.schedule import Schedule
from sojourn.simulation.simulate import simulate
from sojourn.train.experiment.build import build_problem
from sojourn.train.experiment.experiment import Experiment
from sojourn.train.experiment.models import SMALL_MODELS, parse_model
from sojourn.train.experiment.strategy import Strategy
from sojourn.train.replay.checkpoint import Checkpoint
from sojourn.train.replay.replay import replay


def threads_for(experiment: Experiment, available: int | None) -> int | None:
    """As the experiment says; else one for models too small to gain from more; else ``available``."""
    if experiment.threads is not None:
        return experiment.threads
    small = experiment.problem is None and parse_model(experiment.model)[0] in SMALL_MODELS
    return 1 if small else available


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Within the block PyTorch uses ``count`` threads; ``None`` leaves it as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


ONE_AT_A_TIME = threading.Lock()
"""Held while PyTorch computes: its generator and its number of threads belong to the whole process.

A Dask worker calls cells from several threads.
"""


ROUNDS_OF_A_LOOK = 1000
"""Enough to see how fast a policy without theory goes."""


@dataclass(frozen=True)
class Cell:
    """``strategy`` counts from 0 in the order of the experiment."""

    strategy: int
    seed: int
    learning_rate: float


def schedule_of(
    experiment: Experiment,
    strategy: Strategy,
    seed: int,
    *,
    rounds: int | None = None,
    time: float | None = None,
) -> Schedule:
    """Who finishes when under a strategy of an experiment."""
    return simulate(strategy.network, strategy.scenario, rounds=rounds, time=time, seed=seed)


def run_cell(
    experiment: Experiment,
    cell: Cell,
    *,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> History:
    """Simulate and train one cell, with the experiment's number of threads.

    The same seed gives every strategy the same streams of service times and routing, the same data,
    batches and first weights.
    """
    strategy = experiment.strategies[cell.strategy]
    with ONE_AT_A_TIME, using_threads(experiment.threads):
        history = replay(
            schedule_of(
                experiment, strategy, cell.seed, rounds=experiment.rounds, time=experiment.time
            ),
            build_problem(experiment, cell.seed),
            strategy.rule,
            learning_rate=cell.learning_rate,
            seed=cell.seed,
            evaluate_every=experiment.evaluate_every,
            batched=experiment.batched,
            strategy=strategy.name,
            checkpoint=checkpoint,
            progress=progress or False,
        )
    return dataclasses.replace(history, weights=None)


def run_and_keep(
    experiment: Experiment,
    cell: Cell,
    folder: Path,
    progress: Callable[[int, int], None] | None = None,
) -> History:
    """Run a cell, from its checkpoint if there is one, and write its history into ``folder``."""
    path = Path(f"{cell_path(experiment, cell, folder)}.checkpoint")
    checkpoint = Checkpoint(path, seconds=experiment.checkpoint_seconds)
    history = run_cell(experiment, cell, checkpoint=checkpoint, progress=progress)
    keep(experiment, cell, folder, history)
    path.unlink(missing_ok=True)
    return history


def keep(experiment: Experiment, cell: Cell, folder: Path, history: History) -> None:
    """Write the history of a finished cell."""
    History.write(cell_path(experiment, cell, folder), [history])


def kept(experiment: Experiment, cell: Cell, folder: Path) -> History | None:
    """The history of a cell that was finished before, if it was."""
    path = cell_path(experiment, cell, folder)
    found = History.read(path) if path.exists() else []
    return found[0] if found else None


def cell_path(experiment: Experiment, cell: Cell, folder: Path) -> Path:
    """Where a cell's history is kept."""
    slug = experiment.strategies[cell.strategy].slug
    return RunFolder(folder).cells / f"{slug}_seed-{cell.seed}_rate-{cell.learning_rate!r}.jsonl"


def expected_gradients(experiment: Experiment, cell: Cell) -> float:
    """About how many gradients a cell computes: what progress is measured in."""
    return expected_gradients_of(experiment, experiment.strategies[cell.strategy])


def expected_gradients_of(experiment: Experiment, strategy: Strategy) -> float:
    """About how many gradients a run of a strategy computes."""
    steps = strategy.rule.local_steps
    if experiment.rounds is not None:
        return float(experiment.rounds * steps)
    assert experiment.time is not None
    theory = strategy.scenario.policy.analysis(strategy.network)
    if theory is not None:
        # A task of several local steps takes as many times as long.
        return max(1.0, theory.throughput * experiment.time)
    short = schedule_of(experiment, strategy, 0, rounds=ROUNDS_OF_A_LOOK)
    return max(1.0, short.throughput() * experiment.time * steps)

"""One run of an experiment and where it is kept; and what is found out before any is begun."""

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from sojourn.errors import InvalidInput
from sojourn.history import History
from sojourn.runfolder import RunFolder
from sojourn.simulation.schedule import Schedule
from sojourn.simulation.simulate import simulate
from sojourn.tensorfile import write_tensors
from sojourn.train.experiment.build import build_problem
from sojourn.train.experiment.calibrate import Calibration, calibrate
from sojourn.train.experiment.experiment import Experiment
from sojourn.train.experiment.models import SMALL_MODELS, parse_model
from sojourn.train.experiment.strategy import Strategy
from sojourn.train.replay.checkpoint import Checkpoint, problem_digest
from sojourn.train.replay.gradients import LONGEST_TRIAL, channels_last_pays
from sojourn.train.replay.loop import Replay
from sojourn.train.replay.problem import Problem
from sojourn.train.replay.replay import prepared, replay, replay_abreast
from sojourn.train.replay.state import LEAST_ROWS, MOST_ROWS, evaluation_spacing
from sojourn.types import FloatArray


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


Work = tuple[Experiment, Cell, Path]
"""A cell, the experiment it belongs to, and the folder of its results."""


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
            **_arguments(experiment, cell),
            batched=experiment.batched,
            strategy=strategy.name,
            checkpoint=checkpoint,
            progress=progress or False,
        )
    return _without_weights(experiment, history)


def _arguments(experiment: Experiment, cell: Cell) -> dict[str, Any]:
    """What a run of a cell is: what is replayed on what, and when it is evaluated."""
    strategy = experiment.strategies[cell.strategy]
    problem = build_problem(experiment, cell.seed)
    return {
        "schedule": schedule_of(
            experiment, strategy, cell.seed, rounds=experiment.rounds, time=experiment.time
        ),
        "problem": problem,
        "rule": strategy.rule,
        "learning_rate": cell.learning_rate,
        "seed": cell.seed,
        "evaluate_every": experiment.evaluate_every,
        "evaluate_at": evaluation_times(experiment, problem),
        "refine": experiment.refine,
        "stop_at": experiment.stop_at if cell.seed in experiment.seeds else None,
        "client_weights": client_weights_of(experiment, problem),
    }


def _without_weights(experiment: Experiment, history: History) -> History:
    return history if experiment.keep_weights else dataclasses.replace(history, weights=None)


def client_weights_of(experiment: Experiment, problem: Problem) -> ArrayLike | None:
    """How much clients count: as their samples or the fleet say; ``None`` where all do the same."""
    fleet = experiment.fleet
    if fleet.weight is not None:
        return fleet.expand(fleet.relative_weights)
    return problem.train_sizes if experiment.client_weights == "size" else None


def calibration_of(
    experiment: Experiment,
    problem: Problem,
    *,
    learning_rate: float,
    seed: int,
    progress: Callable[[str], None] = lambda step: None,
) -> Calibration:
    """The constants of a problem, its clients weighed as the experiment says; see `calibrate`."""
    return calibrate(
        problem,
        learning_rate=learning_rate,
        seed=seed,
        client_weights=client_weights_of(experiment, problem),
        weighted_fleet=experiment.fleet.weight is not None,
        progress=progress,
    )


def evaluation_times(experiment: Experiment, problem: Problem) -> FloatArray | None:
    """When all strategies are evaluated, where runs last a given time: evenly, to the end.

    There are 10 to 100 times, as many as cost about a tenth of the run (see `evaluation_spacing`)
    of a strategy in which no client ever waits: strategies and seeds that come later do not change
    them.
    """
    if experiment.time is None or experiment.evaluate_every is not None:
        return None
    fleet = experiment.fleet
    most = max(1, math.floor(experiment.time * float(fleet.service_rates @ fleet.counts)))
    spacing = evaluation_spacing(most, len(problem.test_set[1]), problem.batch_size)
    rows = min(MOST_ROWS, max(LEAST_ROWS, most // spacing))
    return np.linspace(0.0, experiment.time, rows + 1)


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


def run_abreast_and_keep(
    work: Sequence[Work], progress: Callable[[int, int], None] | None = None
) -> list[History]:
    """Run cells that learn one problem under one seed, their gradients computed together.

    A cell alone is run as it would be, with its checkpoint. Of several all histories are written once
    all are there: what is cut short begins anew.
    """
    if len(work) == 1:
        return [run_and_keep(*work[0], progress)]
    with ONE_AT_A_TIME, using_threads(work[0][0].threads):
        runs = [prepared(**_arguments(experiment, cell)) for experiment, cell, _ in work]
        names = [experiment.strategies[cell.strategy].name for experiment, cell, _ in work]
        total, done = sum(run.schedule.rounds for run in runs), 0

        def advance(tasks: int) -> None:
            nonlocal done
            done += tasks
            if progress is not None:
                progress(done, total)

        found = replay_abreast(runs, names, advance=advance)
    histories = []
    for (experiment, cell, folder), history in zip(work, found, strict=True):
        histories.append(_without_weights(experiment, history))
        keep(experiment, cell, folder, history)
    return histories


def keep(experiment: Experiment, cell: Cell, folder: Path, history: History) -> None:
    """Write the history of a finished cell, after its final weights if they are to be kept."""
    if experiment.keep_weights:
        problem = build_problem(experiment, cell.seed)
        write_tensors(weights_path(experiment, cell, folder), problem.state_arrays(history.weights))
    History.write(cell_path(experiment, cell, folder), [history])


def kept(experiment: Experiment, cell: Cell, folder: Path) -> History | None:
    """The history of a cell that was finished before, with its weights where these are wanted."""
    path = cell_path(experiment, cell, folder)
    found = History.read(path) if path.exists() else []
    if experiment.keep_weights and not weights_path(experiment, cell, folder).exists():
        return None
    return found[0] if found else None


def set_aside_shorter(experiment: Experiment, folder: Path) -> None:
    """Where the horizon has grown, runs that ended at the one before are to be made again.

    They are kept under another name; unfinished ones begin anew.
    """
    for path in RunFolder(folder).cells.glob("*.jsonl"):
        for history in History.read(path):
            if not _whole(experiment, history):
                path.replace(path.with_name(f"{path.name}.shorter"))
    for path in RunFolder(folder).cells.glob("*.checkpoint"):
        path.unlink()


def _whole(experiment: Experiment, history: History) -> bool:
    stop = experiment.stop_at
    stopped = stop is not None and history.measure.reaches(history.final, stop)
    return stopped or history.diverged_at is not None


def weights_path(experiment: Experiment, cell: Cell, folder: Path) -> Path:
    """Where a cell's final weights are kept."""
    name = cell_path(experiment, cell, folder).with_suffix(".safetensors").name
    return RunFolder(folder).weights / name


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


@dataclass(frozen=True)
class Preflight:
    """How gradients are computed, and what identifies a problem of the user's own."""

    batched: bool
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
        problem.channels_last = False  # which is no part of what a problem is
        digest = problem_digest(problem) if experiment.problem is not None else None
        light = experiment.problem is not None and _is_light(problem, seed)
        layout = experiment.channels_last
        problem.channels_last = channels_last_pays(problem) if layout is None else layout
        for strategy in experiment.strategies:
            _check_time(experiment, strategy, seed)
        batched = experiment.batched
        if batched is None:
            batched = _together_pays(experiment, problem, seed)
        return Preflight(batched, problem.channels_last, digest, light)


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

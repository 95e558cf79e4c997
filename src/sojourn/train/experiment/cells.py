"""What is run as a whole, final runs and pilots, and where it is kept."""

import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import torch

from sojourn.history import History
from sojourn.runfolder import RunFolder
from sojourn.simulation.schedule import Schedule
from sojourn.simulation.simulate import simulate
from sojourn.tensorfile import write_tensors
from sojourn.train.experiment.build import build_problem, client_weights_of, validation_problem
from sojourn.train.experiment.experiment import Experiment
from sojourn.train.experiment.models import SMALL_MODELS, parse_model
from sojourn.train.experiment.strategy import Strategy
from sojourn.train.replay.checkpoint import Checkpoint, rows_in
from sojourn.train.replay.problem import Problem
from sojourn.train.replay.replay import prepared, replay, replay_abreast, replay_together
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


Runs: TypeAlias = tuple[History, ...]


class Part(Protocol):
    """What is run as a whole and kept in one file: a `Cell`, or the `Pilots` of a strategy.

    ``strategy`` counts from 0 in the order of the experiment; ``label`` tells its file from others of
    strategy and seed.
    """

    @property
    def strategy(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def learning_rates(self) -> tuple[float, ...]: ...
    @property
    def label(self) -> str: ...

    def run(
        self,
        experiment: Experiment,
        *,
        checkpoint: Checkpoint | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Runs:
        """The history at every learning rate, in their order."""


AnyPart = TypeVar("AnyPart", bound=Part)

Work: TypeAlias = tuple[Experiment, AnyPart, Path]
"""A part, the experiment it belongs to, and the folder of its results."""


@dataclass(frozen=True)
class Cell:
    """One final run; ``strategy`` counts from 0 in the order of the experiment."""

    strategy: int
    seed: int
    learning_rate: float

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """Its own."""
        return (self.learning_rate,)

    @property
    def label(self) -> str:
        """By its learning rate."""
        return f"rate-{self.learning_rate!r}"

    def run(
        self,
        experiment: Experiment,
        *,
        checkpoint: Checkpoint | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Runs:
        """`run_cell`."""
        return (run_cell(experiment, self, checkpoint=checkpoint, progress=progress),)


@dataclass(frozen=True)
class Pilots:
    """Runs of a strategy on a pilot seed, in lockstep if they are at several learning rates.

    They are judged on samples that clients give up; the test set is not looked at. How a stack is
    rounded may depend on all who are in it: if a rate comes or goes, all are run anew.
    """

    strategy: int
    seed: int
    learning_rates: tuple[float, ...]

    @property
    def label(self) -> str:
        """By the learning rate, if there is one."""
        return "pilots" if len(self.learning_rates) > 1 else f"pilot-{self.learning_rates[0]!r}"

    def run(
        self,
        experiment: Experiment,
        *,
        checkpoint: Checkpoint | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Runs:
        """Simulate once and train at all learning rates, to the end whatever the target."""
        strategy = experiment.strategies[self.strategy]
        with ONE_AT_A_TIME, using_threads(experiment.threads):
            problem = validation_problem(experiment, self.seed)
            histories = replay_together(
                *(whole_schedule(experiment, strategy, self.seed), problem, strategy.rule),
                learning_rates=self.learning_rates,
                seed=self.seed,
                batched=len(self.learning_rates) > 1 or bool(experiment.batched),
                strategy=strategy.name,
                checkpoint=checkpoint,
                progress=progress,
                **replayed_as(experiment, problem),
            )
        return tuple(dataclasses.replace(history, weights=None) for history in histories)


def pilots_of(experiment: Experiment) -> list[Pilots]:
    """The pilots that choose the learning rates, of each strategy together or one by one."""
    return [
        Pilots(i, seed, rates)
        for seed in experiment.pilot_seeds
        for i, strategy in enumerate(experiment.strategies)
        for rates in (
            [strategy.learning_rates]
            if experiment.lockstep
            else [(rate,) for rate in strategy.learning_rates]
        )
    ]


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
        "schedule": whole_schedule(experiment, strategy, cell.seed),
        "problem": problem,
        "rule": strategy.rule,
        "learning_rate": cell.learning_rate,
        "seed": cell.seed,
        "stop_at": experiment.stop_at if cell.seed in experiment.seeds else None,
        **replayed_as(experiment, problem),
    }


def _without_weights(experiment: Experiment, history: History) -> History:
    return history if experiment.keep_weights else dataclasses.replace(history, weights=None)


def whole_schedule(experiment: Experiment, strategy: Strategy, seed: int) -> Schedule:
    """Who finishes when, for as long as runs of the experiment last."""
    return schedule_of(experiment, strategy, seed, rounds=experiment.rounds, time=experiment.time)


def replayed_as(experiment: Experiment, problem: Problem) -> dict[str, Any]:
    """What the experiment says of all runs on a problem, as arguments of `replay`."""
    return {
        "evaluate_every": experiment.evaluate_every,
        "evaluate_at": evaluation_times(experiment, problem),
        "refine": experiment.refine,
        "client_weights": client_weights_of(experiment, problem),
    }


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
    part: Part,
    folder: Path,
    progress: Callable[[int, int], None] | None = None,
) -> Runs:
    """Run a part, from its checkpoint if there is one, and write its histories into ``folder``.

    Where learning rates have come or gone since, a checkpoint is of other runs, and not gone on with.
    """
    path = Path(f"{part_path(experiment, part, folder)}.checkpoint")
    if path.exists() and tuple(rows_in(path)) != part.learning_rates:
        path.unlink()
    checkpoint = Checkpoint(path, seconds=experiment.checkpoint_seconds)
    histories = part.run(experiment, checkpoint=checkpoint, progress=progress)
    keep(experiment, part, folder, histories)
    path.unlink(missing_ok=True)
    return histories


def run_abreast_and_keep(
    work: Sequence[Work[Part]], progress: Callable[[int, int], None] | None = None
) -> list[Runs]:
    """Run cells that learn one problem under one seed, their gradients computed together.

    A part alone is run as it would be, with its checkpoint. Of several cells all histories are written
    once all are there: what is cut short begins anew.
    """
    if len(work) == 1:
        return [run_and_keep(*work[0], progress)]
    cells = [(one, part, where) for one, part, where in work if isinstance(part, Cell)]
    with ONE_AT_A_TIME, using_threads(work[0][0].threads):
        runs = [prepared(**_arguments(experiment, cell)) for experiment, cell, _ in cells]
        names = [experiment.strategies[cell.strategy].name for experiment, cell, _ in cells]
        total, done = sum(run.schedule.rounds for run in runs), 0

        def advance(tasks: int) -> None:
            nonlocal done
            done += tasks
            if progress is not None:
                progress(done, total)

        found = replay_abreast(runs, names, advance=advance)
    kept_runs: list[Runs] = []
    for (experiment, cell, folder), history in zip(cells, found, strict=True):
        kept_runs.append((_without_weights(experiment, history),))
        keep(experiment, cell, folder, (history,))
    return kept_runs


def run_part(experiment: Experiment, part: Part) -> Runs:
    """Run a part where there is no folder."""
    return part.run(experiment)


def keep(experiment: Experiment, part: Part, folder: Path, histories: Runs) -> None:
    """Write what came of a part, after the final weights of a cell if they are to be kept."""
    if experiment.keep_weights and isinstance(part, Cell):
        arrays = build_problem(experiment, part.seed).state_arrays(histories[0].weights)
        write_tensors(weights_path(experiment, part, folder), arrays)
    History.write(part_path(experiment, part, folder), histories)


def kept(experiment: Experiment, part: Part, folder: Path) -> Runs | None:
    """What came of a part before, if it had these learning rates; with weights where wanted."""
    path = part_path(experiment, part, folder)
    found = tuple(History.read(path)) if path.exists() else ()
    if tuple(history.learning_rate for history in found) != part.learning_rates:
        return None
    if experiment.keep_weights and isinstance(part, Cell):
        return found if weights_path(experiment, part, folder).exists() else None
    return found


def set_aside_shorter(experiment: Experiment, folder: Path) -> None:
    """Where the horizon has grown, runs that ended at the one before are to be made again.

    They are kept under another name; unfinished ones begin anew.
    """
    for path in RunFolder(folder).cells.glob("*.jsonl"):
        if not all(_whole(experiment, history) for history in History.read(path)):
            path.replace(path.with_name(f"{path.name}.shorter"))
    for path in RunFolder(folder).cells.glob("*.checkpoint"):
        path.unlink()


def _whole(experiment: Experiment, history: History) -> bool:
    """Whether a longer run would have been the same; pilots are not stopped at a target."""
    if history.seed not in experiment.seeds:
        return False
    stop = experiment.stop_at
    stopped = stop is not None and history.measure.reaches(history.final, stop)
    return stopped or history.diverged_at is not None


def weights_path(experiment: Experiment, cell: Cell, folder: Path) -> Path:
    """Where a cell's final weights are kept."""
    name = part_path(experiment, cell, folder).with_suffix(".safetensors").name
    return RunFolder(folder).weights / name


def part_path(experiment: Experiment, part: Part, folder: Path) -> Path:
    """Where a part's histories are kept."""
    slug = experiment.strategies[part.strategy].slug
    return RunFolder(folder).cells / f"{slug}_seed-{part.seed}_{part.label}.jsonl"


def expected_gradients(experiment: Experiment, part: Part) -> float:
    """About how many gradients a part computes: what progress is measured in."""
    each = expected_gradients_of(experiment, experiment.strategies[part.strategy])
    return each * len(part.learning_rates)


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

"""Jobs: final runs and pilots of an experiment, how they are run, and where they are saved."""

import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sojourn._support.arrays import write_tensors
from sojourn.runs.folder import RunFolder
from sojourn.runs.history import History
from sojourn.simulation.schedule import Schedule
from sojourn.simulation.simulate import simulate
from sojourn.strategy import Strategy
from sojourn.training.experiment.build import build_problem, client_weights_of, validation_problem
from sojourn.training.experiment.experiment import Experiment
from sojourn.training.experiment.models import SMALL_MODELS, parse_model
from sojourn.training.problem.evaluation import LEAST_ROWS, MOST_ROWS, evaluation_spacing
from sojourn.training.problem.problem import Problem
from sojourn.training.replay.checkpoint import Checkpoint, rows_in
from sojourn.training.replay.replay import replay_runs
from sojourn.training.replay.run import Replay
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

A Dask worker runs jobs in several threads.
"""

TRIAL_ROUNDS = 1000
"""Rounds that are simulated to see how fast a policy without theory goes."""

Histories: TypeAlias = tuple[History, ...]
"""Of a job: one per learning rate, in their order."""

StateArrays: TypeAlias = dict[str, NDArray[Any]]
"""The tensors of a model by their names."""


@dataclass(frozen=True)
class Job:
    """Runs of one strategy and seed that are computed together and saved in one file.

    ``strategy`` counts from 0 in the order of the experiment. A final run has one learning rate.
    ``pilot`` runs choose among learning rates: they are judged on held-out training samples, the
    test set is not used, and they last to the end whatever the target. Floating-point results depend
    on the composition of a stack: if a rate is added or removed, all are run again.
    """

    strategy: int
    seed: int
    learning_rates: tuple[float, ...]
    pilot: bool = False

    @property
    def label(self) -> str:
        """Distinguishes the job's file from others of its strategy and seed."""
        if len(self.learning_rates) > 1:
            return "pilots"
        return f"{'pilot' if self.pilot else 'rate'}-{self.learning_rates[0]!r}"

    def path(self, experiment: Experiment, folder: Path) -> Path:
        """Where the job's histories are saved."""
        slug = experiment.strategies[self.strategy].slug
        return RunFolder(folder).cells / f"{slug}_seed-{self.seed}_{self.label}.jsonl"

    def weights_path(self, experiment: Experiment, folder: Path) -> Path:
        """Where the final weights are saved."""
        name = self.path(experiment, folder).with_suffix(".safetensors").name
        return RunFolder(folder).weights / name


Work: TypeAlias = tuple[Experiment, Job, Path | None]
"""A job, the experiment it belongs to, and the folder of its results, if it is to be saved."""


def pilots_of(experiment: Experiment) -> list[Job]:
    """The pilots that choose the learning rates, of each strategy together or one by one."""
    return [
        Job(i, seed, rates, pilot=True)
        for seed in experiment.pilot_seeds
        for i, strategy in enumerate(experiment.strategies)
        for rates in (
            [strategy.learning_rates]
            if experiment.lockstep
            else [(rate,) for rate in strategy.learning_rates]
        )
    ]


def at_seed(experiment: Experiment, strategy: Strategy, seed: int) -> Strategy:
    """``strategy`` with the local steps that its epochs come to with the samples of ``seed``."""
    if strategy.local_epochs is None:
        return strategy
    problem = build_problem(experiment, seed)
    return strategy.with_samples(problem.train_sizes, problem.batch_size)


def schedule_of(
    experiment: Experiment,
    strategy: Strategy,
    seed: int,
    *,
    rounds: int | None = None,
    time: float | None = None,
) -> Schedule:
    """Who finishes when under a strategy, by default for as long as runs of the experiment last."""
    if rounds is None and time is None:
        rounds, time = experiment.rounds, experiment.time
    strategy = at_seed(experiment, strategy, seed)
    return simulate(strategy.network, strategy.scenario, rounds=rounds, time=time, seed=seed)


def run_jobs(
    work: Sequence[Work], progress: Callable[[float], None] | None = None
) -> list[Histories]:
    """Run jobs and save their histories; ``progress`` is called with the fraction that is done.

    A job alone resumes from its checkpoint. Several, which must learn problems of one kind, are
    computed in one stack: their histories are written once all are there, and a stack that was
    interrupted begins again. The same seed gives every strategy the same service times and routing,
    data, batches and first weights.
    """
    experiment, job, folder = work[0]
    alone = len(work) == 1
    path = None if folder is None or not alone else _checkpoint_path(experiment, job, folder)
    with ONE_AT_A_TIME, using_threads(experiment.threads):
        runs = [_replays(experiment, job) for experiment, job, _ in work]
        names = [
            experiment.strategies[job.strategy].name
            for experiment, job, _ in work
            for _ in job.learning_rates
        ]
        stacked = not alone or len(job.learning_rates) > 1
        batched = bool(experiment.batched) if job.pilot else experiment.batched
        found = iter(
            replay_runs(
                [run for own in runs for run in own],
                names,
                batched=stacked or batched,
                progress=None if progress is None else lambda done, total: progress(done / total),
                checkpoint=None
                if path is None
                else Checkpoint(path, seconds=experiment.checkpoint_seconds),
            )
        )
    results = []
    for (experiment, job, folder), own in zip(work, runs, strict=True):
        histories = tuple(next(found) for _ in own)
        if folder is not None:
            save(experiment, job, folder, histories, final_arrays(experiment, job, histories))
        if job.pilot or not experiment.keep_weights:
            histories = tuple(dataclasses.replace(h, weights=None) for h in histories)
        results.append(histories)
    if path is not None:
        path.unlink(missing_ok=True)
    return results


def _replays(experiment: Experiment, job: Job) -> list[Replay]:
    """The runs of a job, one per learning rate."""
    strategy = at_seed(experiment, experiment.strategies[job.strategy], job.seed)
    problem = (validation_problem if job.pilot else build_problem)(experiment, job.seed)
    schedule = schedule_of(experiment, strategy, job.seed)
    stops = not job.pilot and job.seed in experiment.seeds
    return [
        Replay(
            schedule,
            problem,
            strategy.rule,
            learning_rate=rate,
            seed=job.seed,
            client_weights=client_weights_of(experiment, problem),
            evaluate_every=experiment.evaluate_every,
            evaluate_at=evaluation_times(experiment, problem),
            refine=experiment.refine,
            stop_at=experiment.stop_at if stops else None,
        )
        for rate in job.learning_rates
    ]


def _checkpoint_path(experiment: Experiment, job: Job, folder: Path) -> Path:
    """Where a job's checkpoint is; one of other learning rates is of other runs, and removed."""
    path = Path(f"{job.path(experiment, folder)}.checkpoint")
    if path.exists() and tuple(rows_in(path)) != job.learning_rates:
        path.unlink()
    return path


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
    spacing = evaluation_spacing(most, problem.test_size, problem.batch_size)
    rows = min(MOST_ROWS, max(LEAST_ROWS, most // spacing))
    return np.linspace(0.0, experiment.time, rows + 1)


def final_arrays(experiment: Experiment, job: Job, histories: Histories) -> StateArrays | None:
    """The final weights of a final run by the names of its tensors, if they are wanted."""
    if job.pilot or not experiment.keep_weights:
        return None
    weights = histories[0].weights
    assert weights is not None
    return build_problem(experiment, job.seed).state_arrays(weights)


def save(
    experiment: Experiment,
    job: Job,
    folder: Path,
    histories: Histories,
    arrays: StateArrays | None,
) -> None:
    """Write the histories of a job, after its `final_arrays` if there are any."""
    ledger = RunFolder(folder).ledger
    if arrays is not None:
        with ledger.writing(job.weights_path(experiment, folder)) as temporary:
            write_tensors(temporary, arrays)
    with ledger.writing(job.path(experiment, folder)) as temporary:
        History.write(temporary, histories)


def saved(experiment: Experiment, job: Job, folder: Path) -> Histories | None:
    """The histories of a job that is finished, if it had these learning rates; with weights where wanted."""
    path, ledger = job.path(experiment, folder), RunFolder(folder).ledger
    ledger.check(path)
    found = tuple(History.read(path)) if path.exists() else ()
    if tuple(history.learning_rate for history in found) != job.learning_rates:
        return None
    if experiment.keep_weights and not job.pilot:
        ledger.check(job.weights_path(experiment, folder))
        return found if job.weights_path(experiment, folder).exists() else None
    return found


def set_aside_shorter(experiment: Experiment, folder: Path) -> None:
    """Where the horizon has grown, runs that ended at the one before are to be made again.

    They stay there under another name; unfinished ones begin anew.
    """
    for path in RunFolder(folder).finished_cells:
        RunFolder(folder).ledger.check(path)
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


def mean_steps(strategy: Strategy) -> float:
    """The local steps of a task, on average over clients."""
    return float(np.mean(strategy.rule.local_steps))


def expected_gradients_of(experiment: Experiment, strategy: Strategy) -> float:
    """About how many gradients a run of a strategy computes: what progress is measured in."""
    strategy = at_seed(experiment, strategy, experiment.seeds[0])
    steps = mean_steps(strategy)
    if experiment.rounds is not None:
        return float(experiment.rounds * steps)
    assert experiment.time is not None
    theory = strategy.scenario.policy.analysis(strategy.network)
    if theory is not None:
        # A task of several local steps takes as many times as long.
        return max(1.0, theory.throughput * experiment.time)
    short = schedule_of(experiment, strategy, 0, rounds=TRIAL_ROUNDS)
    return max(1.0, short.throughput() * experiment.time * steps)


def expected_gradients(experiment: Experiment, job: Job) -> float:
    """About how many gradients a job computes."""
    strategy = experiment.strategies[job.strategy]
    return expected_gradients_of(experiment, strategy) * len(job.learning_rates)

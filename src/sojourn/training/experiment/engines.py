"""Where jobs are run: in this process, in several, or on a Dask cluster."""

import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from sojourn._support.memory import check_jobs
from sojourn.errors import InvalidInput, SojournError, UnknownName, naming_extras
from sojourn.runs.history import History
from sojourn.training.experiment.experiment import Experiment
from sojourn.training.experiment.jobs import (
    Histories,
    Job,
    StateArrays,
    Work,
    final_arrays,
    run_jobs,
    save,
)
from sojourn.training.experiment.preflight import Preflight, preflight
from sojourn.training.tracking import Tracker, make_tracker, run_name
from sojourn.version import __version__

SECONDS_BETWEEN_LOOKS = 0.5

Found = TypeVar("Found")


@contextmanager
def following(count: int, advance: Callable[[int, float], None]) -> Iterator[Path]:
    """A file in which ``count`` runs note their progress; ``advance(place, fraction)`` hears of it.

    It is called from a thread of its own, for the length of the block.
    """
    with tempfile.TemporaryDirectory(prefix="sojourn-") as folder:
        path = Path(folder) / "fractions"
        np.zeros(count).tofile(path)
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(SECONDS_BETWEEN_LOOKS):
                for place, fraction in enumerate(np.fromfile(path).tolist()):
                    advance(place, fraction)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            ended.set()
            thread.join()


def note(path: Path, place: int) -> Callable[[float], None]:
    """What a run calls with the fraction of it that is done."""
    fractions = np.memmap(path, dtype=np.float64, mode="r+")

    def write(fraction: float) -> None:
        fractions[place] = fraction

    return write


Advance = Callable[[Job, float], None]
"""Called with a job and the fraction of it that is done."""

Done = Iterator[tuple[Job, Histories]]

ENGINES = ("local", "dask")
CONNECT_SECONDS = 10


class Engine(Protocol):
    """Runs jobs, saves their histories in a folder, and yields them as they finish."""

    def threads(self) -> int | None:
        """Threads that a job may use; ``None`` if the workers decide."""

    def preflight(self, experiment: Experiment) -> Preflight:
        """`preflight`, where jobs are run."""

    def run(
        self, experiment: Experiment, jobs: Sequence[Job], folder: Path, advance: Advance
    ) -> Done:
        """Run ``jobs``; whatever was yielded is on disk."""

    def map(
        self, function: Callable[..., Found], work: Sequence[tuple[object, ...]]
    ) -> Iterator[tuple[int, Found]]:
        """``function`` of every entry of ``work``, with its place, as they finish."""

    @property
    def width(self) -> int:
        """How many pieces work is worth cutting into."""


@dataclass(frozen=True)
class LocalEngine:
    """Processes on this machine, which share its cores; one job runs in this process.

    A job that was interrupted resumes from its checkpoint.
    """

    jobs: int = 1

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise InvalidInput(f"--jobs must be at least 1; it is {self.jobs}")

    def threads(self) -> int:
        """The cores, divided among the jobs."""
        from joblib import cpu_count

        return max(1, int(cpu_count()) // self.jobs)

    def preflight(self, experiment: Experiment) -> Preflight:
        """In this process."""
        return preflight(experiment)

    def run(
        self, experiment: Experiment, jobs: Sequence[Job], folder: Path, advance: Advance
    ) -> Done:
        """Run ``jobs`` in order, or as many at a time as there are processes."""
        work = [[(experiment, job, folder)] for job in jobs]
        for place, found in self.run_stacks(work, lambda place, done: advance(jobs[place], done)):
            yield jobs[place], found[0]

    def run_stacks(
        self,
        work: Sequence[Sequence[Work]],
        advance: Callable[[int, float], None] = lambda place, done: None,
    ) -> Iterator[tuple[int, list[Histories]]]:
        """Run jobs of several experiments, ``jobs`` entries at a time, begun in the order given.

        Those of one entry are computed in one stack (`run_jobs`). Yields places in ``work`` with the
        histories there as they finish; ``advance`` is called with a place and the fraction of it that
        is done, from another thread.
        """
        if self.jobs == 1 or len(work) == 1:
            for place, stack in enumerate(work):
                yield place, run_jobs(stack, partial(advance, place))
            return
        from joblib import delayed
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        job = delayed(_run_in_process)
        try:
            with (
                processes_may_be_replaced(),
                following(len(work), advance) as fractions,
            ):
                calls = [job(i, each, os.getpid(), fractions) for i, each in enumerate(work)]
                yield from self._parallel(calls)
        except TerminatedWorkerError as error:
            raise SojournError(
                "a worker process ended unexpectedly, perhaps for want of memory. What was "
                f"finished is saved in {work[0][0][2]}: run again with --resume, and fewer --jobs."
            ) from error

    @property
    def width(self) -> int:
        """The jobs."""
        return self.jobs

    def map(
        self, function: Callable[..., Found], work: Sequence[tuple[object, ...]]
    ) -> Iterator[tuple[int, Found]]:
        """In this process, or ``jobs`` at a time in others."""
        if self.jobs == 1 or len(work) == 1:
            for place, arguments in enumerate(work):
                yield place, function(*arguments)
            return
        from joblib import delayed

        with processes_may_be_replaced():
            calls = [delayed(_placed)(i, function, arguments) for i, arguments in enumerate(work)]
            yield from self._parallel(calls)

    def _parallel(self, calls: Sequence[Any]) -> Iterator[Any]:
        """What the calls give, ``jobs`` at a time in other processes, as they finish."""
        from joblib import Parallel

        pool = Parallel(
            n_jobs=min(self.jobs, len(calls)),
            backend="loky",
            batch_size=1,
            return_as="generator_unordered",
        )
        found: Iterator[Any] = pool(calls)
        return found


@dataclass(frozen=True)
class DaskEngine:
    """Workers of a Dask cluster, which need no folder in common with this process.

    The work of a worker that dies is done again by another. A scheduler runs what it is sent: use
    one that only trusted people reach.
    """

    scheduler: str

    def threads(self) -> None:
        """Workers keep the number of threads that they were started with."""

    def run(
        self, experiment: Experiment, jobs: Sequence[Job], folder: Path, advance: Advance
    ) -> Done:
        """Send all jobs to the scheduler; histories are saved here as they come back."""
        with self._client() as (dask, client):
            futures = {self._submit(client, _run_away, experiment, job): job for job in jobs}
            for future in dask.as_completed(futures, loop=client.loop):
                saved = f"What was finished is saved in {folder}: "
                histories, arrays = self._result(future, saved)
                save(experiment, futures[future], folder, histories, arrays)
                yield futures[future], histories

    @property
    def width(self) -> int:
        """As many pieces as there are workers."""
        with self._client() as (_, client):
            return max(1, len(client.scheduler_info()["workers"]))

    def map(
        self, function: Callable[..., Found], work: Sequence[tuple[object, ...]]
    ) -> Iterator[tuple[int, Found]]:
        """Send everything to the scheduler."""
        with self._client() as (dask, client):
            futures = {
                self._submit(client, function, *arguments): place
                for place, arguments in enumerate(work)
            }
            for future in dask.as_completed(futures, loop=client.loop):
                yield futures[future], self._result(future, "")

    def preflight(self, experiment: Experiment) -> Preflight:
        """On one of the workers."""
        with self._client() as (_, client):
            look: Preflight = self._result(self._submit(client, preflight, experiment), "")
            return look

    @staticmethod
    def _submit(client: Any, function: Callable[..., object], *arguments: object) -> Any:
        return client.submit(_on_worker, __version__, function, *arguments, pure=False)

    def _result(self, future: Any, saved: str) -> Any:
        from distributed.scheduler import KilledWorker

        try:
            return future.result()
        except KilledWorker as error:
            again = "run again with --resume" if saved else "Run again"
            raise SojournError(
                f"several Dask workers of '{self.scheduler}' ended while they ran the same work, "
                f"perhaps for want of memory. {saved}{again}, with fewer or larger workers."
            ) from error
        except (ImportError, RuntimeError) as error:
            if not _lacks_sojourn(error):
                raise
            raise SojournError(
                f"a Dask worker of '{self.scheduler}' cannot import sojourn. Install version "
                f"{__version__} of it, with its extra 'dask', wherever workers are started."
            ) from error

    @contextmanager
    def _client(self) -> Iterator[tuple[Any, Any]]:
        """Dask, and a connection to the scheduler."""
        with naming_extras():
            import distributed
        dask: Any = distributed
        try:
            client = dask.Client(self.scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise InvalidInput(
                f"no Dask scheduler answers at '{self.scheduler}'. Start one with `dask scheduler`, "
                "workers with `dask worker ADDRESS`, and give that address as --scheduler."
            ) from error
        with client:
            yield dask, client


@dataclass(frozen=True)
class TrackedEngine:
    """An engine whose final runs are logged by a tracker as they finish; pilots are not.

    ``missed`` holds the runs that the tracker failed to take, with its error: they are saved all the
    same, and those after them are tried.
    """

    engine: Engine
    tracker: Tracker
    missed: list[tuple[History, Exception]] = field(default_factory=list)

    def threads(self) -> int | None:
        """Those of the engine."""
        return self.engine.threads()

    def preflight(self, experiment: Experiment) -> Preflight:
        """That of the engine."""
        return self.engine.preflight(experiment)

    def run(
        self, experiment: Experiment, jobs: Sequence[Job], folder: Path, advance: Advance
    ) -> Done:
        """Run ``jobs``, and log those that are no pilots."""
        for job, histories in self.engine.run(experiment, jobs, folder, advance):
            if not job.pilot:
                for history in histories:
                    try:
                        self.tracker.log(history)
                    except Exception as error:  # a server that is gone loses no results
                        self.missed.append((history, error))
            yield job, histories

    def map(
        self, function: Callable[..., Found], work: Sequence[tuple[object, ...]]
    ) -> Iterator[tuple[int, Found]]:
        """As the engine does."""
        return self.engine.map(function, work)

    @property
    def width(self) -> int:
        """That of the engine."""
        return self.engine.width


@contextmanager
def tracked(engine: Engine, track: str | None) -> Iterator[Engine]:
    """The engine, its final runs logged by the tracker that ``track`` names, if it names one."""
    if track is None:
        yield engine
        return
    tracker = make_tracker(track)
    logging = TrackedEngine(engine, tracker)
    try:
        yield logging
    finally:
        tracker.close()
    if logging.missed:
        history, error = logging.missed[0]
        raise SojournError(
            f"--track '{track}' did not take {len(logging.missed)} of the runs, first "
            f"'{run_name(history)}' ({type(error).__name__}: {error}). All runs are finished and "
            "saved; only the tracker lacks them."
        ) from error


@contextmanager
def processes_may_be_replaced() -> Iterator[None]:
    """Within, loky's warning is not shown that it replaces a process which holds much.

    It takes a data set for a leak. Nothing is lost by it.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        yield


def make_engine(name: str, *, jobs: int = 1, scheduler: str | None = None) -> Engine:
    """The engine that the command line names."""
    if name == "local":
        if scheduler is not None:
            raise InvalidInput("--scheduler goes with --engine dask")
        return LocalEngine(check_jobs(jobs))
    if name != "dask":
        raise UnknownName("engine", name, ENGINES)
    if scheduler is None:
        raise InvalidInput(
            "--engine dask needs the address of a scheduler: --scheduler tcp://HOST:8786"
        )
    return DaskEngine(scheduler)


def _on_worker(version: str, function: Callable[..., Found], *arguments: object) -> Found:
    """``function`` on a Dask worker of the same version; what is missing there is said with its name."""
    import distributed

    worker: Any = distributed
    address = worker.get_worker().address
    if version != __version__:
        raise SojournError(
            f"the Dask worker {address} has version {__version__} of sojourn, and this machine "
            f"{version}: results could differ. Install the same version."
        )
    try:
        return function(*arguments)
    except (OSError, ImportError, InvalidInput) as error:
        said = str(error) if isinstance(error, SojournError) else f"{type(error).__name__}: {error}"
        advice = (
            ". Modules beside an experiment are sent to workers; data and installed packages are "
            "not, and must be there."
        )
        missing = isinstance(error.__cause__ or error, OSError | ImportError)
        raise InvalidInput(
            f"on the Dask worker {address}: {said.rstrip('.') + advice if missing else said}"
        ) from error


def _run_away(experiment: Experiment, job: Job) -> tuple[Histories, StateArrays | None]:
    """A job on a machine that need not have its folder; with the final weights, if they are wanted."""
    (histories,) = run_jobs([(experiment, job, None)])
    return histories, final_arrays(experiment, job, histories)


def _lacks_sojourn(error: BaseException) -> bool:
    """Whether an error, or what caused it, is that there is no such package."""
    named = isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "sojourn"
    return named or (error.__cause__ is not None and _lacks_sojourn(error.__cause__))


def _placed(
    place: int, function: Callable[..., Found], arguments: tuple[object, ...]
) -> tuple[int, Found]:
    return place, function(*arguments)


def _run_in_process(
    place: int, stack: Sequence[Work], parent: int, fractions: Path
) -> tuple[int, list[Histories]]:
    tell = note(fractions, place)

    def tell_or_stop_when_orphaned(fraction: float) -> None:
        if os.getppid() != parent:
            os._exit(1)
        tell(fraction)

    return place, run_jobs(stack, tell_or_stop_when_orphaned)

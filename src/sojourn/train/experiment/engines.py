"""Where parts are run: in this process, in several, or on a Dask cluster."""

import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sojourn.errors import InvalidInput, MissingExtra, SojournError, UnknownName
from sojourn.resources import check_jobs
from sojourn.train.experiment.cells import (
    AnyPart,
    Part,
    Runs,
    Work,
    keep,
    run_abreast_and_keep,
    run_part,
)
from sojourn.train.experiment.experiment import Experiment
from sojourn.train.experiment.preflight import Preflight, preflight

SECONDS_BETWEEN_LOOKS = 0.5


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


Advance = Callable[[AnyPart, float], None]
"""Called with the fraction of a part that is done."""

Done = Iterator[tuple[AnyPart, Runs]]

ENGINES = ("local", "dask")
CONNECT_SECONDS = 10


class Engine(Protocol):
    """Runs parts, keeps their histories in a folder, and yields them as they finish."""

    def threads(self) -> int | None:
        """Threads that a part may use; ``None`` if workers know best."""

    def look(self, experiment: Experiment) -> Preflight:
        """`preflight`, where parts are run."""

    def run(
        self,
        experiment: Experiment,
        parts: Sequence[AnyPart],
        folder: Path,
        advance: Advance[AnyPart],
    ) -> Done[AnyPart]:
        """Run ``parts``; whatever was yielded is on disk."""

    def map(
        self, function: Callable[..., Any], work: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        """``function`` of every entry of ``work``, with its place, as they finish."""

    @property
    def width(self) -> int:
        """How many pieces work is worth cutting into."""


@dataclass(frozen=True)
class LocalEngine:
    """Processes on this machine, which share its cores; one job runs in this process.

    A part that was interrupted goes on from its checkpoint.
    """

    jobs: int = 1

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise InvalidInput(f"--jobs must be at least 1; it is {self.jobs}")

    def threads(self) -> int:
        """The cores, divided among the jobs."""
        from joblib import cpu_count

        return max(1, int(cpu_count()) // self.jobs)

    def look(self, experiment: Experiment) -> Preflight:
        """In this process."""
        return preflight(experiment)

    def run(
        self,
        experiment: Experiment,
        parts: Sequence[AnyPart],
        folder: Path,
        advance: Advance[AnyPart],
    ) -> Done[AnyPart]:
        """Run ``parts`` in order, or ``jobs`` of them at a time."""
        work = [[(experiment, part, folder)] for part in parts]
        for place, runs in self.run_work(work, lambda place, done: advance(parts[place], done)):
            yield parts[place], runs[0]

    def run_work(
        self,
        work: Sequence[Sequence[Work[AnyPart]]],
        advance: Callable[[int, float], None] = lambda place, done: None,
    ) -> Iterator[tuple[int, list[Runs]]]:
        """Run parts of several experiments, ``jobs`` at a time, begun in the order given.

        Those of one entry are run abreast (`run_abreast_and_keep`). Yields places in ``work`` with the
        histories there as they finish; ``advance`` hears of a place and the fraction of it that is
        done, from another thread.
        """
        if self.jobs == 1 or len(work) == 1:
            for place, together in enumerate(work):
                yield place, run_abreast_and_keep(together, _reporter(partial(advance, place)))
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
                f"finished is kept in {work[0][0][2]}: run again with --resume, and fewer --jobs."
            ) from error

    @property
    def width(self) -> int:
        """The jobs."""
        return self.jobs

    def map(
        self, function: Callable[..., Any], work: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
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
        self,
        experiment: Experiment,
        parts: Sequence[AnyPart],
        folder: Path,
        advance: Advance[AnyPart],
    ) -> Done[AnyPart]:
        """Send all parts to the scheduler; histories are kept here as they come back."""
        with self._client() as (dask, client):
            futures = {
                client.submit(run_part, experiment, part, pure=False): part for part in parts
            }
            for future in dask.as_completed(futures, loop=client.loop):
                histories = self._result(future, f"What was finished is kept in {folder}: ")
                keep(experiment, futures[future], folder, histories)
                yield futures[future], histories

    @property
    def width(self) -> int:
        """As many pieces as there are workers."""
        with self._client() as (_, client):
            return max(1, len(client.scheduler_info()["workers"]))

    def map(
        self, function: Callable[..., Any], work: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        """Send everything to the scheduler."""
        with self._client() as (dask, client):
            futures = {
                client.submit(function, *arguments, pure=False): place
                for place, arguments in enumerate(work)
            }
            for future in dask.as_completed(futures, loop=client.loop):
                yield futures[future], self._result(future, "")

    def look(self, experiment: Experiment) -> Preflight:
        """On one of the workers."""
        with self._client() as (_, client):
            look: Preflight = self._result(client.submit(preflight, experiment, pure=False), "")
            return look

    def _result(self, future: Any, kept: str) -> Any:
        from distributed.scheduler import KilledWorker

        try:
            return future.result()
        except KilledWorker as error:
            again = "run again with --resume" if kept else "Run again"
            raise SojournError(
                f"several Dask workers of '{self.scheduler}' ended while they ran the same work, "
                f"perhaps for want of memory. {kept}{again}, with fewer or larger workers."
            ) from error

    @contextmanager
    def _client(self) -> Iterator[tuple[Any, Any]]:
        """Dask, and a connection to the scheduler."""
        try:
            import distributed
        except ImportError as error:
            raise MissingExtra("distributed", extra="dask") from error
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


def _placed(
    place: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[int, Any]:
    return place, function(*arguments)


def _run_in_process(
    place: int, together: Sequence[Work[Part]], parent: int, fractions: Path
) -> tuple[int, list[Runs]]:
    tell = note(fractions, place)

    def tell_or_stop_when_orphaned(done: int, total: int) -> None:
        if os.getppid() != parent:
            os._exit(1)
        tell(done / total)

    return place, run_abreast_and_keep(together, tell_or_stop_when_orphaned)


def _reporter(advance: Callable[[float], None]) -> Callable[[int, int], None]:
    def report(done: int, total: int) -> None:
        advance(done / total)

    return report

"""Making runs of training claims together, so that no process waits for another's cell."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from joblib import Parallel, delayed

from sojourn.history import History
from sojourn.progress import Progress, Silent, by_fraction
from sojourn.reproduce.cell_runs import CellRunner
from sojourn.reproduce.settings import TrainingCell
from sojourn.reproduce.training import exponential
from sojourn.train.experiment.cells import Cell, expected_gradients, kept
from sojourn.train.experiment.engines import LocalEngine, Work, processes_may_be_replaced
from sojourn.train.experiment.run import prepare_folder, run_experiment

Wanted = Mapping[tuple[TrainingCell, str], int]
"""Under how many seeds, from 0 on, a strategy of a cell is to be run."""


def make_runs(
    runner: CellRunner,
    wanted: Wanted,
    *,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress | None = None,
) -> None:
    """Make what is wanted and is not there yet, all through one pool of processes.

    What an earlier call finished is kept, what it had begun goes on. ``say`` is told when a cell has
    its last run, ``progress`` of gradients.
    """
    begun = time.monotonic()
    work = _in_order(_prepared(runner, wanted))
    left = Counter(cell for cell, _ in work)
    owner = {(part[2], part[1]): cell for cell, part in work}
    cost = {(p[2], p[1]): expected_gradients(p[0], p[1]) for _, p in work}
    shown = progress or Silent()
    shown.start("training", sum(cost.values()))
    advance = by_fraction(shown, cost)

    def hear(part: Work[Cell], fraction: float) -> None:
        advance((part[2], part[1]), fraction)

    parts = [part for _, part in work]
    for part, _ in LocalEngine(runner.jobs).run_work(parts, hear) if parts else ():
        hear(part, 1.0)
        cell = owner[part[2], part[1]]
        left[cell] -= 1
        if not left[cell]:
            say(f"  {cell.title}: done after {time.monotonic() - begun:.0f} s")


def histories(runner: CellRunner, cell: TrainingCell, made: Wanted) -> list[History]:
    """The runs of a cell, as many of each strategy as were ``made``."""
    found: list[History] = []
    for (where, strategy), pairs in made.items():
        if where == cell:
            folder, experiment, cells = runner.runs(cell, strategy, pairs)
            found += [run for one in cells for run in kept(experiment, one, folder) or ()]
    return found


def summarize_runs(runner: CellRunner, made: Wanted) -> None:
    """Write histories and summaries of the runs that were ``made``, as `sojourn train` would."""
    engine = LocalEngine(runner.jobs)
    for (cell, strategy), pairs in made.items():
        folder, experiment, _ = runner.runs(cell, strategy, pairs)
        run_experiment(experiment, folder, engine, resume=True)


Prepared = list[tuple[TrainingCell, Work[Cell]]]


def _prepared(runner: CellRunner, wanted: Wanted) -> Prepared:
    """Measure constants, optimise routings and make folders, where it has not been done before.

    Cells that differ only in the law of service times share their constants: one process does them,
    and data set after data set, of which it keeps one.
    """
    groups: dict[TrainingCell, list[tuple[TrainingCell, str, int]]] = {}
    for (cell, strategy), pairs in sorted(wanted.items(), key=lambda entry: entry[0][0].data):
        runner.optimize(cell, strategy)
        groups.setdefault(exponential(cell), []).append((cell, strategy, pairs))
    parallel = Parallel(n_jobs=runner.jobs, backend="loky", batch_size=1)
    with processes_may_be_replaced():
        made = parallel(delayed(_prepare)(runner, group) for group in groups.values())
    return [entry for entries in made for entry in entries]


def _prepare(runner: CellRunner, runs: Sequence[tuple[TrainingCell, str, int]]) -> Prepared:
    """What is not done yet of some strategies of a cell."""
    engine = LocalEngine(runner.jobs)
    entries: Prepared = []
    for cell, strategy, pairs in runs:
        folder, experiment, singles = runner.runs(cell, strategy, pairs)
        experiment = prepare_folder(experiment, folder, engine, resume=True)
        entries += [
            (cell, (experiment, one, folder))
            for one in singles
            if kept(experiment, one, folder) is None
        ]
    return entries


def _in_order(entries: Prepared) -> Prepared:
    """Data sets with the longest runs first, then problem by problem.

    A process keeps the data set and the problem that it used last.
    """
    cost = {id(work): expected_gradients(work[0], work[1]) for _, work in entries}
    longest: dict[str, float] = {}
    for cell, work in entries:
        longest[cell.data] = max(cost[id(work)], longest.get(cell.data, 0.0))

    def place(entry: tuple[TrainingCell, Work[Cell]]) -> tuple[float, str, str, int, float]:
        cell, work = entry
        where = cell.data, exponential(cell).name, work[1].seed
        return -longest[cell.data], *where, -cost[id(work)]

    return sorted(entries, key=place)

"""Making runs of training claims together, so that no process waits for another's cell."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from joblib import Parallel, delayed

from reproduction.cell_runs import CellRunner, told_by_label, with_slowest_label
from reproduction.settings import TrainingCell
from reproduction.training import exponential
from sojourn._support.progress import Progress, Silent, by_fraction
from sojourn.runs.history import History
from sojourn.training.experiment.engines import LocalEngine, processes_may_be_replaced
from sojourn.training.experiment.jobs import Work, expected_gradients, saved
from sojourn.training.experiment.run import prepare_folder, run_experiment

MOST_ABREAST = 36
"""Runs whose gradients are computed together: beyond that stacks are large enough."""

Wanted = Mapping[tuple[TrainingCell, str], int]
"""Under how many seeds, from 0 on, a strategy of a cell is to be run."""


def make_runs(
    runner: CellRunner,
    wanted: Wanted,
    *,
    made: Wanted | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress | None = None,
) -> None:
    """Make what is wanted and is not there yet, all through one pool of processes.

    What an earlier call finished is kept; what it had begun goes on, or begins anew where runs are
    made abreast, which takes seconds. ``made`` is what was wanted before, if that is known: the others
    are then put into the same stacks whether they are saved or not, and a stack that a kill left half saved is made
    again as a whole. Floating-point results depend on the composition of a stack. ``say`` is told when a
    cell has its last run, ``progress`` of gradients.
    """
    begun = time.monotonic()
    bundles = _bundled(runner, _prepared(runner, wanted, made))
    bundles = [bundle for bundle in bundles if any(_is_missing(work) for _, work in bundle)]
    left = Counter(cell for bundle in bundles for cell, _ in bundle)
    cost = [sum(expected_gradients(*work[:2]) for _, work in bundle) for bundle in bundles]
    shown = progress or Silent()
    shown.start("training", sum(cost))
    hear = by_fraction(shown, dict(enumerate(cost)))
    work = [[work for _, work in bundle] for bundle in bundles]
    for place, _ in LocalEngine(runner.jobs).run_stacks(work, hear) if work else ():
        hear(place, 1.0)
        done = Counter(cell for cell, _ in bundles[place])
        left -= done
        for cell in done:
            if not left[cell]:
                say(f"  {cell.title}: done after {time.monotonic() - begun:.0f} s")


def histories(runner: CellRunner, cell: TrainingCell, made: Wanted) -> list[History]:
    """The runs of a cell, as many of each strategy as were ``made``."""
    found: list[History] = []
    for (where, strategy), pairs in made.items():
        if where == cell:
            folder, experiment, cells = runner.runs(cell, strategy, pairs)
            for one in cells:
                runs = saved(experiment, one, folder) or ()
                if told_by_label(cell):
                    runs = tuple(with_slowest_label(experiment, one, folder, r) for r in runs)
                found += runs
    return found


def summarize_runs(runner: CellRunner, made: Wanted) -> None:
    """Write histories and summaries of the runs that were ``made``, as `sojourn train` would."""
    engine = LocalEngine(runner.jobs)
    for (cell, strategy), pairs in made.items():
        folder, experiment, _ = runner.runs(cell, strategy, pairs)
        run_experiment(experiment, folder, engine, resume=True)


Prepared = list[tuple[TrainingCell, Work]]


def _is_missing(work: Work) -> bool:
    experiment, job, folder = work
    return folder is None or saved(experiment, job, folder) is None


def _prepared(runner: CellRunner, wanted: Wanted, before: Wanted | None) -> Prepared:
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
        made = parallel(delayed(_prepare)(runner, group, before) for group in groups.values())
    return [entry for entries in made for entry in entries]


def _prepare(
    runner: CellRunner, runs: Sequence[tuple[TrainingCell, str, int]], before: Wanted | None
) -> Prepared:
    """What was not wanted before of some strategies of a cell, or if that is not known what is missing."""
    engine = LocalEngine(runner.jobs)
    entries: Prepared = []
    for cell, strategy, pairs in runs:
        folder, experiment, singles = runner.runs(cell, strategy, pairs)
        experiment = prepare_folder(experiment, folder, engine, resume=True)
        work = [(experiment, one, folder) for one in singles]
        if before is None:
            work = [entry for entry in work if _is_missing(entry)]
        else:
            work = [entry for entry in work if entry[1].seed >= before.get((cell, strategy), 0)]
        entries += [(cell, entry) for entry in work]
    return entries


def _bundled(runner: CellRunner, entries: Prepared) -> list[Prepared]:
    """The runs of a few seeds of one problem together, if their model is small; else each by itself.

    In order: data sets with the longest runs first, then problem by problem, since a process keeps
    the data set and the problem that it used last.
    """
    cost = {id(work): expected_gradients(*work[:2]) for _, work in entries}
    longest: dict[str, float] = {}
    for cell, work in entries:
        longest[cell.data] = max(cost[id(work)], longest.get(cell.data, 0.0))

    def place(entry: tuple[TrainingCell, Work]) -> tuple[float, str, str, int]:
        cell, work = entry
        return -longest[cell.data], cell.data, exponential(cell).name, work[1].seed

    bundles: list[Prepared] = []
    for _, group in groupby(sorted(entries, key=place), key=place):
        runs = sorted(group, key=lambda entry: -cost[id(entry[1])])
        cell = runs[0][0]
        if not runner.small(cell.data):
            bundles += [[run] for run in runs]
        elif bundles and _joins(cell, bundles[-1], len(runs)):
            bundles[-1] += runs
        else:
            bundles.append(runs)
    return bundles


def _joins(cell: TrainingCell, bundle: Prepared, runs: int) -> bool:
    """Whether so many ``runs`` of a cell find room beside those of the same problem, other seeds."""
    same = exponential(bundle[-1][0]) == exponential(cell)
    return same and len(bundle) + runs <= MOST_ABREAST

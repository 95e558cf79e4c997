"""Running the cells of a training claim together, so that no process waits for another's cell."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from joblib import Parallel, delayed

from sojourn.errors import DataNotFound
from sojourn.history import History
from sojourn.progress import Progress, Silent, by_fraction
from sojourn.reproduce.cell_runs import CellRunner
from sojourn.reproduce.settings import TrainingCell
from sojourn.reproduce.training import Missing, exponential
from sojourn.runfolder import RunFolder
from sojourn.train.experiment.build import dataset
from sojourn.train.experiment.cells import Cell, expected_gradients, kept
from sojourn.train.experiment.engines import LocalEngine, Work, processes_may_be_replaced
from sojourn.train.experiment.experiment import Experiment
from sojourn.train.experiment.run import prepare_folder, run_experiment

Prepared = list[tuple[Path, Experiment]]
"""The experiments of a cell, each with its folder."""


def run_cells(
    runner: CellRunner,
    cells: Sequence[TrainingCell],
    also: Sequence[str] = (),
    *,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress | None = None,
) -> dict[TrainingCell, list[History] | Missing]:
    """The runs of every cell, or why there are none.

    What an earlier call finished is kept, what it had begun goes on. All runs of all cells go
    through one pool of processes; ``say`` is told when a cell has its last, ``progress`` of gradients.
    """
    begun = time.monotonic()
    prepared = _prepare_all(runner, cells, also)
    for cell, made in prepared.items():
        if isinstance(made, Missing):
            say(f"  {cell.title}: {made.reason}")
    present = {cell: made for cell, made in prepared.items() if not isinstance(made, Missing)}
    owner = {folder: cell for cell, made in present.items() for folder, _ in made}
    work = _in_order(present)
    left = Counter(owner[folder] for _, _, folder in work)
    engine = LocalEngine(runner.jobs)
    shown = progress or Silent()
    cost = {(folder, one): expected_gradients(experiment, one) for experiment, one, folder in work}
    shown.start("training", sum(cost.values()))
    advance = by_fraction(shown, cost)

    def hear(part: Work, fraction: float) -> None:
        advance((part[2], part[1]), fraction)

    for part, _ in engine.run_work(work, hear) if work else ():
        hear(part, 1.0)
        cell = owner[part[2]]
        left[cell] -= 1
        if not left[cell]:
            say(f"  {cell.title}: done after {time.monotonic() - begun:.0f} s")
    return {
        cell: made if isinstance(made, Missing) else _results(made, engine)
        for cell, made in prepared.items()
    }


def _prepare_all(
    runner: CellRunner, cells: Sequence[TrainingCell], also: Sequence[str]
) -> dict[TrainingCell, Prepared | Missing]:
    """Measure constants, optimise routings and make folders, where it has not been done before.

    Cells that differ only in the law of service times share their constants: one process does them.
    """
    groups: dict[TrainingCell, list[TrainingCell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.data):
        groups.setdefault(exponential(cell), []).append(cell)
    parallel = Parallel(n_jobs=runner.jobs, backend="loky", batch_size=1)
    with processes_may_be_replaced():
        made = parallel(delayed(_prepare)(runner, group, also) for group in groups.values())
    found = dict(pair for pairs in made for pair in pairs)
    return {cell: found[cell] for cell in cells}


def _prepare(
    runner: CellRunner, cells: Sequence[TrainingCell], also: Sequence[str]
) -> list[tuple[TrainingCell, Prepared | Missing]]:
    engine = LocalEngine(runner.jobs)
    try:
        dataset(cells[0].data, runner.data_folder)
    except DataNotFound as error:
        return [(cell, Missing(str(error))) for cell in cells]
    return [
        (
            cell,
            [
                (folder, prepare_folder(experiment, folder, engine, resume=True))
                for folder, experiment in runner.experiments(cell, also)
            ],
        )
        for cell in cells
    ]


def _in_order(prepared: Mapping[TrainingCell, Prepared]) -> list[Work]:
    """What is not done yet: data sets with the longest runs first, then problem by problem.

    A process keeps the data set and the problem that it used last.
    """
    entries: list[tuple[TrainingCell, float, Work]] = []
    for cell, made in prepared.items():
        for folder, experiment in made:
            for i, strategy in enumerate(experiment.strategies):
                for seed in experiment.seeds:
                    one = Cell(i, seed, strategy.learning_rates[0])
                    if kept(experiment, one, folder) is None:
                        cost = expected_gradients(experiment, one)
                        entries.append((cell, cost, (experiment, one, folder)))
    longest: dict[str, float] = {}
    for cell, cost, _ in entries:
        longest[cell.data] = max(cost, longest.get(cell.data, 0.0))

    def place(entry: tuple[TrainingCell, float, Work]) -> tuple[float, str, str, int, float]:
        cell, cost, (_, one, _) = entry
        return -longest[cell.data], cell.data, exponential(cell).name, one.seed, -cost

    return [work for _, _, work in sorted(entries, key=place)]


def _results(made: Prepared, engine: LocalEngine) -> list[History]:
    """The histories of finished experiments, which also get their summaries."""
    histories: list[History] = []
    for folder, experiment in made:
        run_experiment(experiment, folder, engine, resume=True)
        histories += RunFolder(folder).histories
    return histories

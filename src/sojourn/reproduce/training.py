"""Claims 3, 6, 7, 8 and 9: training runs, compared strategy by strategy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sojourn.config import Table
from sojourn.errors import InvalidFile
from sojourn.figure import Figure, Table as ReportTable
from sojourn.history import History
from sojourn.report.curves import learning_figure
from sojourn.report.sections import results_table
from sojourn.reproduce.claims import Judged
from sojourn.reproduce.measures import (
    accuracy_throughout,
    by_strategy,
    final_accuracy,
    judge_alike,
    judge_higher,
    judge_steadier,
)
from sojourn.reproduce.palette import label, marked_label
from sojourn.reproduce.settings import Settings, TrainingCell
from sojourn.reproduce.verdict import Statement

ENOUGH = 0.1
"""The share of the paper's rounds or time below which a run tells nothing about the paper's."""

MEASURES = ("final", "mean", "steadier", "alike", "insensitive")


@dataclass(frozen=True)
class Comparison:
    """A statement about strategies, and the cells about which the paper makes it."""

    says: str
    measure: str
    strategy: str
    over: tuple[str, ...]
    reading: str
    settings: tuple[str, ...]
    partitions: tuple[str, ...]

    def concerns(self, cell: TrainingCell) -> bool:
        """Whether the statement is about this cell."""
        return (not self.settings or cell.setting in self.settings) and (
            not self.partitions or cell.partition in self.partitions
        )


@dataclass(frozen=True)
class TrainingClaim:
    """The parameters of a training claim."""

    cells: tuple[TrainingCell, ...]
    left_out: tuple[TrainingCell, ...]
    also: tuple[str, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def needed(self) -> tuple[TrainingCell, ...]:
        """The cells to run: the claim's own, and those under the exponential law to compare with."""
        cells = list(self.cells)
        if any(comparison.measure == "insensitive" for comparison in self.comparisons):
            cells += [exponential(cell) for cell in self.cells]
        return tuple(dict.fromkeys(cells))


@dataclass(frozen=True)
class Missing:
    """Why a cell has no runs."""

    reason: str


Results = Mapping[TrainingCell, Sequence[History] | Missing]
"""The runs of every cell that was needed, or why there are none."""


def read_training(parameters: Table, scale: str) -> TrainingClaim:
    """The parameters of a training claim at ``scale``."""
    setting = parameters.take("setting", str)
    also = tuple(parameters.take("also", list, default=[]))
    cells: list[TrainingCell] = []
    left_out: list[TrainingCell] = []
    for table in parameters.tables("cell"):
        scales = table.take("scales", list, default=["quick", "paper"])
        cell = TrainingCell(
            data=table.take("data", str),
            partition=table.take("partition", str),
            setting=table.take("setting", str, default=setting),
            law=table.take("law", str, default="exponential"),
        )
        table.close()
        (cells if scale in scales else left_out).append(cell)
    comparisons = []
    for table in parameters.tables("statement"):
        comparison = Comparison(
            says=table.take("says", str),
            measure=table.take("measure", str),
            strategy=table.take("strategy", str),
            over=tuple(table.take("over", list)),
            reading=table.take("reading", str, default=""),
            settings=tuple(table.take("settings", list, default=[])),
            partitions=tuple(table.take("partitions", list, default=[])),
        )
        table.close()
        if comparison.measure not in MEASURES:
            raise InvalidFile(f"{table.where}: '{comparison.measure}' is no measure")
        comparisons.append(comparison)
    parameters.close()
    return TrainingClaim(tuple(cells), tuple(left_out), also, tuple(comparisons))


def exponential(cell: TrainingCell) -> TrainingCell:
    """The same cell under the exponential law."""
    return TrainingCell(cell.data, cell.partition, cell.setting)


def judge(claim: TrainingClaim, results: Results, settings: Settings) -> tuple[Statement, ...]:
    """Every comparison in every cell it is about."""
    statements = []
    for comparison in claim.comparisons:
        for cell in (*claim.cells, *claim.left_out):
            if not comparison.concerns(cell):
                continue
            judged = (
                _as_far_as_told(_judge_cell(comparison, cell, results, settings), cell, settings)
                if cell in claim.cells
                else Judged("Not run at this scale.", "cannot be told here")
            )
            said = f"{comparison.says}.", judged.found, judged.outcome
            statements.append(Statement(*said, reading=comparison.reading, about=cell.title))
    return tuple(statements)


def figures(
    number: str, cells: Sequence[TrainingCell], results: Results, settings: Settings
) -> tuple[Figure, ...]:
    """One figure per cell that has runs, against the setting's own axis first."""
    drawn = []
    for cell, runs, axis in _with_runs(cells, results, settings):
        name = f"claim-{number}-{cell.name.replace('.', '-')}"
        title = f"{cell.title}{' (against time)' if axis == 'time' else ''}"
        drawn.append(learning_figure(name, title, runs, axis=axis, label=marked_label))
    return tuple(drawn)


def tables(
    cells: Sequence[TrainingCell], results: Results, settings: Settings
) -> tuple[ReportTable, ...]:
    """The numbers of every cell that has runs."""
    made = []
    for cell, runs, axis in _with_runs(cells, results, settings):
        table = results_table(runs, axis=axis, settled=True, label=marked_label)
        made.append(replace(table, title=cell.title))
    return tuple(made)


def _with_runs(
    cells: Sequence[TrainingCell], results: Results, settings: Settings
) -> Iterator[tuple[TrainingCell, Sequence[History], str]]:
    """Every cell that has runs, with them and the axis of its setting."""
    for cell in cells:
        runs = results[cell]
        if not isinstance(runs, Missing):
            yield cell, runs, settings.settings[cell.setting].axis


def _as_far_as_told(judged: Judged, cell: TrainingCell, settings: Settings) -> Judged:
    """Runs much shorter than the paper's decide nothing, neither for the paper nor against it."""
    share = settings.share(cell)
    if share >= ENOUGH or judged.outcome == "data not found":
        return judged
    found = f"{judged.found} After {share:.1%} of the paper's length, too early to tell."
    return Judged(found, "cannot be told here")


def _judge_cell(
    comparison: Comparison, cell: TrainingCell, results: Results, settings: Settings
) -> Judged:
    runs = results[cell]
    if isinstance(runs, Missing):
        return Judged(runs.reason, "data not found")
    grouped = by_strategy(runs)
    axis = settings.settings[cell.setting].axis
    if comparison.measure == "insensitive":
        return _judge_insensitive(comparison, grouped, results[exponential(cell)])
    if comparison.measure == "steadier":
        return judge_steadier(grouped, comparison.strategy, comparison.over, axis)
    if comparison.measure == "alike":
        own = grouped[comparison.strategy]
        return judge_alike(
            {
                f"{label(comparison.strategy)} - {label(r)}": (own, grouped[r])
                for r in comparison.over
            }
        )
    measure: Callable[[History], float] = final_accuracy
    if comparison.measure == "mean":
        measure = partial(accuracy_throughout, axis=axis)
    return judge_higher(grouped, comparison.strategy, comparison.over, measure)


def _judge_insensitive(
    comparison: Comparison,
    grouped: Mapping[str, Sequence[History]],
    reference: Sequence[History] | Missing,
) -> Judged:
    if isinstance(reference, Missing):
        return Judged(reference.reason, "data not found")
    others = by_strategy(reference)
    shared = [name for name in comparison.over if name in grouped and name in others]
    return judge_alike({label(name): (grouped[name], others[name]) for name in shared})

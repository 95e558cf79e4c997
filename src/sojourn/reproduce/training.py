"""Claims 3 and 6 to 10: training runs, compared strategy by strategy."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sojourn.comparison import Looks
from sojourn.config import Table
from sojourn.errors import InvalidFile
from sojourn.figure import Figure, Table as ReportTable
from sojourn.history import History
from sojourn.report.curves import learning_figure
from sojourn.report.sections import results_table
from sojourn.reproduce.checks import above, alike
from sojourn.reproduce.claims import Judged
from sojourn.reproduce.measures import (
    ALIKE,
    Spread,
    accuracy_throughout,
    by_strategy,
    difference,
    final_accuracy,
    judged,
    paired,
)
from sojourn.reproduce.palette import label, marked_label
from sojourn.reproduce.settings import Settings, TrainingCell
from sojourn.reproduce.verdict import Outcome, Statement

ENOUGH = 0.1
"""The share of the paper's rounds or time below which a run tells nothing about the paper's."""

POINTS = 32
"""Of a curve: there are hundreds of them."""

MEASURES = ("final", "mean", "steadier", "alike", "insensitive")


@dataclass(frozen=True)
class Comparison:
    """A statement about strategies, and the cells about which the paper makes it.

    ``by`` is how much more accurate the strategy is said to be.
    """

    says: str
    measure: str
    strategy: str
    over: tuple[str, ...]
    reading: str
    settings: tuple[str, ...]
    partitions: tuple[str, ...]
    by: float = 0.0

    def concerns(self, cell: TrainingCell) -> bool:
        """Whether the statement is about this cell."""
        return (not self.settings or cell.setting in self.settings) and (
            not self.partitions or cell.partition in self.partitions
        )

    def runs(self, cell: TrainingCell, settings: Settings) -> tuple[tuple[TrainingCell, str], ...]:
        """The runs that the statement about this cell rests on: cells and strategies."""
        if self.measure != "insensitive":
            return tuple((cell, name) for name in (self.strategy, *self.over))
        names = [n for n in self.over if n in settings.settings[cell.setting].strategies]
        return tuple((where, name) for where in (cell, exponential(cell)) for name in names)


@dataclass(frozen=True)
class TrainingClaim:
    """The parameters of a training claim."""

    cells: tuple[TrainingCell, ...]
    also: tuple[str, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def statements(self) -> tuple[tuple[Comparison, TrainingCell], ...]:
        """Every comparison with every cell it is about."""
        return tuple((c, cell) for c in self.comparisons for cell in self.cells if c.concerns(cell))

    @property
    def needed(self) -> tuple[TrainingCell, ...]:
        """The cells to run: the claim's own, and those under the exponential law to compare with."""
        cells = list(self.cells)
        if any(comparison.measure == "insensitive" for comparison in self.comparisons):
            cells += [exponential(cell) for cell in self.cells]
        return tuple(dict.fromkeys(cells))


@dataclass(frozen=True)
class Missing:
    """Why a cell has no runs: its data are not here, or its turn did not come."""

    reason: str
    outcome: Outcome = "data not found"


OUT_OF_BUDGET = Missing("Not run within the budget.", "cannot be told here")


@dataclass(frozen=True)
class Case:
    """A statement about one cell, and what was found about it."""

    comparison: Comparison
    cell: TrainingCell
    judged: Judged


Results = Mapping[TrainingCell, Sequence[History] | Missing]
"""The runs of every cell that was needed, or why there are none."""


def read_training(parameters: Table) -> TrainingClaim:
    """The parameters of a training claim."""
    setting = parameters.take("setting", str)
    also = tuple(parameters.take("also", list, default=[]))
    cells: list[TrainingCell] = []
    for table in parameters.tables("cell"):
        cells.append(
            TrainingCell(
                data=table.take("data", str),
                partition=table.take("partition", str),
                setting=table.take("setting", str, default=setting),
                law=table.take("law", str, default="exponential"),
            )
        )
        table.close()
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
            by=table.take("by", float, default=0.0),
        )
        table.close()
        if comparison.measure not in MEASURES:
            raise InvalidFile(f"{table.where}: '{comparison.measure}' is no measure")
        comparisons.append(comparison)
    parameters.close()
    return TrainingClaim(tuple(cells), also, tuple(comparisons))


def exponential(cell: TrainingCell) -> TrainingCell:
    """The same cell under the exponential law."""
    return TrainingCell(cell.data, cell.partition, cell.setting)


def judge(claim: TrainingClaim, results: Results, settings: Settings) -> tuple[Statement, ...]:
    """Every comparison in every cell it is about."""
    return tuple(
        Statement(
            f"{case.comparison.says}.",
            case.judged.found,
            case.judged.outcome,
            reading=case.comparison.reading,
            about=case.cell.title,
            compared=case.judged.compared,
            needs=case.judged.needs,
        )
        for case in cases(claim, results, settings)
    )


def cases(claim: TrainingClaim, results: Results, settings: Settings) -> tuple[Case, ...]:
    """The same, each beside what it is about."""
    return tuple(
        Case(comparison, cell, _as_far_as_told(comparison, cell, results, settings))
        for comparison, cell in claim.statements
    )


def figures(
    number: str, cells: Sequence[TrainingCell], results: Results, settings: Settings
) -> tuple[Figure, ...]:
    """One figure per cell that has runs, against the setting's own axis first."""
    drawn = []
    for cell, runs, axis in _with_runs(cells, results, settings):
        name = f"claim-{number}-{cell.name.replace('.', '-')}"
        title = f"{cell.title}{' (against time)' if axis == 'time' else ''}"
        drawn.append(
            learning_figure(name, title, runs, axis=axis, label=marked_label, points=POINTS)
        )
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


def _as_far_as_told(
    comparison: Comparison, cell: TrainingCell, results: Results, settings: Settings
) -> Judged:
    """Runs much shorter than the paper's decide nothing, neither for the paper nor against it."""
    found = _judge_cell(comparison, cell, results, settings)
    if not found.compared or long_enough(cell, settings):
        return found
    text = (
        f"{found.found} After {settings.share(cell):.1%} of the paper's length, too early to tell."
    )
    return Judged(text, "cannot be told here", found.compared)


def long_enough(cell: TrainingCell, settings: Settings) -> bool:
    """Whether the runs of a cell last long enough for their results to count."""
    return settings.share(cell) >= ENOUGH


def _judge_cell(
    comparison: Comparison, cell: TrainingCell, results: Results, settings: Settings
) -> Judged:
    missing = _missing(comparison, cell, results, settings)
    if missing is not None:
        return Judged(missing.reason, missing.outcome)
    grouped = _grouped(results[cell])
    axis = settings.settings[cell.setting].axis
    looks = settings.sizes[cell.data].looks
    if comparison.measure == "insensitive":
        others = _grouped(results[exponential(cell)])
        shared = [name for name in comparison.over if name in grouped and name in others]
        return _judge_alike({label(n): (grouped[n], others[n]) for n in shared}, looks)
    own, name = grouped[comparison.strategy], label(comparison.strategy)
    rivals = {label(rival): grouped[rival] for rival in comparison.over}
    if comparison.measure == "alike":
        return _judge_alike({f"{name} - {r}": (own, runs) for r, runs in rivals.items()}, looks)
    if comparison.measure == "steadier":
        spreads = [Spread(r, *paired(own, runs), axis) for r, runs in rivals.items()]
        opening = f"Distances from the median loss, as multiples of those of {name}: "
        return judged(spreads, looks, partial(above, bound=1.0), opening)
    measure = final_accuracy
    if comparison.measure == "mean":
        measure = partial(accuracy_throughout, axis=axis)
    bound = comparison.by
    gains = [difference(f"over {r}", own, runs, measure, (bound,)) for r, runs in rivals.items()]
    mean = sum(map(measure, own)) / len(own)
    opening = f"{name} {mean:.1%}; points "
    return judged(gains, looks, partial(above, bound=bound), opening)


def _missing(
    comparison: Comparison, cell: TrainingCell, results: Results, settings: Settings
) -> Missing | None:
    """Why some of the runs that a statement rests on are not there; ``None`` if all are."""
    for where, name in comparison.runs(cell, settings):
        runs = results[where]
        if isinstance(runs, Missing):
            return runs
        if all(run.strategy != name for run in runs):
            return OUT_OF_BUDGET
    return None


def _grouped(runs: Sequence[History] | Missing) -> dict[str, list[History]]:
    return {} if isinstance(runs, Missing) else by_strategy(runs)


def _judge_alike(
    pairs: Mapping[str, tuple[Sequence[History], Sequence[History]]], looks: Looks
) -> Judged:
    """Whether final accuracies of paired runs agree within five points, intervals included."""
    contrasts = [
        difference(name, runs, others, final_accuracy, (-ALIKE, ALIKE))
        for name, (runs, others) in pairs.items()
    ]
    return judged(contrasts, looks, partial(alike, within=ALIKE), "Differences in points: ")

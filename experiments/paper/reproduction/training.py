"""Claims 3 and 6 to 10: training runs, compared strategy by strategy."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from reproduction.checks import above, alike
from reproduction.claims import Judged, read_claims
from reproduction.intervals import SequentialIntervals
from reproduction.measures import (
    ALIKE,
    Spread,
    accuracy_throughout,
    at_same_time,
    by_strategy,
    difference,
    final_accuracy,
    judged,
    paired,
    slowest_label,
    spikes,
)
from reproduction.palette import label, marked_label
from reproduction.results import results_table
from reproduction.settings import Settings, TrainingCell
from reproduction.verdict import Finding, Outcome, Statement
from sojourn._support.configuration import Table
from sojourn.errors import InvalidFile
from sojourn.figures.figure import Figure, Series, Table as ReportTable
from sojourn.report.outcomes import finished, learning_figure
from sojourn.runs.history import History

ENOUGH = 0.1
"""The share of the paper's rounds or time below which a run tells nothing about the paper's."""

SMALLEST_IMAGE = 0.25
"""The share of the pixels of a data set's own images below which training tells nothing about the paper's."""

POINTS = 32
"""Of a curve: there are hundreds of them."""

BANDS = "Means over runs; bands are one standard deviation, as in the paper."

MEASURES = (
    *("final", "mean", "same-time", "steadier", "spikes", "unbiased", "alike", "insensitive"),
)


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


OUT_OF_BUDGET = Missing("Not run within the budget.", "inconclusive")


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
            size=settings.size_in_words(case.cell),
        )
        for case in cases(claim, results, settings)
    )


def cases(claim: TrainingClaim, results: Results, settings: Settings) -> tuple[Case, ...]:
    """The same, each beside what it is about."""
    return tuple(
        Case(comparison, cell, _as_far_as_told(comparison, cell, results, settings))
        for comparison, cell in claim.statements
    )


def read_finding(folder: Path) -> Finding:
    """Read a finding, with statements about runs that are too small judged by today's rule.

    A finding that was saved under an older rule has the intervals, from which the rule takes nothing but
    that there are some; its runs are not needed.
    """
    finding = Finding.read(folder)
    claim = next((claim for claim in read_claims() if claim.number == finding.claim), None)
    if claim is None or claim.computes != "training":
        return finding
    settings = Settings.read(finding.scale)
    asked = read_training(Table(dict(claim.parameters.values), claim.parameters.where))
    cases = {(f"{c.says}.", cell.title): (c, cell) for c, cell in asked.statements}
    judged_again = []
    for statement in finding.statements:
        one = statement
        case = cases.get((statement.says, statement.about))
        if case is not None:
            one = replace(one, size=settings.size_in_words(case[1]))
            reason = too_small(*case, settings) if one.compared else ""
            if reason and reason not in one.found:
                found = f"{one.found} {reason}"
                one = replace(one, found=found, outcome="inconclusive", needs=None)
        judged_again.append(one)
    return replace(finding, statements=tuple(judged_again))


def figures(
    number: str, cells: Sequence[TrainingCell], results: Results, settings: Settings
) -> tuple[Figure, ...]:
    """One figure per cell that has runs, against the setting's own axis first."""
    drawn = []
    for cell, runs, axis in _with_runs(cells, results, settings):
        name = f"claim-{number}-{cell.name.replace('.', '-')}"
        title = f"{cell.title}{' (against time)' if axis == 'time' else ''}"
        curves = learning_figure(name, title, runs, axis=axis, label=marked_label, points=POINTS)
        drawn.append(with_deviations(curves, runs))
    return tuple(drawn)


def with_deviations(figure: Figure, runs: Sequence[History]) -> Figure:
    """A figure of learning with bands of one standard deviation over runs, as the paper's, not one error.

    On a logarithmic scale it is the deviation of the logarithm. Runs that diverged are left out, unless
    all of a strategy did.
    """
    numbers = {n: len(finished(own) or own) for n, own in by_strategy(runs).items()}
    views = tuple(
        replace(view, series=tuple(_widened(s, view.log_y, numbers[s.name]) for s in view.series))
        for view in figure.views
    )
    return replace(figure, views=views, caption=BANDS)


def _widened(series: Series, log: bool, number: int) -> Series:
    if series.low is None or series.high is None:
        return series
    factor = math.sqrt(number)
    if log:
        low = series.y * (series.low / series.y) ** factor
        high = series.y * (series.high / series.y) ** factor
    else:
        low = series.y - factor * (series.y - series.low)
        high = series.y + factor * (series.high - series.y)
    return replace(series, low=low, high=high)


def tables(
    cells: Sequence[TrainingCell], results: Results, settings: Settings
) -> tuple[ReportTable, ...]:
    """The numbers of every cell that has runs."""
    made = []
    for cell, runs, axis in _with_runs(cells, results, settings):
        made.append(results_table(runs, axis=axis, label=marked_label, title=cell.title))
    return tuple(made)


def _with_runs(
    cells: Sequence[TrainingCell], results: Results, settings: Settings
) -> Iterator[tuple[TrainingCell, Sequence[History], str]]:
    """Every cell that has runs, with them and the axis of its setting."""
    for cell in cells:
        runs = results[cell]
        if not isinstance(runs, Missing):
            shown = [replace(run, metrics={}) for run in runs]
            yield cell, shown, settings.settings[cell.setting].axis


def _as_far_as_told(
    comparison: Comparison, cell: TrainingCell, results: Results, settings: Settings
) -> Judged:
    """Runs much smaller than the paper's decide nothing, neither for the paper nor against it."""
    found = _judge_cell(comparison, cell, results, settings)
    reason = too_small(comparison, cell, settings) if found.compared else ""
    if not reason:
        return found
    return Judged(f"{found.found} {reason}", "inconclusive", found.compared)


def too_small(comparison: Comparison, cell: TrainingCell, settings: Settings) -> str:
    """Why the runs of a cell decide nothing, whatever a test says; empty where they may."""
    if not long_enough(cell, settings):
        return f"After {settings.share(cell):.1%} of the paper's length, too early to tell."
    if settings.image_share(cell) < SMALLEST_IMAGE:
        return (
            f"With {settings.image_share(cell):.0%} of the pixels of an image, too small to tell, "
            "whatever the test says."
        )
    if comparison.by > 0.0 and settings.reduced:
        return "Reduced runs check trends, not numbers of points."
    return ""


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
    looks = settings.looks(cell)
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
    if comparison.measure == "same-time":
        gains = [at_same_time(f"over {r}", own, runs) for r, runs in rivals.items()]
        return judged(gains, looks, above, f"{name}, when the faster of two runs ends; points ")
    if comparison.measure == "spikes":
        counted = [difference(r, runs, own, spikes, unit="spikes") for r, runs in rivals.items()]
        mean = sum(map(spikes, own)) / len(own)
        return judged(counted, looks, above, f"{name} {mean:.1f} spikes in a run; more under ")
    if comparison.measure == "unbiased":
        favours = [
            difference(f"than {r}", runs, own, slowest_label, (-ALIKE,))
            for r, runs in rivals.items()
        ]
        opening = f"By how many points {name} favours the slowest client's label less "
        return judged(favours, looks, partial(above, bound=-ALIKE), opening)
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
    pairs: Mapping[str, tuple[Sequence[History], Sequence[History]]], looks: SequentialIntervals
) -> Judged:
    """Whether final accuracies of paired runs agree within five points, intervals included."""
    contrasts = [
        difference(name, runs, others, final_accuracy, (-ALIKE, ALIKE))
        for name, (runs, others) in pairs.items()
    ]
    return judged(contrasts, looks, partial(alike, within=ALIKE), "Differences in points: ")

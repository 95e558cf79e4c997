"""What training runs are compared by, and how a statement about strategies is judged on pairs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from reproduction.checks import together
from reproduction.claims import Judged
from reproduction.intervals import Interval, SequentialIntervals
from reproduction.results import mean_value, settled_value
from reproduction.verdict import Compared, Outcome
from sojourn.report.outcomes import on_one_grid
from sojourn.runs.comparison import LEVEL
from sojourn.runs.history import History
from sojourn.types import FloatArray

ALIKE = 0.05
"""Accuracies that differ by less than this are alike."""

SPIKE = 1.1
"""A rise of the loss by this factor from one evaluation to the next is a spike."""

SLOWEST_LABEL = "slowest_label"
"""How much better the label of the slowest client is told than the other labels, at the end of a run."""

Decide = Callable[[Interval], Outcome]


class Contrast(Protocol):
    """Two strategies (or laws) of which the paper says something, to be looked at pair by pair."""

    @property
    def about(self) -> str:
        """Which two."""

    @property
    def pairs(self) -> int:
        """How many there are."""

    def at(self, looks: SequentialIntervals, pairs: int, level: float) -> Interval:
        """The interval of the first ``pairs``."""

    def compared(self, interval: Interval) -> Compared:
        """An interval in words and units."""

    def needed(self, looks: SequentialIntervals, interval: Interval, level: float) -> float:
        """About how many pairs would tell, if differences are as they were seen."""


@dataclass(frozen=True)
class Difference:
    """Accuracies under the same seeds, one minus the other; to be told from ``bounds``.

    Or something else that is counted in a ``unit`` of its own.
    """

    about: str
    values: tuple[float, ...]
    bounds: tuple[float, ...] = (0.0,)
    unit: str = "points"

    @property
    def pairs(self) -> int:
        """How many there are."""
        return len(self.values)

    def at(self, looks: SequentialIntervals, pairs: int, level: float) -> Interval:
        """By a paired t-test."""
        return looks.of_difference(self.values[:pairs], level)

    def compared(self, interval: Interval) -> Compared:
        """In points of accuracy, or in the unit."""
        scale = 100.0 if self.unit == "points" else 1.0
        return Compared.of(self.about, self.unit, interval, scale=scale)

    def needed(self, looks: SequentialIntervals, interval: Interval, level: float) -> float:
        """From the gap to the nearest bound, and the scatter of the pairs."""
        gap = min(abs(interval.estimate - bound) for bound in self.bounds)
        deviation = float(np.std(self.values[: interval.pairs], ddof=1))
        return looks.needed(gap, deviation, level, made=interval.pairs)


@dataclass(frozen=True, eq=False)
class Spread:
    """How much more the loss varies between the runs of a ``rival`` than between one's ``own``.

    Every run has a distance from the median of its strategy's runs, and of a pair of runs the ratio of
    their distances is looked at, in logarithms. So a run counts as much as its course has independent
    parts, and the errors hold for losses with heavy tails, for which an F-test's do not.
    """

    about: str
    own: tuple[History, ...]
    rival: tuple[History, ...]
    axis: str

    @property
    def pairs(self) -> int:
        """How many there are."""
        return min(len(self.own), len(self.rival))

    def at(self, looks: SequentialIntervals, pairs: int, level: float) -> Interval:
        """By a paired t-test of logarithms."""
        found = looks.of_difference(self._ratios(pairs).tolist(), level)
        estimate, low, high = np.exp([found.estimate, found.low, found.high]).tolist()
        return Interval(estimate, low, high, pairs)

    def compared(self, interval: Interval) -> Compared:
        """As a ratio of distances."""
        return Compared.of(self.about, "times", interval)

    def needed(self, looks: SequentialIntervals, interval: Interval, level: float) -> float:
        """From the ratios as they were seen."""
        ratios = self._ratios(interval.pairs)
        if not np.isfinite(ratios).all():
            return math.inf
        gap, deviation = abs(float(ratios.mean())), float(ratios.std(ddof=1))
        return looks.needed(gap, deviation, level, made=interval.pairs)

    def _ratios(self, pairs: int) -> FloatArray:
        both = self.rival[:pairs], self.own[:pairs]
        if any(run.diverged_at is not None for runs in both for run in runs):
            return np.full(pairs, math.nan)
        losses = (on_one_grid(runs, "test_loss", axis=self.axis)[1] for runs in both)
        return log_ratios(*losses)


def by_strategy(histories: Sequence[History]) -> dict[str, list[History]]:
    """Runs grouped by strategy, ordered by seed."""
    grouped: dict[str, list[History]] = {}
    for history in sorted(histories, key=lambda history: history.seed):
        grouped.setdefault(history.strategy, []).append(history)
    return grouped


def paired(
    first: Sequence[History], second: Sequence[History]
) -> tuple[tuple[History, ...], tuple[History, ...]]:
    """The runs of two strategies under the seeds that both were run with, in order of seeds."""
    one, other = ({run.seed: run for run in runs} for runs in (first, second))
    seeds = sorted({*one} & {*other})
    return tuple(one[seed] for seed in seeds), tuple(other[seed] for seed in seeds)


def difference(
    about: str,
    first: Sequence[History],
    second: Sequence[History],
    measure: Callable[[History], float],
    bounds: tuple[float, ...] = (0.0,),
    unit: str = "points",
) -> Difference:
    """How much larger ``measure`` is for the first, seed by seed."""
    pairs = zip(*paired(first, second), strict=True)
    return Difference(about, tuple(measure(a) - measure(b) for a, b in pairs), bounds, unit)


def at_same_time(about: str, first: Sequence[History], second: Sequence[History]) -> Difference:
    """How much more accurate the first is when the one that ends earlier ends, seed by seed."""

    def accuracy(run: History, time: float) -> float:
        if run.diverged_at is not None or not run.rows:
            return 0.0
        return float(np.interp(time, run.time, run.values(run.measure)))

    values = []
    for one, other in zip(*paired(first, second), strict=True):
        ends = [float(run.time[-1]) for run in (one, other) if run.rows]
        time = min(ends, default=0.0)
        values.append(accuracy(one, time) - accuracy(other, time))
    return Difference(about, tuple(values))


def final_accuracy(run: History) -> float:
    """Mean test accuracy over the last tenth of the rounds; 0 for a run that diverged."""
    return settled_value(run) if run.diverged_at is None and run.rows else 0.0


def spikes(run: History) -> float:
    """How often the test loss rises by a tenth or more from one evaluation to the next.

    Not a number for a run that diverged: it has no further evaluations to count in.
    """
    if run.diverged_at is not None:
        return math.nan
    return float((run.test_loss[1:] >= SPIKE * run.test_loss[:-1]).sum())


def slowest_label(run: History) -> float:
    """How much better the label of the slowest client is told than the others; see `SLOWEST_LABEL`.

    Not a number where it was not measured.
    """
    measured = run.rows and SLOWEST_LABEL in run.metrics
    return float(run.metrics[SLOWEST_LABEL][-1]) if measured else math.nan


def accuracy_throughout(run: History, axis: str) -> float:
    """Test accuracy averaged along ``axis``; 0 for a run that diverged."""
    return mean_value(run, axis) if run.diverged_at is None and run.rows > 1 else 0.0


def log_ratios(rival: FloatArray, own: FloatArray) -> FloatArray:
    """How much farther each run of a rival lies from the median of its runs, in logarithms.

    Both are losses of shape (..., runs, places along the run); a distance is the root mean square
    along the run. Not numbers if one is zero: of an odd number of runs one may be the median
    throughout.
    """
    squares = [
        ((one - np.median(one, axis=-2, keepdims=True)) ** 2).mean(axis=-1) for one in (rival, own)
    ]
    if min(one.min() for one in squares) <= 0.0:
        return np.full(own.shape[:-1], math.nan)
    return np.asarray(np.log(squares[0] / squares[1]) / 2.0, dtype=np.float64)


def judged(
    contrasts: Sequence[Contrast], looks: SequentialIntervals, decide: Decide, opening: str = ""
) -> Judged:
    """What the contrasts of one statement say together, at the first look at which they tell.

    All of them must hold, each by its own interval: to err there, one must err about the very
    contrast that does not hold, however many there are. One that surely does not hold refutes the
    statement, and there any of them may err: two sides of one contrast, or one side of two, make up
    the level, and more contrasts share it. A statement without truth in it is so told in at most
    5 % of cases, all looks and contrasts included.
    """
    shared = level_for(len(contrasts))
    have = min((contrast.pairs for contrast in contrasts), default=0)
    taken = [pairs for pairs in looks.pairs if pairs <= have] or [have]
    outcome: Outcome = "inconclusive"
    intervals: list[Interval] = []
    outcomes: list[Outcome] = []
    for pairs in taken:
        intervals = [contrast.at(looks, pairs, LEVEL) for contrast in contrasts]
        wider = (
            [contrast.at(looks, pairs, shared) for contrast in contrasts]
            if shared < LEVEL
            else intervals
        )
        outcomes = [_decided(decide, *both) for both in zip(intervals, wider, strict=True)]
        outcome = together(outcomes)
        if outcome != "inconclusive":
            break
    seen = list(zip(contrasts, intervals, strict=True))
    compared = tuple(contrast.compared(interval) for contrast, interval in seen)
    pairs = taken[-1] if not intervals else intervals[0].pairs
    found = f"{opening}{', '.join(map(str, compared))}; {pairs} pair{'' if pairs == 1 else 's'}."
    if outcome != "inconclusive" or pairs not in looks.pairs:
        return Judged(found, outcome, compared)
    needed = max(
        contrast.needed(looks, interval, LEVEL if _points_to_it(decide, interval) else shared)
        for (contrast, interval), one in zip(seen, outcomes, strict=True)
        if one == "inconclusive"
    )
    if math.isinf(needed):
        return Judged(f"{found} No number of pairs in reach would tell.", outcome, compared)
    found += f" About {needed:.0f} pairs would tell, if differences stay as they are."
    return Judged(found, outcome, compared, int(needed))


def _decided(decide: Decide, interval: Interval, wider: Interval) -> Outcome:
    """Whether a contrast holds by its own interval, or surely does not by that which all share."""
    return "reproduces" if decide(interval) == "reproduces" else decide(wider)


def _points_to_it(decide: Decide, interval: Interval) -> bool:
    """Whether a contrast would hold if the truth were as estimated."""
    known = replace(interval, low=interval.estimate, high=interval.estimate)
    return decide(known) == "reproduces"


def level_for(contrasts: int) -> float:
    """The level at which each of several contrasts can refute what is said of all."""
    return LEVEL * min(1.0, 2.0 / max(contrasts, 1))

"""When a run is evaluated, and where to look closer: between rows in which it leaps."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from sojourn.measure import ACCURACY, LOSS, Measure
from sojourn.train.replay.problem import Measures, Problem
from sojourn.train.replay.state import Between, Position

LEAST_ROWS, MOST_ROWS = 10, 100
EVALUATION_SHARE = 0.1
EVALUATION_COST = 0.5


def evaluation_spacing(rounds: int, test_size: int, samples_per_round: int) -> int:
    """Rounds between evaluations: 10 to 100 of them, as many as cost a tenth of the time at most.

    Ten are made whatever they cost, or a strategy that completes few rounds would hardly be seen;
    of a run of fewer than ten rounds every round is evaluated. A sample costs at most half as much
    to evaluate as to compute its gradient. Derived from sizes, not measured, so that it is the same
    in every run.

    >>> evaluation_spacing(rounds=30_000, test_size=10_000, samples_per_round=128)
    352
    >>> evaluation_spacing(rounds=50, test_size=10_000, samples_per_round=128)
    5
    """
    relative_cost = EVALUATION_COST * test_size / samples_per_round
    affordable = relative_cost * (1 - EVALUATION_SHARE) / EVALUATION_SHARE
    wanted = max(math.ceil(affordable), math.ceil(rounds / MOST_ROWS))
    return max(1, min(wanted, rounds // LEAST_ROWS))


KEPT = 15
"""Versions between two rows: a leap is seen in sixteenths of the distance."""
MOST_BYTES = 2**28


class Leaps:
    """Which versions to keep (``rounds``), and which of them to look at.

    Cost: up to 15 vectors of weights, fewer if they would take more than 256 MB; evaluations only
    at a new best, so at most about 50 times four in a run, and usually a dozen.
    """

    def __init__(self, problem: Problem, marks: Sequence[int]) -> None:
        self._problem, self._measure = problem, measure_of(problem)
        size = problem.dimension * problem.initial_weights().element_size()
        most = min(KEPT, MOST_BYTES // size)
        self.rounds: set[int] = set()
        for begin, end in itertools.pairwise(marks):
            count = min(most, end - begin - 1)
            self.rounds.update(
                np.linspace(begin, end, count + 2)[1:-1].round().astype(int).tolist()
            )

    def between(self, position: Position, found: Measures) -> list[tuple[Between, Measures]]:
        """The kept versions worth a row before that of ``found``, in order."""
        past = self._past(position)
        if not past:
            return []
        best = max(past) if self._measure.higher_is_better else min(past)
        return self._search(position.between, best, self._value(found))

    def _search(
        self, kept: Sequence[Between], before: float, after: float
    ) -> list[tuple[Between, Measures]]:
        if not kept or not self._measure.leaps(before, after):
            return []
        middle = len(kept) // 2
        one = kept[middle]
        found = self._problem.measures(one.weights)
        if not np.isfinite(found.loss):
            return []
        value = self._value(found)
        best = value if self._measure.reaches(value, before) else before
        early = self._search(kept[:middle], before, value)
        return [*early, (one, found), *self._search(kept[middle + 1 :], best, after)]

    def _value(self, found: Measures) -> float:
        name = self._measure.name
        if name in found.metrics:
            return found.metrics[name]
        return found.accuracy if name == ACCURACY.name else found.loss

    def _past(self, position: Position) -> list[float]:
        rows, name = position.rows, self._measure.name
        column = rows.metrics.get(name) or rows.columns.get(f"test_{name}", [])
        return [value for value in column if np.isfinite(value)]


def measure_of(problem: Problem) -> Measure:
    """What runs on a problem are judged by."""
    if problem.primary is not None:
        return problem.primary
    return ACCURACY if problem.labelled else LOSS

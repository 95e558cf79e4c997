"""Confidence intervals of a sequential test, and how many pairs it would still need."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from sojourn._support.estimate import Estimate
from sojourn.runs.comparison import LEVEL, SequentialTest, t_limit
from sojourn.types import FloatArray


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval, and the number of pairs it is based on.

    >>> Interval(2.0, 1.0, 3.0, pairs=4).side(of=0.0), Interval(2.0, -1.0, 5.0, 4).side(of=0.0)
    (1, 0)
    """

    estimate: float
    low: float
    high: float
    pairs: int

    def side(self, of: float) -> int:
        """Whether the interval lies above (1) or below (-1) a number; 0 if it contains it."""
        return int(self.low > of) - int(self.high < of)


@dataclass(frozen=True)
class SequentialIntervals(SequentialTest):
    """A sequential test whose analyses are confidence intervals, which hold simultaneously."""

    def of_difference(self, values: Sequence[float], level: float = LEVEL) -> Interval:
        """The confidence interval of the mean paired difference; unbounded between planned analyses.

        >>> SequentialIntervals((3, 6)).of_difference([1.0, 1.1, 0.9]).side(of=0.0)
        1
        """
        differences = np.asarray(values, dtype=np.float64)
        number = differences.size
        if number not in self.pairs or not np.isfinite(differences).all():
            return Interval(float(differences.mean()) if number else math.nan, *_NOWHERE, number)
        found = Estimate.from_samples(differences)
        mean = float(found.mean)
        margin = t_limit(self.level_of(number, level), number) * float(found.standard_error)
        return Interval(mean, mean - margin, mean + margin, number)

    def needed(self, gap: float, deviation: float, level: float = LEVEL, *, made: int = 0) -> float:
        """About how many pairs make a difference of ``gap`` significant if pairs have this ``deviation``.

        The first planned analysis after ``made`` pairs that suffices, or the number that a later last
        analysis would need; infinite beyond ten thousand.

        >>> test = SequentialIntervals((4, 12, 24))
        >>> test.needed(1.0, 1.0), test.needed(1.0, 3.0), test.needed(0.0, 1.0)
        (12.0, 99.0, inf)
        """
        for pairs in self.pairs:
            limit = t_limit(self.level_of(pairs, level), pairs)
            if pairs > made and limit * deviation < gap * math.sqrt(pairs):
                return float(pairs)
        nominal = self.level_of(self.pairs[-1], level)
        later = max(made, self.pairs[-1]) < _PAIRS_TO_TRY
        return _first(later & (_t_limits(nominal) * deviation < gap * np.sqrt(_PAIRS_TO_TRY)))


_NOWHERE = (-math.inf, math.inf)
_PAIRS_TO_TRY = np.array([*range(3, 200), *range(200, 10_001, 100)], dtype=np.float64)


def _first(significant: NDArray[np.bool_]) -> float:
    """The least number of pairs to try that is significant; infinite if none is."""
    return float(_PAIRS_TO_TRY[significant.argmax()]) if significant.any() else math.inf


@cache
def _t_limits(level: float) -> FloatArray:
    """`t_limit` for every number of pairs to try."""
    return -np.asarray(stdtrit(_PAIRS_TO_TRY - 1, level / 2.0), dtype=np.float64)

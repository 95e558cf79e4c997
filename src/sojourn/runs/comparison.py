"""Paired significance tests between strategies, once or sequentially as seeds are added."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import stdtr, stdtrit

from sojourn._support.estimate import Estimate
from sojourn.errors import InvalidInput
from sojourn.types import FloatArray

LEVEL = 0.05
"""The probability of a significant difference between two equal strategies, over all interim analyses."""


def significant_difference(
    first: Sequence[float], second: Sequence[float], tests: "int | SequentialTest" = 1
) -> float | None:
    """Mean paired difference ``first - second`` if significant at 5 % (paired t-test), else ``None``.

    ``tests`` corrects for several tests: a number of them (Bonferroni), or a `SequentialTest`,
    which has more power where the tests are interim analyses of growing data. An infinite score is
    a run that diverged or did not reach a target. Pairs in which both are infinite are left out. If
    only one of a pair is infinite, in at least two pairs and always on the same side, the
    difference is infinite; a single such pair decides nothing.

    >>> significant_difference([1.0, 1.1, 0.9, 1.0], [2.0, 2.2, 1.9, 2.1])
    -1.05
    >>> significant_difference([1.0, 2.0, 3.0], [2.0, 1.5, 3.2]) is None
    True
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    one_failed = np.isinf(a) != np.isinf(b)
    if one_failed.any():
        first_failed = np.isinf(a)[one_failed]
        if first_failed.size < 2 or first_failed.any() != first_failed.all():
            return None
        return math.inf if first_failed.all() else -math.inf
    both = np.isfinite(a) & np.isfinite(b)
    pairs = int(both.sum())
    if pairs < 2:
        return None
    difference = Estimate.difference(a[both], b[both])
    mean, error = float(difference.mean), float(difference.standard_error)
    if error == 0.0:
        return round(mean, 12) if mean else None
    level = tests.level_of(pairs) if isinstance(tests, SequentialTest) else LEVEL / tests
    return round(mean, 12) if abs(mean) > t_limit(level, pairs) * error else None


TRIALS = 50_000
"""Simulated null results from which the levels of the interim analyses are calibrated."""


@dataclass(frozen=True)
class SequentialTest:
    """A group-sequential paired t-test: after how many pairs of runs data are analysed, rising.

    The confidence intervals of all interim analyses hold simultaneously, so one may stop at any of them
    for any reason. An analysis at up to 12 pairs receives a share of the level in proportion to the
    square of its pairs, a later one 6/144 of the share at 12: a difference of one standard deviation is
    then found within 12 pairs with a power of 80 %. Critical values are calibrated by simulating null
    results, since analyses share data and Bonferroni would waste half of the level. They are calibrated
    to 0.7 of the level, so that the observed false-positive rate stays below it.

    >>> test = SequentialTest((4, 12, 24))
    >>> test.after(6), test.after(24)
    (12, None)
    """

    pairs: tuple[int, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.pairs, self.pairs[1:], strict=False))
        if not self.pairs or self.pairs[0] < 2 or not rising:
            raise InvalidInput(
                "the interim analyses of a sequential test are at rising numbers of pairs, from 2 on; "
                f"they are {list(self.pairs)}"
            )

    def after(self, pairs: int) -> int | None:
        """The number of pairs at the analysis after ``pairs`` of them; ``None`` after the last."""
        return next((number for number in self.pairs if number > pairs), None)

    def level_of(self, pairs: int, level: float = LEVEL) -> float:
        """The two-sided level of the analysis at ``pairs``; Bonferroni's if none was planned there."""
        if pairs not in self.pairs:
            return level / (len(self.pairs) + 1)
        return _share(self.pairs, level) * _weight(pairs)


ENOUGH, LATER = 12, 6
"""Pairs up to which the weight of an analysis is their square, and the weight of later ones."""
SPENT = 0.7
"""The fraction of the nominal level that critical values are calibrated to."""


def _weight(pairs: int) -> int:
    """The share of the level that an analysis has, in proportion."""
    return pairs**2 if pairs <= ENOUGH else LATER


def t_limit(level: float, pairs: int) -> float:
    """The two-sided critical value of Student's t for the mean of ``pairs`` differences."""
    return -float(stdtrit(pairs - 1, level / 2.0))


@cache
def _share(analyses: tuple[int, ...], level: float) -> float:
    """The two-sided level per unit of weight at which all analyses together spend ``SPENT * level``."""
    if len(analyses) == 1:
        return SPENT * level / _weight(analyses[0])
    return float(np.quantile(_least_levels(analyses), SPENT * level))


@cache
def _least_levels(analyses: tuple[int, ...]) -> FloatArray:
    """For each simulated null result, the least level per unit of weight that is significant."""
    drawn = np.random.default_rng(0x4C4F4F4B).standard_normal((TRIALS, analyses[-1]))
    least = np.full(TRIALS, math.inf)
    for number in analyses:
        seen = drawn[:, :number]
        scores = np.abs(seen.mean(axis=1)) * math.sqrt(number) / seen.std(axis=1, ddof=1)
        least = np.minimum(least, 2.0 * stdtr(number - 1, -scores) / _weight(number))
    return np.asarray(least, dtype=np.float64)

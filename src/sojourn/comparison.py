"""Paired seeds: is one strategy really better than another, or do they tie?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from sojourn.errors import InvalidInput
from sojourn.estimate import Estimate
from sojourn.types import FloatArray

LEVEL = 0.05
"""The chance of telling two equal candidates apart, all looks taken together."""


def told_apart(
    first: Sequence[float], second: Sequence[float], looks: "int | Looks" = 1
) -> float | None:
    """The mean difference of paired scores if it is certain, else ``None``.

    A paired t-test at 5 % over all ``looks`` that are taken: a number of them (Bonferroni), or after how
    many pairs each is (`Looks`), which tells more. Scores that are infinite in
    the same run cancel; a run in which only one is infinite decides against it.

    >>> told_apart([1.0, 1.1, 0.9, 1.0], [2.0, 2.2, 1.9, 2.1])
    -1.05
    >>> told_apart([1.0, 2.0, 3.0], [2.0, 1.5, 3.2]) is None
    True
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    lost = np.isinf(a) != np.isinf(b)
    if lost.any():
        sides = {bool(np.isinf(a[i])) for i in np.flatnonzero(lost)}
        if len(sides) > 1 or lost.sum() < 2:
            return None
        return math.inf if sides.pop() else -math.inf
    both = np.isfinite(a) & np.isfinite(b)
    pairs = int(both.sum())
    if pairs < 2:
        return None
    found = Estimate.difference(a[both], b[both])
    mean, error = float(found.mean), float(found.standard_error)
    if error == 0.0:
        return round(mean, 12) if mean else None
    level = looks.level_of(pairs) if isinstance(looks, Looks) else LEVEL / looks
    return round(mean, 12) if abs(mean) > _t_limit(level, pairs) * error else None


TRIALS = 50_000
"""Results without a difference that are drawn to find the levels of a sequence of looks."""


@dataclass(frozen=True)
class Interval:
    """An estimate, where the truth lies at the level asked for, and how many pairs it rests on.

    >>> Interval(2.0, 1.0, 3.0, pairs=4).side(of=0.0), Interval(2.0, -1.0, 5.0, 4).side(of=0.0)
    (1, 0)
    """

    estimate: float
    low: float
    high: float
    pairs: int

    def side(self, of: float) -> int:
        """Whether the truth is above (1) or below (-1) a number; 0 if that cannot be told."""
        return int(self.low > of) - int(self.high < of)


@dataclass(frozen=True)
class Looks:
    """A sequential design: after how many pairs of runs results are looked at, rising.

    The intervals of all looks together hold with the probability asked for, so that one may stop at
    any of them, for whatever reason, and believe what it says. A look at up to 12 pairs has a share of
    the level in proportion to the square of its pairs, one at more a 24th of that at 12: so a
    difference of one standard deviation is told within 12 pairs in four cases of five, and smaller ones
    later. What that comes to is found by drawing results without a difference, since looks share data
    and Bonferroni would waste half of the level. Seven tenths of the level are spent: then of a thousand
    results without a difference hardly ever more are told than the whole level would have.

    >>> looks = Looks((4, 12, 24))
    >>> looks.after(6), looks.after(24)
    (12, None)
    """

    pairs: tuple[int, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.pairs, self.pairs[1:], strict=False))
        if not self.pairs or self.pairs[0] < 2 or not rising:
            raise InvalidInput(
                f"looks are rising numbers of pairs, from 2 on; they are {list(self.pairs)}"
            )

    def after(self, pairs: int) -> int | None:
        """How many pairs the look after ``pairs`` of them needs; ``None`` if that was the last."""
        return next((look for look in self.pairs if look > pairs), None)

    def level_of(self, pairs: int, level: float = LEVEL) -> float:
        """The two-sided level of the look at ``pairs``; of none that was planned, a share of all."""
        if pairs not in self.pairs:
            return level / (len(self.pairs) + 1)
        return _share(self.pairs, level) * _weight(pairs)

    def of_difference(self, values: Sequence[float], level: float = LEVEL) -> Interval:
        """Where the mean of paired differences lies, as many as one of the looks has.

        >>> Looks((3, 6)).of_difference([1.0, 1.1, 0.9]).side(of=0.0)
        1
        """
        differences = np.asarray(values, dtype=np.float64)
        number = differences.size
        if number not in self.pairs or not np.isfinite(differences).all():
            return Interval(float(differences.mean()) if number else math.nan, *_NOWHERE, number)
        found = Estimate.from_samples(differences)
        mean = float(found.mean)
        margin = _t_limit(self.level_of(number, level), number) * float(found.standard_error)
        return Interval(mean, mean - margin, mean + margin, number)

    def needed(self, gap: float, deviation: float, level: float = LEVEL, *, made: int = 0) -> float:
        """About how many pairs would tell a ``gap`` from zero if pairs scatter by ``deviation``.

        As many as the first look does after the pairs that are ``made``, or as the last one would need
        if it came that late; infinite beyond ten thousand.

        >>> looks = Looks((4, 12, 24))
        >>> looks.needed(1.0, 1.0), looks.needed(1.0, 3.0), looks.needed(0.0, 1.0)
        (12.0, 99.0, inf)
        """
        for pairs in self.pairs:
            limit = _t_limit(self.level_of(pairs, level), pairs)
            if pairs > made and limit * deviation < gap * math.sqrt(pairs):
                return float(pairs)
        nominal = self.level_of(self.pairs[-1], level)
        later = max(made, self.pairs[-1]) < _PAIRS_TO_TRY
        return _first(later & (_t_limits(nominal) * deviation < gap * np.sqrt(_PAIRS_TO_TRY)))


ENOUGH, LATER = 12, 6
"""Pairs up to which a look's weight is their square, and what later looks weigh."""
SPENT = 0.7
"""How much of the level that is promised the looks are calibrated to; the rest is for chance."""


def _weight(pairs: int) -> int:
    """How much of the level a look has, in proportion."""
    return pairs**2 if pairs <= ENOUGH else LATER


_NOWHERE = (-math.inf, math.inf)
_PAIRS_TO_TRY = np.array([*range(3, 200), *range(200, 10_001, 100)], dtype=np.float64)


def _first(tells: NDArray[np.bool_]) -> float:
    """The least number of pairs to try that ``tells``; infinite if none does."""
    return float(_PAIRS_TO_TRY[tells.argmax()]) if tells.any() else math.inf


def _t_limit(level: float, pairs: int) -> float:
    """Beyond how many standard errors, on either side, the mean of so many seldom lies."""
    return -float(stdtrit(pairs - 1, level / 2.0))


@cache
def _t_limits(level: float) -> FloatArray:
    """`_t_limit` for every number of pairs to try."""
    return -np.asarray(stdtrit(_PAIRS_TO_TRY - 1, level / 2.0), dtype=np.float64)


@cache
def _share(looks: tuple[int, ...], level: float) -> float:
    """The level of each look, two-sided, per unit of its weight: together they spend what is due of ``level``."""
    if len(looks) == 1:
        return SPENT * level / _weight(looks[0])
    return float(np.quantile(_levels(looks), SPENT * level))


@cache
def _levels(looks: tuple[int, ...]) -> FloatArray:
    """The least level per unit of weight at which a look tells something, in trials without a difference."""
    drawn = np.random.default_rng(0x4C4F4F4B).standard_normal((TRIALS, looks[-1]))
    least = np.full(TRIALS, math.inf)
    for number in looks:
        seen = drawn[:, :number]
        scores = np.abs(seen.mean(axis=1)) * math.sqrt(number) / seen.std(axis=1, ddof=1)
        least = np.minimum(least, 2.0 * stdtr(number - 1, -scores) / _weight(number))
    return np.asarray(least, dtype=np.float64)

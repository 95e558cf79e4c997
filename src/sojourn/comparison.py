"""Paired seeds: is one strategy really better than another, or do they tie?"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student

LEVEL = 0.05
"""The chance of telling two equal candidates apart, all looks taken together."""


def told_apart(first: Sequence[float], second: Sequence[float], looks: int = 1) -> float | None:
    """The mean difference of paired scores if it is certain, else ``None``.

    A paired t-test at 5 % over all ``looks`` that are taken (Bonferroni). Scores that are infinite in
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
    difference = a[both] - b[both]
    if difference.size < 2:
        return None
    error = difference.std(ddof=1) / math.sqrt(difference.size)
    mean = float(difference.mean())
    if error == 0.0:
        return round(mean, 12) if mean else None
    limit = float(student.ppf(1.0 - LEVEL / looks / 2.0, difference.size - 1))
    return round(mean, 12) if abs(mean) > limit * error else None

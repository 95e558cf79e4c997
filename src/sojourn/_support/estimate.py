"""A mean with its standard error: how it is made from samples, compared, written and printed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sojourn._support.numbers import finite, plus_minus


@dataclass(frozen=True, eq=False)
class Estimate:
    r"""A mean and its standard error, numbers or arrays of one shape; ``nan`` where unknown.

    Formatting writes both, the mean alone where there is no error:

    >>> estimate = Estimate.from_samples([1.0, 3.0])
    >>> f"{estimate:.1f}", f"{Estimate(0.801, 0.01):.1%}", f"{Estimate(5.0, math.nan):g}"
    ('2.0 ± 1.0', '80.1 ± 1.0%', '5')
    """

    mean: Any
    standard_error: Any

    @classmethod
    def from_samples(cls, samples: ArrayLike) -> "Estimate":
        r"""The mean over the first axis and its standard error :math:`s/\sqrt{N}`.

        One sample has no error, and none have no mean.
        """
        values = np.asarray(samples, dtype=np.float64)
        number, shape = values.shape[0], values.shape[1:]
        unknown = np.full(shape, math.nan)[()]
        if number < 2:
            return cls(values[0] if number else unknown, unknown)
        return cls(values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(number))

    @classmethod
    def ratio(cls, above: ArrayLike, below: ArrayLike) -> "Estimate":
        """The ratio of two means over paired samples; its error to first order (delta method).

        >>> Estimate.ratio([2.0, 4.0], [1.0, 2.0])
        Estimate(2 ± 0)
        """
        above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
        mean_below = below.mean(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = above.mean(axis=0) / mean_below
            residual = (above - ratio * below) / mean_below
        return cls(ratio, cls.from_samples(residual).standard_error)

    @classmethod
    def difference(cls, first: ArrayLike, second: ArrayLike) -> "Estimate":
        """The mean difference of paired samples, such as two strategies under the same seeds.

        >>> Estimate.difference([1.0, 3.0], [0.0, 2.0])
        Estimate(1 ± 0)
        """
        return cls.from_samples(np.asarray(first, dtype=np.float64) - np.asarray(second))

    def z_scores(self, theory: ArrayLike) -> Any:
        """How many standard errors the mean lies above ``theory``.

        >>> Estimate(1.2, 0.1).z_scores(1.0).round(6)
        np.float64(2.0)
        """
        difference = np.asarray(self.mean) - np.asarray(theory, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = difference / np.asarray(self.standard_error)
        return np.where(difference == 0.0, 0.0, scores)[()]

    def to_table(self) -> dict[str, Any]:
        """The estimate as JSON has it: ``None`` where a number is not finite.

        >>> Estimate.from_samples([5.0]).to_table()
        {'mean': 5.0, 'standard_error': None}
        """
        numbers = {"mean": self.mean, "standard_error": self.standard_error}
        return {
            name: finite(np.asarray(value, dtype=np.float64).tolist())
            for name, value in numbers.items()
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Estimate":
        """What `to_table` wrote; other keys are left alone."""
        return cls(_number(table["mean"]), _number(table.get("standard_error")))

    def __format__(self, form: str) -> str:
        return plus_minus(float(self.mean), float(self.standard_error), form or "g")

    def __repr__(self) -> str:
        if np.ndim(self.mean) == 0:
            return f"Estimate({format(self)})"
        return f"Estimate(mean={self.mean}, standard_error={self.standard_error})"


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return np.array([_number(entry) for entry in value])
    return math.nan if value is None else float(value)

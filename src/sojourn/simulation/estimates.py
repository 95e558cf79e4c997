"""Estimates with standard errors, pooled over independent replicates."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sojourn.network import Network
from sojourn.types import FloatArray


@dataclass(frozen=True, eq=False)
class Estimate:
    """A mean and its standard error, numbers or arrays of one shape."""

    mean: Any
    standard_error: Any

    def z_scores(self, theory: ArrayLike) -> Any:
        """How many standard errors the mean lies above ``theory``.

        >>> Estimate(1.2, 0.1).z_scores(1.0).round(6)
        np.float64(2.0)
        """
        difference = np.asarray(self.mean) - np.asarray(theory, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = difference / np.asarray(self.standard_error)
        return np.where(difference == 0.0, 0.0, scores)[()]

    def __repr__(self) -> str:
        if np.ndim(self.mean) == 0:
            return f"Estimate({self.mean:.6g} ± {self.standard_error:.2g})"
        return f"Estimate(mean={self.mean}, standard_error={self.standard_error})"


@dataclass(frozen=True, eq=False)
class Estimates:
    """What replicates of a simulation say, per class of the fleet where it makes sense.

    ``rounds`` and ``time`` are those of one replicate; ``throughput`` is in rounds per unit of time;
    ``mean_tasks`` is :math:`E[X_i]` of one client per class, ``(k,)``; ``staleness`` the mean
    relative delay of a task sent to such a client, ``(k,)``. ``gradient[a, b]``, ``(k, k)``, is the
    derivative of the relative delays of class a, summed over its clients, with respect to the
    probability of one client of class b (paper, Theorem 3.1: :math:`\\mathrm{Cov}[X_i, X_j]/p_j`); it
    is None unless the policy is routed.
    """

    network: Network
    replicates: int
    rounds: Estimate
    time: Estimate
    throughput: Estimate
    mean_tasks: Estimate
    staleness: Estimate
    gradient: Estimate | None

    def __repr__(self) -> str:
        return f"Estimates({self.replicates} replicates, throughput {self.throughput})"


def mean_estimate(samples: FloatArray) -> Estimate:
    """The mean over replicates (the first axis) and its standard error."""
    return Estimate(samples.mean(axis=0), samples.std(axis=0, ddof=1) / np.sqrt(samples.shape[0]))


def ratio_estimate(above: FloatArray, below: FloatArray) -> Estimate:
    """The ratio of two means over replicates; its standard error to first order (delta method)."""
    mean_below = below.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = above.mean(axis=0) / mean_below
        residual = (above - ratio * below) / mean_below
    return Estimate(ratio, mean_estimate(residual).standard_error)


def covariance_estimate(first: FloatArray, second: FloatArray) -> Estimate:
    """A covariance matrix from each replicate's mean vectors (R, k) and mean products (R, k, k).

    Replicates may be short compared with the relaxation time of the network, so means are
    taken over all of them together; leaving out one replicate at a time (the jackknife) gives the
    standard error and takes out the bias.
    """
    number = first.shape[0]

    def pooled(mean: FloatArray, products: FloatArray) -> FloatArray:
        return np.asarray(products - mean[..., :, None] * mean[..., None, :])

    whole = pooled(first.mean(axis=0), second.mean(axis=0))
    without = pooled(
        (first.sum(axis=0) - first) / (number - 1), (second.sum(axis=0) - second) / (number - 1)
    )
    mean = number * whole - (number - 1) * without.mean(axis=0)
    error = np.sqrt((number - 1) * without.var(axis=0))
    return Estimate(mean, error)

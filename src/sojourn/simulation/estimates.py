"""Estimates with standard errors, pooled over independent replicates."""

from dataclasses import dataclass

import numpy as np

from sojourn.estimate import Estimate
from sojourn.network import Network
from sojourn.types import FloatArray


@dataclass(frozen=True, eq=False)
class Estimates:
    """What replicates of a simulation say, per class of the fleet where it makes sense.

    ``rounds`` and ``time`` are those of one replicate; ``throughput`` is in rounds per unit of time;
    ``mean_tasks`` is :math:`E[X_i]` of one client per class, ``(k,)``; ``staleness`` the mean
    relative delay of a task sent to such a client, ``(k,)``. ``gradient[a, b]``, ``(k, k)``, is the
    derivative of the relative delays of class a, summed over its clients, with respect to the
    probability of one client of class b (paper, Theorem 3.1: :math:`\\mathrm{Cov}[X_i, X_j]/p_j`); it
    is None unless the policy is routed. With links and server, ``mean_tasks`` counts a client's
    tasks wherever they are: :math:`E[D_i]`. ``energy`` is the clients' energy per round over whole
    replicates, warm-up included; None if the fleet tells no powers. ``completed`` are the tasks that
    one client of each class completes per unit of time, ``(k,)``.
    """

    network: Network
    replicates: int
    rounds: Estimate
    time: Estimate
    throughput: Estimate
    mean_tasks: Estimate
    staleness: Estimate
    gradient: Estimate | None
    energy: Estimate | None = None
    completed: Estimate | None = None

    def __repr__(self) -> str:
        return f"Estimates({self.replicates} replicates, throughput {self.throughput})"


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

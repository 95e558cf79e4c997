"""One door to the two engines."""

from typing import Literal, NamedTuple

import numpy as np

from sojourn.compiling import read_only
from sojourn.errors import UnknownName
from sojourn.jackson.contour import contour_integral
from sojourn.jackson.mean_value import mean_value_analysis
from sojourn.types import FloatArray, IntArray

Engine = Literal["auto", "mean-value", "contour"]
ENGINES = ("auto", "mean-value", "contour")

LARGEST_MEAN_VALUE_POPULATION = 100
"""Up to here mean-value analysis, at 2 ns per client and task, costs less than the contour."""


class SteadyState(NamedTuple):
    r"""What the bounds and their gradients need, per client of each class."""

    throughput: float
    r""":math:`\lambda`, with ``concurrency`` tasks."""
    mean_tasks: FloatArray
    r""":math:`E[X_i]`, with one task fewer."""
    weighted_covariance: FloatArray
    r""":math:`C_j = \mathrm{Cov}[F, X_j]`, :math:`F = \sum_i c_i w_i (X_i + L_i)`."""
    mean_on_links: FloatArray | None = None
    r""":math:`E[L_i]`, with one task fewer; ``None`` without links."""
    links_covariance: FloatArray | None = None
    r""":math:`\mathrm{Cov}[F, L_j]`; ``None`` without links."""


def steady_state(
    loads: FloatArray,
    counts: IntArray,
    concurrency: int,
    weights: FloatArray | None = None,
    *,
    links: FloatArray | None = None,
    engine: Engine = "auto",
) -> SteadyState:
    r"""Throughput, mean tasks and weighted covariances of the closed network.

    ``loads`` is :math:`\rho_i = p_i/\mu_i` (any scale: throughput scales with its inverse),
    ``counts`` the clients per class, ``weights`` :math:`w` (zeros by default), shape ``(k,)`` each;
    ``concurrency`` is :math:`m`. ``links`` is :math:`\theta_i`, shape ``(k,)``: what a task spends on
    average on a client's links, times :math:`p_i`; only means matter there, whatever the law. A server
    that takes time is a class of one with load :math:`1/\mu_s`. The contour falls back to mean-value analysis when its own error
    flag says so, even if it was asked for. Cost: O(km) or O(k).

    Paper: Proposition 2.1 (4), Theorem 3.1 (8) and (9), Proposition 4.1 (12).

    >>> state = steady_state(np.array([0.5, 0.5]), np.array([1, 1]), 3)
    >>> state.throughput, state.mean_tasks.tolist()
    (1.5, [1.0, 1.0])
    """
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    population = concurrency - 1
    # Covariances do not see a constant; without it, mean-value analysis keeps four digits more.
    w = np.zeros(loads.size) if weights is None else weights - weights[loads.argmax()]
    theta = 0.0 if links is None else float(counts @ links)
    weighted = 0.0 if links is None else float(counts @ (w * links))
    smallest = {"auto": LARGEST_MEAN_VALUE_POPULATION + 1, "contour": 1, "mean-value": concurrency}
    counts = read_only(counts)
    accurate = False
    if population >= smallest[engine]:
        accurate, throughput, mean, covariance, passing, rise = contour_integral(
            loads, counts, population, w, theta, weighted
        )
    if not accurate:
        throughput, mean, covariance, passing, rise = mean_value_analysis(
            loads, counts, population, w, theta, weighted
        )
    if links is None:
        return SteadyState(throughput, mean, covariance)
    on_links = passing * links
    return SteadyState(throughput, mean, covariance, on_links, on_links * (w - rise))

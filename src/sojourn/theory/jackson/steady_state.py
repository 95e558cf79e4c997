"""Steady state of the closed network: mean-value analysis, or a contour integral for many tasks."""

from typing import Literal, NamedTuple

import numba
import numpy as np

from sojourn._support.compiling import read_only
from sojourn.errors import UnknownName
from sojourn.theory.jackson.contour import contour_integral
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


@numba.njit(cache=True, nogil=True, error_model="numpy")
def mean_value_analysis(
    loads: FloatArray,
    counts: IntArray,
    population: int,
    weights: FloatArray,
    links: float,
    weighted_links: float,
) -> tuple[float, FloatArray, FloatArray, float, float]:
    r"""Throughput, means and weighted covariances, by recursion on the population.

    .. math::

        Q_j(k) &= u_k \rho_j (1 + Q_j(k-1)), \qquad
            u_k = k \Big/ \Bigl(\theta + \sum_i c_i \rho_i (1 + Q_i(k-1))\Bigr) \\
        C_j(k) &= \rho_j u_k C_j(k-1) + Q_j(k) \bigl(w_j + S(k-1) - S(k)\bigr), \qquad
            S(k) = \sum_i c_i w_i (Q_i(k) + u_k \theta_i)

    ``loads`` is :math:`\rho`, ``counts`` :math:`c`, ``weights`` :math:`w`, each of shape ``(k,)``;
    ``links`` is :math:`\theta = \sum_i c_i \theta_i`, the mean time that a task spends on links, and
    ``weighted_links`` :math:`\sum_i c_i w_i \theta_i`.
    Returns :math:`u_{M+1}` (the throughput with one task more than ``population`` :math:`M`),
    :math:`Q(M) = E[X]` and :math:`C_j = \mathrm{Cov}(F, X_j)`, where
    :math:`F = \sum_i c_i w_i (X_i + L_i)` and :math:`L_i` are the tasks on links; then what tells of
    these, :math:`u_M` and :math:`h = S(M) - S(M-1)`: :math:`E[L_j] = \theta_j u_M` and
    :math:`\mathrm{Cov}(F, L_j) = E[L_j] (w_j - h)`. All quantities stay
    of the order of the answer: nothing can overflow. Cost: O(kM).
    """
    k = loads.size
    mean = np.zeros(k)
    covariance = np.zeros(k)
    before = 0.0
    u = 0.0
    rise = 0.0
    for tasks in range(1, population + 1):
        work = links
        for j in range(k):
            work += counts[j] * loads[j] * (1.0 + mean[j])
        u = tasks / work
        weighted = u * weighted_links
        for j in range(k):
            mean[j] = u * loads[j] * (1.0 + mean[j])
            weighted += counts[j] * weights[j] * mean[j]
        for j in range(k):
            covariance[j] = loads[j] * u * covariance[j] + mean[j] * (
                weights[j] + before - weighted
            )
        rise = weighted - before
        before = weighted
    work = links
    for j in range(k):
        work += counts[j] * loads[j] * (1.0 + mean[j])
    return (population + 1) / work, mean, covariance, u, rise

"""Mean-value analysis of the closed network, with the covariances that gradients need."""

import numba
import numpy as np

from sojourn.compiling import Deferring  # noqa: F401
from sojourn.types import FloatArray, IntArray


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

"""The steady state of a network in the paper's terms."""

from dataclasses import dataclass

import numpy as np

from sojourn.jackson.flow import Flow
from sojourn.jackson.steady_state import Engine, steady_state
from sojourn.network import Network
from sojourn.types import FloatArray


@dataclass(frozen=True, eq=False)
class Analysis(Flow):
    """Steady state of a network: arrays of shape ``(k,)`` hold the value of one client per class."""

    network: Network
    throughput: float
    r"""Rounds per unit of time, :math:`\lambda`."""
    mean_tasks: FloatArray
    r"""Tasks at a client at the end of a round, :math:`E[X_i]` (``m - 1`` tasks in all)."""
    mean_tasks_full: FloatArray
    r"""Tasks at a client at any time, :math:`E[\xi_i]` (``m`` tasks in all)."""
    utilization: FloatArray
    r"""Share of the time that a client is busy, :math:`P(\xi_i > 0)`."""
    client_shares: FloatArray | None = None
    """Share of the rounds that a client completes; ``None`` where it is the routing."""

    @property
    def relative_delay(self) -> FloatArray:
        r""":math:`E[D_i]`, which includes the chance :math:`p_i` that the task is sent to client i.

        Equal to ``mean_tasks``: the paper's Theorem 3.1, equation (6).
        """
        return self.mean_tasks

    @property
    def staleness(self) -> FloatArray:
        r"""Rounds that a task sent to client i waits, :math:`E[X_i]/s_i`; its mean is ``m - 1``."""
        return self.mean_tasks / self.shares

    def __repr__(self) -> str:
        busiest = self.utilization.max()
        return (
            f"Analysis(throughput {self.throughput:.6g}, staleness {self.staleness.min():.4g} to "
            f"{self.staleness.max():.4g} rounds, busiest client {busiest:.1%} busy)"
        )


def analyze(network: Network, *, engine: Engine = "auto") -> Analysis:
    r"""Exact steady state of ``network``.

    .. math::

        \lambda = Z_{n,m-1}/Z_{n,m}, \quad
        E[\xi_i] = \lambda \rho_i (1 + E[X_i]), \quad P(\xi_i > 0) = \lambda \rho_i

    The relative delays sum to :math:`m - 1` over the clients. Cost: O(k) for large m.
    Paper: Proposition 2.1 (4), Theorem 3.1 (6) and (8), Proposition 4.1 (12).

    >>> from sojourn.network import Fleet, balanced_routing
    >>> fleet = Fleet([1.0, 2.0])
    >>> analyze(Network(fleet, balanced_routing(fleet), concurrency=3))
    Analysis(throughput 2.25, staleness 1.5 to 3 rounds, busiest client 75.0% busy)
    """
    loads = network.loads
    state = steady_state(loads, network.fleet.counts, network.concurrency, engine=engine)
    utilization = np.minimum(state.throughput * loads, 1.0)
    return Analysis(
        network=network,
        throughput=state.throughput,
        mean_tasks=state.mean_tasks,
        mean_tasks_full=state.throughput * loads * (1.0 + state.mean_tasks),
        utilization=utilization,
    )


def covariance(network: Network, *, engine: Engine = "auto") -> FloatArray:
    r""":math:`\mathrm{Cov}[X_i, X_j]` between all clients, shape ``(n, n)``, at population m - 1.

    Every row sums to zero, since the tasks are constant in number. Corrects the paper's (9) on the
    diagonal. The gradient of the delays is this matrix divided by :math:`p_j`, equation (7). Cost:
    O(k) steady states; nobody needs it for gradients of the bounds.

    >>> from sojourn.network import Fleet
    >>> covariance(Network(Fleet([1.0, 2.0]), [1 / 3, 2 / 3], concurrency=3)).round(6)
    array([[ 0.666667, -0.666667],
           [-0.666667,  0.666667]])
    """
    # One member of each class stands apart from its siblings, so that the covariance of two
    # members differs from the variance of one.
    fleet, k = network.fleet, network.fleet.classes
    siblings = np.flatnonzero(fleet.counts > 1)
    loads = np.concatenate([network.loads, network.loads[siblings]])
    counts = np.concatenate([np.ones(k, dtype=np.int64), fleet.counts[siblings] - 1])
    rows = np.empty((k, loads.size))
    for i in range(k):
        weights = np.zeros(loads.size)
        weights[i] = 1.0
        rows[i] = steady_state(
            loads, counts, network.concurrency, weights, engine=engine
        ).weighted_covariance
    between = rows[:, :k].copy()
    np.fill_diagonal(between, 0.0)
    between[siblings, siblings] = rows[siblings, k + np.arange(siblings.size)]
    member = np.repeat(np.arange(k), fleet.counts)
    matrix = between[np.ix_(member, member)]
    np.fill_diagonal(matrix, rows[np.arange(k), np.arange(k)][member])
    return matrix

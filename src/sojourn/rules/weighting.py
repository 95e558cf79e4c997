"""How much an update counts, given how often its client is heard."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sojourn._support.extensions import Checked, real
from sojourn.types import FloatArray, IntArray


@dataclass(frozen=True)
class Weighting(Checked):
    r"""The weight of client i's update, of which a share :math:`s_i` of all updates comes.

    .. math:: v_i = \frac{(n s_i)^{-b}}{\sum_j s_j (n s_j)^{-b}}, \qquad
       \text{weight}_i = \min(v_i, \text{cap})

    so that before the cap the mean weight of an update, :math:`\sum_i s_i v_i`, is 1. ``debias`` is
    :math:`b`: 1 undoes the bias towards clients that are heard often, 0 leaves it. A *divisor* is
    one over the weight: exactly :math:`n s_i` for b = 1 and exactly 1 for b = 0.

    >>> Weighting(debias=1.0).divisors(np.array([0.125, 0.875])).tolist()
    [0.25, 1.75]
    >>> Weighting(debias=1.0, cap=2.0).divisors(np.array([0.125, 0.875])).tolist()
    [0.5, 1.75]
    """

    debias: float = real(0.0, least=0.0, most=1.0)
    cap: float | None = real(None, above=0.0)

    def divisors(self, shares: FloatArray) -> FloatArray:
        """One over the weight of every client, of shares that sum to 1: both of shape ``(n,)``."""
        return self._divisors(len(shares), shares, self.mean(shares))

    def divisor(self, share: float, clients: int, mean: float) -> float:
        """One over the weight of one of n clients; ``mean`` is `mean` of all their shares."""
        if self.debias == 1.0 and self.cap is None:
            return float(clients * share)
        return float(self._divisors(clients, np.array([share]), mean)[0])

    def mean(self, shares: FloatArray) -> float:
        r""":math:`\sum_j s_j (n s_j)^{-b}`, the mean weight before it is made 1."""
        if self.debias in (0.0, 1.0):
            return 1.0
        heard = shares[shares > 0]
        return float(np.sum(heard * (len(shares) * heard) ** -self.debias))

    def realised(self, senders: NDArray[np.integer], clients: int) -> tuple[FloatArray, FloatArray]:
        """Shares and divisors of tasks sent to ``senders`` in turn, from the counts at that time.

        Where nobody knows the long-run share it is estimated, before task k is sent, as (tasks of
        this client before + 1)/(k + n). Both have one entry per task. Cost: O(tasks).

        >>> shares, divisors = Weighting(debias=1.0).realised(np.array([0, 0, 1]), 2)
        >>> shares.tolist(), divisors.tolist()
        ([0.5, 0.6666666666666666, 0.25], [1.0, 1.3333333333333333, 0.5])
        """
        counts = task_ordinals(senders) + 1.0
        sent = np.arange(len(senders)) + float(clients)
        shares = counts / sent
        mean: float | FloatArray = 1.0
        if 0.0 < self.debias < 1.0:
            power = 1.0 - self.debias
            growth = (counts + 1.0) ** power - counts**power
            total = clients + np.cumsum(growth) - growth
            mean = total / (clients**self.debias * sent**power)
        return shares, self._divisors(clients, shares, mean)

    def _divisors(self, clients: int, shares: FloatArray, mean: float | FloatArray) -> FloatArray:
        if self.debias == 0.0:
            divisors = np.ones(len(shares))
        elif self.debias == 1.0:
            divisors = clients * shares
        else:
            divisors = (clients * shares) ** self.debias * mean
        return divisors if self.cap is None else np.maximum(divisors, 1.0 / self.cap)


def task_ordinals(client: NDArray[np.integer]) -> IntArray:
    """For every task in a sequence, how many tasks of its client stand before it.

    >>> task_ordinals(np.array([0, 1, 0, 0, 1])).tolist()
    [0, 0, 1, 2, 1]
    """
    by_client = np.argsort(client, kind="stable")
    counts = np.bincount(client) if client.size else np.zeros(0, dtype=np.int64)
    starts = np.cumsum(counts) - counts
    found = np.empty(client.size, dtype=np.int64)
    found[by_client] = np.arange(client.size) - np.repeat(starts, counts)
    return found

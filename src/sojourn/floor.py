r"""The least noise that any way of sending tasks can have, and the rates that attain it.

With m tasks in flight client i completes tasks at a rate :math:`r_i \le \mu_i`, and
:math:`\sum_i r_i/\mu_i \le m`, because a task that is being served occupies its client for
:math:`1/\mu_i` on average and tasks that wait occupy nobody (Little's law). Whatever the policy and
the law of the service times, the noise of unbiased updates per unit of time is therefore at least
what these two constraints allow.
"""

import numpy as np

from sojourn.network import Fleet, check_concurrency
from sojourn.types import FloatArray


def duty_cycles(fleet: Fleet, concurrency: int) -> FloatArray:
    r"""The fraction of time that a client of each class is busy at the least noise.

    .. math:: d_i = \min(1, c/\sqrt{\mu_i}), \qquad \sum_i d_i = \min(m, n)

    the solution of :math:`\min \sum_i 1/(d_i \mu_i)` by water-filling; shape ``(k,)``. With m >= n
    everybody is always busy. Cost: O(k log k).

    >>> duty_cycles(Fleet([1.0, 4.0]), 1).round(6).tolist()
    [0.666667, 0.333333]
    >>> duty_cycles(Fleet([1.0, 4.0]), 2).tolist()
    [1.0, 1.0]
    """
    m = check_concurrency(concurrency)
    if m >= fleet.size:
        return np.ones(fleet.classes)
    order = np.argsort(fleet.service_rates, kind="stable")
    root = np.sqrt(fleet.service_rates[order])
    counts = fleet.counts[order].astype(np.float64)
    full = np.cumsum(counts) - counts
    tail = np.cumsum((counts / root)[::-1])[::-1]
    level = (m - full) / tail
    # The slowest classes are full; the first class that the level does not fill ends them.
    first = int(np.argmax((level < root) & (level > 0)))
    cycles = np.empty(fleet.classes)
    cycles[order] = np.minimum(1.0, level[first] / root)
    return cycles


def target_rates(fleet: Fleet, concurrency: int) -> FloatArray:
    r"""Tasks per unit of time of a client of each class at the least noise, :math:`r_i = d_i \mu_i`."""
    return duty_cycles(fleet, concurrency) * fleet.service_rates


def noise_rate(fleet: Fleet, rates: FloatArray) -> float:
    r"""How fast gradient noise enters when clients complete tasks at ``rates`` and count equally.

    .. math:: \nu = \frac{1}{n^2} \sum_i \frac{1}{r_i}

    Unbiased updates that move the mean at speed :math:`\gamma` bring noise at rate
    :math:`\gamma^2 \nu \sigma^2`. For routed tasks :math:`r_i = \lambda p_i`.
    """
    return float(fleet.counts @ (1.0 / rates)) / float(fleet.size) ** 2


def noise_floor(fleet: Fleet, concurrency: int) -> float:
    r"""The least noise rate of any policy and any service law with ``concurrency`` tasks in flight.

    .. math:: \nu \ge \frac{1}{n^2} \sum_i \frac{1}{d_i \mu_i}

    with :math:`d` from `duty_cycles`. The policy ``never-queue`` attains it.

    >>> from sojourn.network import built_in_fleet
    >>> [round(noise_floor(built_in_fleet("three-clusters"), m), 4) for m in (1, 10, 20, 30)]
    [22.2856, 2.2286, 1.3036, 1.2333]
    """
    return noise_rate(fleet, target_rates(fleet, concurrency))

r"""The least noise that any way of sending tasks can have, and the rates that attain it.

With m tasks in flight client i completes tasks at a rate :math:`r_i \le \mu_i`, and
:math:`\sum_i r_i/\mu_i \le m`, because a task that is being served occupies its client for
:math:`1/\mu_i` on average and tasks that wait occupy nobody (Little's law). Whatever the policy and
the law of the service times, the noise of unbiased updates per unit of time is therefore at least
what these two constraints allow.

With links a task occupies one of the m places for :math:`\tau_i = 1/\mu_i + d_i + u_i`, so the second
constraint is :math:`\sum_i r_i \tau_i \le m`, and the first stays if a client may compute while
other tasks of its are on their way: one in service and one on the way keep it busy. With one task
each, journeys included, it is :math:`r_i \le 1/\tau_i`. A server that takes time only lowers the rates.

A client that is there a share :math:`a_i` of the time, while its work waits for it otherwise, has
:math:`a_i \mu_i` in place of :math:`\mu_i` throughout. Where clients do not count the same,
:math:`\omega_i` is ``Fleet.relative_weights``; otherwise it is 1.
"""

import numpy as np

from sojourn.network import Fleet, check_concurrency
from sojourn.types import FloatArray


def duty_cycles(fleet: Fleet, concurrency: int) -> FloatArray:
    r"""The fraction of time that a client of each class has a task at the least noise, one task each.

    .. math:: d_i = \min(1, c\,\omega_i/\sqrt{\mu_i}), \qquad \sum_i d_i = \min(m, n)

    with :math:`1/\tau_i` in place of :math:`\mu_i` where there are links; the solution of
    :math:`\min \sum_i \omega_i^2/(d_i \mu_i)` by water-filling; shape ``(k,)``. With m >= n
    everybody is always busy. Cost: O(k log k).

    >>> duty_cycles(Fleet([1.0, 4.0]), 1).round(6).tolist()
    [0.666667, 0.333333]
    >>> duty_cycles(Fleet([1.0, 4.0]), 2).tolist()
    [1.0, 1.0]
    """
    m = check_concurrency(concurrency)
    if m >= fleet.size:
        return np.ones(fleet.classes)
    speeds, weights = round_trip_rates(fleet), fleet.relative_weights
    order = np.argsort(speeds / weights**2, kind="stable")
    root = np.sqrt(speeds[order]) / weights[order]
    counts = fleet.counts[order].astype(np.float64)
    full = np.cumsum(counts) - counts
    tail = np.cumsum((counts / root)[::-1])[::-1]
    level = (m - full) / tail
    # The slowest classes are full; the first class that the level does not fill ends them.
    first = int(np.argmax((level < root) & (level > 0)))
    cycles = np.empty(fleet.classes)
    cycles[order] = np.minimum(1.0, level[first] / root)
    return cycles


def round_trip_rates(fleet: Fleet) -> FloatArray:
    r"""Tasks per unit of time of a client that always has exactly one, :math:`1/\tau_i`.

    >>> round_trip_rates(Fleet([1.0, 4.0], downlink=[0.0, 0.5], uplink=[1.0, 0.25])).tolist()
    [0.5, 1.0]
    """
    links = [column for column in (fleet.downlink, fleet.uplink) if column is not None]
    if not links:
        return fleet.effective_rates
    return np.asarray(1.0 / (1.0 / fleet.effective_rates + np.sum(links, axis=0)))


def target_rates(fleet: Fleet, concurrency: int) -> FloatArray:
    r"""Tasks per unit of time of a client at the least noise, one task each, :math:`r_i = d_i/\tau_i`."""
    return duty_cycles(fleet, concurrency) * round_trip_rates(fleet)


def noise_rate(fleet: Fleet, rates: FloatArray) -> float:
    r"""How fast gradient noise enters when clients complete tasks at ``rates``.

    .. math:: \nu = \frac{1}{n^2} \sum_i \frac{\omega_i^2}{r_i}

    Unbiased updates that move the mean at speed :math:`\gamma` bring noise at rate
    :math:`\gamma^2 \nu \sigma^2`. For routed tasks :math:`r_i = \lambda p_i`.
    """
    worth = fleet.relative_weights**2
    return float(fleet.counts @ (worth / rates)) / float(fleet.size) ** 2


def noise_floor(fleet: Fleet, concurrency: int) -> float:
    r"""The least noise rate of any policy and any service law with ``concurrency`` tasks in flight.

    .. math:: \nu \ge \frac{1}{n^2} \sum_i \frac{\omega_i^2}{d_i \mu_i}

    with :math:`d` from `duty_cycles`. The policy ``never-queue`` attains it. With links it is
    :math:`\sum_i \omega_i^2/r_i` at :math:`r_i = \min(\mu_i, c\,\omega_i/\sqrt{\tau_i})`,
    :math:`\sum_i r_i \tau_i \le m`;
    ``never-queue``, with one task for each client, comes to ``noise_rate`` of its ``target_rates``.

    >>> from sojourn.network import built_in_fleet
    >>> [round(noise_floor(built_in_fleet("three-clusters"), m), 4) for m in (1, 10, 20, 30)]
    [22.2856, 2.2286, 1.3036, 1.2333]
    """
    if fleet.downlink is None and fleet.uplink is None:
        return noise_rate(fleet, target_rates(fleet, concurrency))
    speeds, most = round_trip_rates(fleet), fleet.effective_rates
    m, weights = check_concurrency(concurrency), fleet.relative_weights
    order = np.argsort(most / np.sqrt(speeds) / weights, kind="stable")
    caps, trips, weights = most[order], 1.0 / speeds[order], weights[order]
    counts = fleet.counts[order].astype(np.float64)
    full = np.cumsum(counts * caps * trips)
    if full[-1] <= m:
        return noise_rate(fleet, most)
    tail = np.cumsum((counts * np.sqrt(trips) * weights)[::-1])[::-1]
    level = (m - full + counts * caps * trips) / tail
    first = int(np.argmax(level * weights < caps * np.sqrt(trips)))
    rates = np.empty(fleet.classes)
    rates[order] = np.minimum(caps, level[first] * weights / np.sqrt(trips))
    return noise_rate(fleet, rates)

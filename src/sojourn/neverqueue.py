"""The steady state when no task ever waits, in closed form."""

import numpy as np

from sojourn.floor import duty_cycles
from sojourn.jackson.analysis import Analysis
from sojourn.network import Network


def never_queue(network: Network) -> Analysis:
    r"""Steady state of ``network`` under the policy ``never-queue``, for any law of service times.

    .. math::

        r_i = d_i \mu_i, \quad \Lambda = \sum_i r_i, \quad s_i = r_i/\Lambda, \quad
        \frac{E[D_i]}{s_i} = \begin{cases} \Lambda/\mu_i - 1 & d_i = 1 \\
            (\Lambda - R/M)/\mu_i & d_i < 1 \end{cases}

    with :math:`d` from `sojourn.floor.duty_cycles`, and M tasks and a rate R with the clients that
    rest at times (:math:`d_i < 1`). A task spends :math:`1/\mu_i` with client i; the routing plays
    no part, and of more tasks than clients only n are sent. Rates, noise and times are exact for
    every law. So is the staleness in rounds of a client that is always busy (everybody's with m >= n):
    whenever one looks, the others complete :math:`\Lambda - \mu_i` tasks per unit of time.

    The staleness of clients that rest assumes the other M - 1 tasks among them to be of average
    speed. Its mean over tasks is exact, :math:`\sum_i E[D_i] = m - 1`; by class it is exact if those
    clients are equally fast or m = 1, and otherwise an estimate: simulated, it is mostly within a
    factor of two, but on three clusters a hundred times apart in speed with two or three tasks the
    slow are half as stale and the fast four to five times (ten times for deterministic service).
    Links and a server that takes time have no part in it. Cost: O(k log k).

    >>> from sojourn.network import built_in_fleet, uniform_routing
    >>> fleet = built_in_fleet("three-clusters")
    >>> found = never_queue(Network(fleet, uniform_routing(fleet), 30))
    >>> found
    Analysis(throughput 11.1, staleness 10.1 to 1109 rounds, busiest client 100.0% busy)
    >>> round(found.noise_rate, 4), round(found.mean_staleness_time, 6)
    (1.2333, 37.0)
    """
    fleet = network.fleet
    cycles = duty_cycles(fleet, network.concurrency)
    rates = cycles * fleet.service_rates
    throughput = float(fleet.counts @ rates)
    rests = cycles < 1.0
    own = fleet.service_rates.copy()
    if rests.any():
        own[rests] = (fleet.counts * rates)[rests].sum() / (fleet.counts * cycles)[rests].sum()
    shares = rates / throughput
    staleness = np.maximum(throughput - own, 0.0) / fleet.service_rates
    return Analysis(
        network=network,
        throughput=throughput,
        mean_tasks=shares * staleness,
        mean_tasks_full=cycles,
        utilization=cycles,
        relative_delay=shares * staleness,
        client_shares=shares,
    )

"""The steady state when no task ever waits, in closed form."""

import numpy as np

from sojourn.floor import duty_cycles, round_trip_rates
from sojourn.jackson.analysis import Analysis, shares_of_links
from sojourn.jackson.approximate import absences_of
from sojourn.jackson.occupancy import link_times
from sojourn.network import Fleet, Network
from sojourn.types import FloatArray

SETTLED = 60
"""Steps after which halving an interval, or a time that settles, changes no digit that matters."""


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

    With links :math:`1/\mu_i` becomes the round trip :math:`\tau_i = 1/\mu_i + d_i + u_i`, during which a
    client has its one task, and the task is where it is in proportion to the times. A client that is
    there a share :math:`a_i` of the time has :math:`a_i \mu_i` for :math:`\mu_i`: exact if it never rests;
    one that rests may be away when its turn comes, and then the task waits: rates are an estimate
    (``is_exact``) and above the floor, which only a policy could attain that knew who is there.
    For a server that takes time nothing is known. Cost: O(k log k).

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
    speeds = round_trip_rates(fleet)
    rates = cycles * speeds
    waits = fleet.comes_and_goes and bool((cycles < 1.0).any())
    if waits:
        rates, speeds = _away_at_their_turn(fleet, rates, speeds, network.concurrency)
        cycles = rates / speeds
    throughput = float(fleet.counts @ rates)
    rests = cycles < 1.0
    own = speeds.copy()
    if rests.any():
        own[rests] = (fleet.counts * rates)[rests].sum() / (fleet.counts * cycles)[rests].sum()
    shares = rates / throughput
    delay = shares * (np.maximum(throughput - own, 0.0) / speeds)
    times = link_times(fleet)
    with_client = np.ones(fleet.classes)
    if times is not None:
        with_client = np.where(waits, 1.0 - speeds * times, speeds / fleet.effective_rates)
    downlink, uplink = shares_of_links(fleet, None if times is None else delay * speeds * times)
    return Analysis(
        network=network,
        throughput=throughput,
        mean_tasks=delay * with_client,
        mean_tasks_full=cycles * with_client,
        utilization=rates / fleet.service_rates if fleet.comes_and_goes else cycles * with_client,
        relative_delay=delay,
        client_shares=shares,
        is_exact=not waits,
        mean_on_downlink=downlink,
        mean_on_uplink=uplink,
    )


def _away_at_their_turn(
    fleet: Fleet, targets: FloatArray, speeds: FloatArray, tasks: int
) -> tuple[FloatArray, FloatArray]:
    r"""Rates of clients, and tasks per unit of time of one that always has one, if some are away.

    A client rests for :math:`I_i` on average before its turn; then it is away with probability
    :math:`f/(f + r + 1/I_i)`, and the task waits :math:`1/r` more. Turns come in the proportions of
    ``targets``, as often as ``tasks`` allow.
    """
    leaves, away = absences_of(fleet)
    back = np.divide(1.0, away, out=np.full(away.size, np.inf), where=away > 0.0)

    def held(pace: float) -> tuple[FloatArray, FloatArray]:
        time = 1.0 / speeds
        for _ in range(SETTLED):
            rates = np.minimum(pace * targets, 1.0 / time)
            rest = np.maximum(1.0 / rates - time, 0.0)
            time = 1.0 / speeds + leaves * rest / ((leaves + back) * rest + 1.0) * away
        return np.minimum(pace * targets, 1.0 / time), time

    low, high = 0.0, 1.0
    for _ in range(SETTLED):
        middle = 0.5 * (low + high)
        rates, time = held(middle)
        low, high = (middle, high) if fleet.counts @ (rates * time) < tasks else (low, middle)
    rates, time = held(high)
    return rates, 1.0 / time

"""The steady state when no task ever waits, in closed form."""

import numpy as np
from numpy.typing import ArrayLike

from sojourn.errors import InvalidInput
from sojourn.fleet import Network
from sojourn.fleet.laws import Law, Laws, class_laws
from sojourn.theory.floor import duty_cycles, round_trip_rates, stopped_times
from sojourn.theory.jackson.analysis import Analysis, shares_of_links

AWAY = (
    "fewer tasks than clients, which are away at times: the rates are an upper limit, reached only "
    "while enough clients are present. Simulate."
)


def never_queue(
    network: Network,
    *,
    work: ArrayLike = 1.0,
    patience: float | None = None,
    law: Laws | None = None,
) -> Analysis:
    r"""Steady state of ``network`` under the policy ``never-queue``, for any law of service times.

    .. math::

        r_i = d_i \mu_i, \quad \Lambda = \sum_i r_i, \quad s_i = r_i/\Lambda, \quad
        \frac{E[D_i]}{s_i} = \begin{cases} \Lambda/\mu_i - 1 & d_i = 1 \\
            (\Lambda - R/M)/\mu_i & d_i < 1 \end{cases}

    with :math:`d` from `sojourn.theory.floor.duty_cycles`, and M tasks and a rate R with the
    clients that rest at times (:math:`d_i < 1`). A task spends :math:`1/\mu_i` with client i; the
    routing plays no part, and of more tasks than clients only n are sent. Rates, noise and times
    are exact for every law. So is the staleness in rounds of a client that is always busy
    (everybody's with m >= n): whenever one looks, the others complete :math:`\Lambda - \mu_i` tasks
    per time unit.

    The staleness of clients that rest assumes the other M - 1 tasks among them to be of average
    speed. Its mean over tasks is exact, :math:`\sum_i E[D_i] = m - 1`; by class it is exact if those
    clients are equally fast or m = 1, and otherwise an estimate: simulated, it is mostly within a
    factor of two, but on three clusters a hundred times apart in speed with two or three tasks the
    slow are half as stale and the fast four to five times (ten times for deterministic service).

    With links :math:`1/\mu_i` becomes the round trip :math:`\tau_i = 1/\mu_i + d_i + u_i`, during which a
    client has its one task, and the task is where it is in proportion to the times. With ``work``
    :math:`H_i` (one number, or one per class) the client computes :math:`H_i/\mu_i`. With ``patience``
    :math:`a` a task begins anew after that many mean task times: :math:`\mu_i F(a)/E\min(S, a)` replaces
    :math:`\mu_i`, and a task is as old as its last attempt. This is known without links, and depends on
    the ``law`` (by default the fleet's, else exponential).

    A client that is there a share :math:`a_i` of the time has :math:`a_i \mu_i` for :math:`\mu_i`,
    and tasks go to those that are present. That is exact if everybody is always busy. With fewer
    tasks than clients the rates are those of the floor as long as a client is there whenever a task
    is due to somebody, which is not always so: then they are lower, and ``is_exact`` is false. For
    a server that takes time nothing is known. Cost: O(k log k).

    >>> from sojourn.fleet import built_in_fleet, uniform_routing
    >>> fleet = built_in_fleet("three-clusters")
    >>> found = never_queue(Network(fleet, uniform_routing(fleet), 30))
    >>> found
    Analysis(throughput 11.1, staleness 10.1 to 1109 rounds, busiest client 100.0% busy)
    >>> round(found.noise_rate, 4), round(found.mean_staleness_time, 6)
    (1.2333, 37.0)
    """
    fleet, times = network.fleet, network.fleet.link_times
    last = np.ones(fleet.classes)
    steps = np.broadcast_to(np.asarray(work, dtype=np.float64), (fleet.classes,))
    if patience is not None:
        if times is not None:
            raise InvalidInput("with patience and links no theory of never-queue is known")
        laws = class_laws(network, law) or [Law("exponential")] * fleet.classes
        stopped = [stopped_times(one, patience) for one in laws]
        fleet = fleet.with_rates(fleet.service_rates * [each.rate for each in stopped])
        last = np.array([each.last * each.rate for each in stopped])
    cycles = duty_cycles(fleet, network.concurrency, work)
    speeds = round_trip_rates(fleet, work)
    rates = cycles * speeds
    throughput = float(fleet.counts @ rates)
    rests = cycles < 1.0
    own = speeds.copy()
    if rests.any():
        own[rests] = (fleet.counts * rates)[rests].sum() / (fleet.counts * cycles)[rests].sum()
    shares = rates / throughput
    delay = last * shares * (np.maximum(throughput - own, 0.0) / speeds)
    with_client = np.ones(fleet.classes)
    if times is not None:
        with_client = speeds * steps / fleet.effective_rates
    downlink, uplink = shares_of_links(fleet, None if times is None else delay * speeds * times)
    return Analysis(
        network=network,
        throughput=throughput,
        mean_tasks=delay * with_client,
        mean_tasks_full=cycles * with_client,
        utilization=rates * steps / fleet.service_rates
        if fleet.is_intermittent
        else cycles * with_client,
        relative_delay=delay,
        client_shares=shares,
        is_exact=not (fleet.is_intermittent and (rests.any() or patience is not None)),
        caution=AWAY if fleet.is_intermittent and rests.any() else "",
        mean_on_downlink=downlink,
        mean_on_uplink=uplink,
    )

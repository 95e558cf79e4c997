"""Steady state for service times that are not exponential, approximately."""

import numba
import numpy as np

from sojourn.compiling import read_only
from sojourn.jackson.occupancy import Occupancy, link_times
from sojourn.network import Fleet, Network
from sojourn.types import FloatArray, IntArray

POWER = 1.5
"""Chosen on 30 random fleets with lognormal times; `benchmarks/approximation.py` checks it on others."""


def approximate_occupancy(
    network: Network, scv: FloatArray, *, server_scv: float = 1.0
) -> Occupancy:
    r"""Where the tasks are when service times have squared coefficients of variation ``scv``.

    There is no product form. Reiser's approximation lets an arriving task find what it would with
    one task fewer, and the one in service with its mean remaining time, for k = 1 to m tasks:

    .. math::

        R_i(k) = \frac{1}{\mu_i} \Bigl(1 + Q_i(k-1) - f_i U_i(k-1) \frac{1 - c_i^2}{2}\Bigr), \quad
        \lambda_k = \frac{k}{\theta + R_s(k) + \sum_i p_i R_i(k)}

    with :math:`Q_i(k) = \lambda_k p_i R_i(k)` and :math:`U_i(k) = \lambda_k p_i/\mu_i`. Reiser has
    :math:`f_i = 1`. Here :math:`f_i = 1 - Q_i(k-1)/(k-1)`, the share of the other tasks that are
    elsewhere: where nearly all wait at one client, the next arrives just after one was finished there,
    and finds the service in progress at its beginning, not at a random point of it. For
    :math:`c_i^2 > 1` it is that to the power 3/2, since a long service keeps tasks from coming back to
    see it; there laws of the same variability differ, and no power is right for all. Nor does the
    throughput exceed what the busiest station can do; what is then left waits there.
    With ``scv`` 1 it is exact.

    Where clients come and go, leaving at rate :math:`f = 1/` ``mean_up`` and returning at rate
    :math:`r = 1/` ``mean_down``, and work waits for them, the work of a task takes
    :math:`(1 + f/r)/\mu_i` for :math:`1/\mu_i`, and a task that finds its client away waits
    :math:`1/r` before any: with Poisson arrivals it would so with probability :math:`f/(f + r)`. One
    and the same task comes back at rate :math:`\lambda p_i/k` to a client that it last saw there, so here
    it is :math:`f/(f + r + \lambda p_i/k)`, times the share of the other tasks elsewhere, since those
    there have just seen it, too: :math:`R_i` has that times
    :math:`1/r` more. ``scv`` has shape ``(k,)``. The covariances are not told: they are NaN.
    Cost: O(k m). M. Reiser, "A queueing network analysis of computer communication networks with window
    flow control", 1979; not in the paper.

    >>> from sojourn.network import Fleet
    >>> network = Network(Fleet([1.0, 2.0]), [1 / 3, 2 / 3], concurrency=3)
    >>> [round(approximate_occupancy(network, np.full(2, c)).throughput, 3) for c in (1.0, 0.0)]
    [2.25, 2.475]
    """
    counts, p, s = network.fleet.counts, network.routing, 1.0 / network.fleet.effective_rates
    leaves, away = absences_of(network.fleet)
    times = link_times(network.fleet)
    links = np.zeros(p.size) if times is None else p * times
    if network.server_rate is not None:
        counts, p = np.append(counts, 1), np.append(p, 1.0)
        s, scv = np.append(s, 1.0 / network.server_rate), np.append(scv, server_scv)
        leaves, away = np.append(leaves, 0.0), np.append(away, 0.0)
    theta = float(network.fleet.counts @ links)
    before, throughput, mean, full = _recursion(
        read_only(p),
        read_only(s),
        read_only(scv),
        read_only(counts),
        network.concurrency,
        theta,
        read_only(leaves),
        read_only(away),
    )
    k = network.fleet.classes
    served = network.server_rate is not None
    return Occupancy(
        throughput=throughput,
        mean_tasks=mean[:k],
        mean_on_links=None if times is None else before * links,
        mean_at_server=float(mean[-1]) if served else 0.0,
        mean_tasks_full=full[:k],
        mean_on_links_full=None if times is None else throughput * links,
        mean_at_server_full=float(full[-1]) if served else 0.0,
        weighted_covariance=np.full(k, np.nan),
    )


def absences_of(fleet: Fleet) -> tuple[FloatArray, FloatArray]:
    """How often clients that are there leave, and how long they are then away, shape ``(k,)`` each."""
    if fleet.mean_up is None or fleet.mean_down is None:
        return np.zeros(fleet.classes), np.zeros(fleet.classes)
    goes = fleet.mean_down > 0.0
    return np.divide(1.0, fleet.mean_up, out=np.zeros(goes.size), where=goes), fleet.mean_down


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _recursion(
    p: FloatArray,
    s: FloatArray,
    scv: FloatArray,
    counts: IntArray,
    tasks: int,
    links: float,
    leaves: FloatArray,
    away: FloatArray,
) -> tuple[float, float, FloatArray, FloatArray]:
    """Throughput with one task fewer and with all, and mean tasks at stations likewise."""
    busiest = int(np.argmax(p * s))
    greatest = 1.0 / (p[busiest] * s[busiest])
    mean = np.zeros(p.size)
    full = np.zeros(p.size)
    before = throughput = 0.0
    for number in range(1, tasks + 1):
        before = throughput
        mean[:] = full
        work = links
        for j in range(p.size):
            busy = before * p[j] * s[j]
            elsewhere = max(1.0 - mean[j] / max(number - 1, 1), 0.0)
            found = elsewhere if scv[j] <= 1.0 else elsewhere**POWER
            full[j] = p[j] * s[j] * (1.0 + mean[j] - busy * found * (1.0 - scv[j]) / 2.0)
            if away[j] > 0.0:
                # How often one and the same task comes back; the first alone, as if nobody went.
                own = (
                    before / (number - 1) if number > 1 else 1.0 / (links + np.sum(counts * p * s))
                )
                found_away = leaves[j] / (leaves[j] + 1.0 / away[j] + own * p[j])
                full[j] += p[j] * elsewhere * found_away * away[j]
            work += counts[j] * full[j]
        throughput = min(number / work, greatest)
        full *= throughput
        full[busiest] += (number - throughput * work) / counts[busiest]
    return before, throughput, mean, full

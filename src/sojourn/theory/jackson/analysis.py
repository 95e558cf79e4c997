"""The steady state of a network in the paper's terms, approximate where there is no product form."""

from dataclasses import dataclass

import numpy as np

from sojourn._support.compiling import njit, read_only
from sojourn.errors import InvalidInput
from sojourn.figures.figure import Figure
from sojourn.figures.notebook import bar, table_html
from sojourn.fleet import Fleet, Network
from sojourn.fleet.laws import LawLike, Laws, ServiceLaw, as_law, class_laws
from sojourn.theory.floor import noise_rate
from sojourn.theory.jackson.classes import class_figure, shown_classes
from sojourn.theory.jackson.occupancy import Occupancy, occupancy
from sojourn.theory.jackson.steady_state import Engine, steady_state
from sojourn.types import FloatArray, IntArray

MOST_VARIABLE = 4.0
"""Squared coefficient of variation up to which the approximation was compared with simulations."""
LONGEST_AWAY = 10.0
"""Mean service times that an absence may last for the approximation to be good."""


@dataclass(frozen=True, eq=False)
class Analysis:
    """Steady state of a network: arrays of shape ``(k,)`` hold the value of one client per class."""

    network: Network
    throughput: float
    r"""Rounds per time unit, :math:`\lambda`."""
    mean_tasks: FloatArray
    r"""Tasks at a client at the end of a round, :math:`E[X_i]` (``m - 1`` tasks in all)."""
    mean_tasks_full: FloatArray
    r"""Tasks at a client at any time, :math:`E[\xi_i]` (``m`` tasks in all)."""
    utilization: FloatArray
    r"""Share of the time that a client is computing, :math:`P(\xi_i > 0)`."""
    relative_delay: FloatArray
    r""":math:`E[D_i]`, which includes the chance :math:`p_i` that the task is sent to client i.

    Equal to ``mean_tasks`` (the paper's Theorem 3.1, equation (6)) where links and server take no
    time; otherwise :math:`E[X_i] + E[L_i] + p_i E[X_s]`, a client's tasks wherever they are.
    """
    mean_on_downlink: FloatArray | None = None
    """Tasks on their way to a client at the end of a round; ``None`` without links."""
    mean_on_uplink: FloatArray | None = None
    """Updates on their way back from a client at the end of a round; ``None`` without links."""
    mean_at_server: float = 0.0
    r"""Updates at the server at the end of a round, :math:`E[X_s]`."""
    mean_at_server_full: float = 0.0
    """Updates at the server at any time."""
    is_exact: bool = True
    """False for other times than exponential and intermittent clients: then an approximation."""
    caution: str = ""
    """Why an approximation is not to be trusted here; empty if it was found good."""
    client_shares: FloatArray | None = None
    """Share of the rounds that a client completes; ``None`` where it is the routing."""

    @property
    def why_approximate(self) -> str:
        """What makes it an approximation, as a clause of a sentence; empty if it is exact."""
        if self.is_exact:
            return ""
        intermittent = self.network.fleet.is_intermittent
        return "clients are intermittent" if intermittent else "service times are not exponential"

    @property
    def mean_on_links(self) -> FloatArray | None:
        r"""Tasks on both links of a client at the end of a round, :math:`E[L_i]`."""
        if self.mean_on_downlink is None or self.mean_on_uplink is None:
            return None
        return self.mean_on_downlink + self.mean_on_uplink

    @property
    def staleness(self) -> FloatArray:
        r"""Rounds that a task sent to client i waits, :math:`E[D_i]/s_i`; its mean is ``m - 1``."""
        return self.relative_delay / self.shares

    @property
    def server_utilization(self) -> float:
        r"""Share of the time that the server is busy, :math:`\lambda/\mu_s`."""
        rate = self.network.server_rate
        return 0.0 if rate is None else min(self.throughput / rate, 1.0)

    @property
    def shares(self) -> FloatArray:
        r"""Share of the rounds that a client of each class completes, :math:`s_i`.

        The routing where tasks are routed.
        """
        return self.network.routing if self.client_shares is None else self.client_shares

    @property
    def rates(self) -> FloatArray:
        r"""Tasks that a client completes per time unit, :math:`r_i = \lambda s_i`."""
        return self.throughput * self.shares

    @property
    def weights(self) -> FloatArray:
        r"""What an update counts in an unbiased step, :math:`\omega_i/(n s_i)`; its mean is 1.

        :math:`\omega` is ``Fleet.relative_weights``, 1 where all clients count the same.
        """
        return self.network.fleet.relative_weights / (self.network.size * self.shares)

    @property
    def weight_square(self) -> float:
        r"""Mean over rounds of the squared weight, :math:`\kappa = \frac{1}{n^2} \sum_i \omega_i^2/s_i`."""
        return self.noise_rate * self.throughput

    @property
    def noise_rate(self) -> float:
        r"""How fast gradient noise enters unbiased steps: `sojourn.theory.floor.noise_rate` of the rates."""
        return noise_rate(self.network.fleet, self.rates)

    @property
    def staleness_time(self) -> FloatArray:
        r"""Time that a task spends with a client, :math:`E[\xi_i]/r_i` by Little's law.

        Links and a server that takes time add what a task spends there.
        """
        time = self.mean_tasks_full / self.rates + self.mean_at_server_full / self.throughput
        links = self.network.fleet.link_times
        return time if links is None else time + links

    @property
    def mean_staleness_time(self) -> float:
        """Mean over *clients* of the time that a task spends with them.

        A client carries its weight of an unbiased step, however many tasks it has: clients count by
        ``Fleet.relative_weights``, equally if there are none.
        """
        fleet = self.network.fleet
        return float((fleet.counts * fleet.relative_weights) @ self.staleness_time) / fleet.size

    def __repr__(self) -> str:
        busiest = self.utilization.max()
        server = f", server {self.server_utilization:.1%}" if self.network.server_rate else ""
        kind = "" if self.is_exact else "approximate "
        return (
            f"Analysis({kind}throughput {self.throughput:.6g}, staleness {self.staleness.min():.4g} to "
            f"{self.staleness.max():.4g} rounds, busiest client {busiest:.1%} busy{server})"
        )

    def plot(self) -> Figure:
        """Share, load, wait and weight of every class."""
        fleet = self.network.whole_fleet()
        return class_figure(fleet, shown_classes(fleet), {"steady state": self})

    def _repr_html_(self) -> str:
        fleet = self.network.fleet
        rows = [
            (
                fleet.label(k),
                str(fleet.counts[k]),
                bar(float(fleet.counts[k] * self.shares[k])),
                bar(float(self.utilization[k])),
                f"{self.mean_tasks_full[k]:.4g}",
                f"{self.staleness[k]:.4g}",
            )
            for k in range(fleet.classes)
        ]
        columns = ("class", "clients", "share of tasks", "busy", "tasks there", "staleness, rounds")
        return table_html(repr(self), columns, rows)


def analyze(
    network: Network,
    *,
    engine: Engine = "auto",
    law: Laws | None = None,
    server_law: LawLike | None = None,
) -> Analysis:
    r"""Steady state of ``network``: exact for exponential service times, the default.

    .. math::

        \lambda = Z_{n,m-1}/Z_{n,m}, \quad
        E[\xi_i] = \lambda \rho_i (1 + E[X_i]), \quad P(\xi_i > 0) = \lambda \rho_i

    The relative delays sum to :math:`m - 1` over the clients. Links and a server that takes time
    enter as ``sojourn.theory.jackson.occupancy`` says. Cost: O(k) for large m.
    Paper: Proposition 2.1 (4), Theorem 3.1 (6) and (8), Proposition 4.1 (12); links and server are
    not in the paper.

    ``law`` is a name, a table, a law, or a list with one per class of the whole fleet, as for
    ``simulate``; by default the laws in the fleet's column ``law``. If its squared coefficient of
    variation ``scv`` or that of ``server_law`` is not 1, the result is Reiser's approximation, says
    ``is_exact`` False, and costs O(km): see `approximate_occupancy`. So it is for
    intermittent clients. ``caution`` says where simulations were found to disagree: for times more
    variable than ``scv`` 4 (lognormal with sigma 2: 45 % off), and for absences that last many tasks.

    >>> from sojourn.fleet import Fleet, balanced_routing
    >>> fleet = Fleet([1.0, 2.0])
    >>> analyze(Network(fleet, balanced_routing(fleet), concurrency=3))
    Analysis(throughput 2.25, staleness 1.5 to 3 rounds, busiest client 75.0% busy)
    >>> fleet = Fleet([1.0, 2.0], uplink=[0.0, 1.5])
    >>> analyze(Network(fleet, balanced_routing(fleet), concurrency=3, server_rate=4.0))
    Analysis(throughput 1.34065, staleness 1.411 to 2.295 rounds, busiest client 44.7% busy, server 33.5%)
    """
    laws = class_laws(network, law)
    scv = None if laws is None else np.array([_scv(one) for one in laws])
    server_scv = _scv(as_law(server_law, "server_law"))
    exponential = scv is None or bool(np.all(scv == 1.0))
    is_exact = exponential and server_scv == 1.0 and not network.fleet.is_intermittent
    if is_exact:
        tasks = occupancy(network, engine=engine)
    else:
        scv = np.ones(network.fleet.classes) if scv is None else scv
        tasks = approximate_occupancy(network, scv, server_scv=server_scv)
    downlink, uplink = shares_of_links(network.fleet, tasks.mean_on_links)
    return Analysis(
        network=network,
        throughput=tasks.throughput,
        mean_tasks=tasks.mean_tasks,
        mean_tasks_full=tasks.mean_tasks_full,
        utilization=np.minimum(
            tasks.throughput * network.routing / network.fleet.service_rates, 1.0
        ),
        relative_delay=tasks.relative_delay(network.routing),
        mean_on_downlink=downlink,
        mean_on_uplink=uplink,
        mean_at_server=tasks.mean_at_server,
        mean_at_server_full=tasks.mean_at_server_full,
        is_exact=is_exact,
        caution=_caution(network, scv, server_scv),
    )


def _caution(network: Network, scv: FloatArray | None, server_scv: float) -> str:
    most = max(server_scv, 0.0 if scv is None else float(scv.max()))
    if most > MOST_VARIABLE:
        return (
            f"service times are very variable (squared coefficient of variation {most:.3g}): the "
            f"approximation was found good up to {MOST_VARIABLE:g}. Simulate."
        )
    fleet = network.fleet
    if fleet.is_intermittent and fleet.mean_down is not None:
        longest = float((fleet.mean_down * fleet.service_rates).max())
        if longest > LONGEST_AWAY:
            return (
                f"clients are away for up to {longest:.3g} mean service times: the approximation was "
                f"found good up to {LONGEST_AWAY:g}. Simulate."
            )
    return ""


def _scv(law: ServiceLaw) -> float:
    scv = float(getattr(law, "scv", np.nan))
    if not np.isfinite(scv):
        raise InvalidInput(
            "a law of infinite or unknown variance has no steady state that is known, not even "
            "approximately; law=Law('exponential') gives that of exponential times"
        )
    return scv


def shares_of_links(
    fleet: Fleet, on_links: FloatArray | None
) -> tuple[FloatArray | None, FloatArray | None]:
    """Tasks on links, split into downlink and uplink as their mean times are."""
    times = fleet.link_times
    if on_links is None or times is None:
        return None, None
    per_time = np.divide(on_links, times, out=np.zeros(fleet.classes), where=times > 0.0)
    return fleet.column("downlink") * per_time, fleet.column("uplink") * per_time


def covariance(network: Network) -> FloatArray:
    r""":math:`\mathrm{Cov}[X_i, X_j]` between all clients, shape ``(n, n)``, at population m - 1.

    Of the tasks at the clients, not those on links or at the server; without these every row sums
    to zero, since the tasks are constant in number. Corrects the paper's (9) on the
    diagonal. Without links and server the gradient of the delays is this matrix divided by
    :math:`p_j`, equation (7). Cost: O(k) steady states; nobody needs it for gradients of the bounds.

    >>> from sojourn.fleet import Fleet
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
    links = None
    times = fleet.link_times
    if network.server_rate is not None or times is not None:
        # The server and all links stand behind the clients, as one class that no weight meets.
        load = 0.0 if network.server_rate is None else 1.0 / network.server_rate
        loads, counts = np.append(loads, load), np.append(counts, 1)
        if times is not None:
            links = np.zeros(loads.size)
            links[-1] = (fleet.counts * network.routing) @ times
    rows = np.empty((k, loads.size))
    for i in range(k):
        weights = np.zeros(loads.size)
        weights[i] = 1.0
        state = steady_state(loads, counts, network.concurrency, weights, links=links)
        rows[i] = state.weighted_covariance
    between = rows[:, :k].copy()
    np.fill_diagonal(between, 0.0)
    between[siblings, siblings] = rows[siblings, k + np.arange(siblings.size)]
    member = np.repeat(np.arange(k), fleet.counts)
    matrix = between[np.ix_(member, member)]
    np.fill_diagonal(matrix, rows[np.arange(k), np.arange(k)][member])
    return matrix


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

    Where clients are intermittent, leaving at rate :math:`f = 1/` ``mean_up`` and returning at rate
    :math:`r = 1/` ``mean_down``, and work waits for them, the work of a task takes
    :math:`(1 + f/r)/\mu_i` for :math:`1/\mu_i`, and a task that finds its client away waits
    :math:`1/r` before any: with Poisson arrivals it would so with probability :math:`f/(f + r)`. One
    and the same task comes back at rate :math:`\lambda p_i/k` to a client that it last saw there, so here
    it is :math:`f/(f + r + \lambda p_i/k)`, times the share of the other tasks elsewhere, since those
    there have just seen it, too: :math:`R_i` has that times
    :math:`1/r` more. ``scv`` has shape ``(k,)``. The covariances are unknown: they are NaN.
    Cost: O(k m). M. Reiser, "A queueing network analysis of computer communication networks with window
    flow control", 1979; not in the paper.

    >>> from sojourn.fleet import Fleet
    >>> network = Network(Fleet([1.0, 2.0]), [1 / 3, 2 / 3], concurrency=3)
    >>> [round(approximate_occupancy(network, np.full(2, c)).throughput, 3) for c in (1.0, 0.0)]
    [2.25, 2.475]
    """
    counts, p, s = network.fleet.counts, network.routing, 1.0 / network.fleet.effective_rates
    leaves, away = absences_of(network.fleet)
    times = network.fleet.link_times
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


@njit(cache=True, nogil=True, error_model="numpy")
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

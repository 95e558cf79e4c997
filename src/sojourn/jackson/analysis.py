"""The steady state of a network in the paper's terms."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sojourn.errors import InvalidInput
from sojourn.figure import Figure
from sojourn.jackson.approximate import approximate_occupancy
from sojourn.jackson.classes import class_figure, shown_classes
from sojourn.jackson.flow import Flow
from sojourn.jackson.occupancy import link_times, occupancy
from sojourn.jackson.steady_state import Engine, steady_state
from sojourn.laws import fleet_laws
from sojourn.network import Fleet, Network
from sojourn.notebook import bar, table_html
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
    """False for other times than exponential and clients that come and go: then an approximation."""
    client_shares: FloatArray | None = None
    """Share of the rounds that a client completes; ``None`` where it is the routing."""

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


class Variable(Protocol):
    """A law of service times whose variability is known."""

    @property
    def scv(self) -> float:
        """Squared coefficient of variation: variance over squared mean."""


def analyze(
    network: Network,
    *,
    engine: Engine = "auto",
    law: Variable | Sequence[Variable] | None = None,
    server_law: Variable | None = None,
) -> Analysis:
    r"""Steady state of ``network``: exact for exponential service times, the default.

    .. math::

        \lambda = Z_{n,m-1}/Z_{n,m}, \quad
        E[\xi_i] = \lambda \rho_i (1 + E[X_i]), \quad P(\xi_i > 0) = \lambda \rho_i

    The relative delays sum to :math:`m - 1` over the clients. Links and a server that takes time
    enter as ``sojourn.jackson.occupancy`` says. Cost: O(k) for large m.
    Paper: Proposition 2.1 (4), Theorem 3.1 (6) and (8), Proposition 4.1 (12); links and server are
    not in the paper.

    With a ``law`` (or one per class of the whole fleet) or a ``server_law`` whose squared coefficient
    of variation ``scv`` is not 1, the result is Reiser's approximation, says ``is_exact`` False, and
    costs O(km): see ``sojourn.jackson.approximate``. So it is for clients that come and go. Without
    ``law``, the laws are those in the fleet's column ``law``.

    >>> from sojourn.network import Fleet, balanced_routing
    >>> fleet = Fleet([1.0, 2.0])
    >>> analyze(Network(fleet, balanced_routing(fleet), concurrency=3))
    Analysis(throughput 2.25, staleness 1.5 to 3 rounds, busiest client 75.0% busy)
    >>> fleet = Fleet([1.0, 2.0], uplink=[0.0, 1.5])
    >>> analyze(Network(fleet, balanced_routing(fleet), concurrency=3, server_rate=4.0))
    Analysis(throughput 1.34065, staleness 1.411 to 2.295 rounds, busiest client 44.7% busy, server 33.5%)
    """
    scv = _variabilities(network, law)
    server_scv = 1.0 if server_law is None else server_law.scv
    exponential = scv is None or bool(np.all(scv == 1.0))
    is_exact = exponential and server_scv == 1.0 and not network.fleet.comes_and_goes
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
    )


def _variabilities(
    network: Network, law: Variable | Sequence[Variable] | None
) -> FloatArray | None:
    """Squared coefficients of variation of every class; ``None`` where no law is told."""
    laws: Sequence[object] = law if isinstance(law, Sequence) else [law]
    if law is None:
        told = fleet_laws(network.whole_fleet())
        if told is None:
            return None
        laws = told
    wholes = int(network.parents[-1]) + 1
    if len(laws) not in (1, wholes):
        raise InvalidInput(
            f"there must be one law for all clients or one for every class of the fleet, which has "
            f"{wholes}; there are {len(laws)}"
        )
    scv = np.array([getattr(one, "scv", np.nan) for one in laws])
    if not np.all(np.isfinite(scv)):
        raise InvalidInput(
            "a law of infinite or unknown variance has no steady state that is known, not even "
            "approximately; law=Law('exponential') gives that of exponential times"
        )
    return scv[network.parents] if scv.size > 1 else np.full(network.fleet.classes, scv[0])


def shares_of_links(
    fleet: Fleet, on_links: FloatArray | None
) -> tuple[FloatArray | None, FloatArray | None]:
    """Tasks on links, split into downlink and uplink as their mean times are."""
    times = link_times(fleet)
    if on_links is None or times is None:
        return None, None
    zero = np.zeros(fleet.classes)
    downlink = zero if fleet.downlink is None else fleet.downlink
    uplink = zero if fleet.uplink is None else fleet.uplink
    per_time = np.divide(on_links, times, out=zero.copy(), where=times > 0.0)
    return downlink * per_time, uplink * per_time


def covariance(network: Network, *, engine: Engine = "auto") -> FloatArray:
    r""":math:`\mathrm{Cov}[X_i, X_j]` between all clients, shape ``(n, n)``, at population m - 1.

    Of the tasks at the clients, not those on links or at the server; without these every row sums
    to zero, since the tasks are constant in number. Corrects the paper's (9) on the
    diagonal. Without links and server the gradient of the delays is this matrix divided by
    :math:`p_j`, equation (7). Cost: O(k) steady states; nobody needs it for gradients of the bounds.

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
    links = None
    times = link_times(fleet)
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
        rows[i] = steady_state(
            loads, counts, network.concurrency, weights, links=links, engine=engine
        ).weighted_covariance
    between = rows[:, :k].copy()
    np.fill_diagonal(between, 0.0)
    between[siblings, siblings] = rows[siblings, k + np.arange(siblings.size)]
    member = np.repeat(np.arange(k), fleet.counts)
    matrix = between[np.ix_(member, member)]
    np.fill_diagonal(matrix, rows[np.arange(k), np.arange(k)][member])
    return matrix

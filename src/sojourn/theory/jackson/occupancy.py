"""Where the tasks of a network are: at its clients, on their links, at the server."""

from typing import NamedTuple

import numpy as np

from sojourn.fleet import Network
from sojourn.theory.jackson.steady_state import Engine, SteadyState, steady_state
from sojourn.types import FloatArray


class Occupancy(NamedTuple):
    r"""Mean tasks of each client of a class and at the server, and how they move with the routing.

    ``mean_*`` are at the end of a round, with :math:`m - 1` tasks, ``mean_*_full`` at any time,
    with :math:`m`.
    """

    throughput: float
    mean_tasks: FloatArray
    r""":math:`E[X_i]`, at the client."""
    mean_on_links: FloatArray | None
    r""":math:`E[L_i]`, on its downlink and its uplink; ``None`` without links."""
    mean_at_server: float
    r""":math:`E[X_s]`; zero if the server takes no time."""
    mean_tasks_full: FloatArray
    mean_on_links_full: FloatArray | None
    mean_at_server_full: float
    weighted_covariance: FloatArray
    r""":math:`\mathrm{Cov}[F, X_j + L_j]` of :math:`F = \sum_i c_i w_i (X_i + L_i + p_i X_s)`."""

    @property
    def mean_held(self) -> FloatArray:
        r""":math:`E[X_i + L_i]`: the tasks that are a client's own."""
        if self.mean_on_links is None:
            return self.mean_tasks
        return self.mean_tasks + self.mean_on_links

    @property
    def mean_held_full(self) -> FloatArray:
        """``mean_held`` with :math:`m` tasks."""
        if self.mean_on_links_full is None:
            return self.mean_tasks_full
        return self.mean_tasks_full + self.mean_on_links_full

    def relative_delay(self, routing: FloatArray) -> FloatArray:
        r""":math:`E[D_i] = E[X_i] + E[L_i] + p_i E[X_s]`; over the clients they sum to m - 1."""
        if self.mean_at_server == 0.0:
            return self.mean_held
        return self.mean_held + routing * self.mean_at_server


def occupancy(
    network: Network, weights: FloatArray | None = None, *, engine: Engine = "auto"
) -> Occupancy:
    r"""Steady state of a network with links and a server, seen from its clients.

    .. math::

        Z_M = [z^M]\; \frac{e^{\theta z}}{1 - z/\mu_s} \prod_i (1 - \rho_i z)^{-c_i}, \qquad
        \theta = \sum_i c_i \theta_i, \quad \theta_i = p_i (d_i + u_i)

    ``weights`` is :math:`w`, shape ``(k,)``, zeros by default. A server without a rate and clients
    without links leave out their factors, and the result is that of ``steady_state`` bit by bit.
    With all :math:`w_i` held fixed,
    :math:`p_j\, \partial E[F]/\partial p_j = \mathrm{Cov}[F, X_j + L_j] + w_j p_j E[X_s]`.
    Cost: one steady state.
    """
    loads, p, counts = network.loads, network.routing, network.fleet.counts
    times = network.fleet.link_times
    links = None if times is None else p * times
    if network.server_rate is None:
        state = steady_state(
            loads, counts, network.concurrency, weights, links=links, engine=engine
        )
        at_server = server_load = 0.0
    else:
        server_load = 1.0 / network.server_rate
        state, at_server = _without_server(
            steady_state(
                np.append(loads, server_load),
                np.append(counts, 1),
                network.concurrency,
                None if weights is None else np.append(weights, counts @ (weights * p)),
                links=None if links is None else np.append(links, 0.0),
                engine=engine,
            )
        )
    covariance = state.weighted_covariance
    if state.links_covariance is not None:
        covariance = covariance + state.links_covariance
    throughput, mean_tasks = state.throughput, state.mean_tasks
    return Occupancy(
        throughput,
        mean_tasks,
        state.mean_on_links,
        at_server,
        throughput * loads * (1.0 + mean_tasks),
        None if links is None else throughput * links,
        throughput * server_load * (1.0 + at_server),
        covariance,
    )


def _without_server(state: SteadyState) -> tuple[SteadyState, float]:
    """The clients' part of a steady state whose last class is the server, and the server's tasks."""
    clients = SteadyState(
        state.throughput,
        state.mean_tasks[:-1],
        state.weighted_covariance[:-1],
        None if state.mean_on_links is None else state.mean_on_links[:-1],
        None if state.links_covariance is None else state.links_covariance[:-1],
    )
    return clients, float(state.mean_tasks[-1])

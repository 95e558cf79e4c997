"""What follows from how many tasks clients complete, whatever sends them."""

from sojourn.floor import noise_rate
from sojourn.jackson.occupancy import link_times
from sojourn.network import Network
from sojourn.types import FloatArray


class Flow:
    """Rates, weights, noise and staleness in time of a steady state; arrays have shape ``(k,)``."""

    network: Network
    throughput: float
    mean_tasks_full: FloatArray
    mean_at_server_full: float
    client_shares: FloatArray | None

    @property
    def shares(self) -> FloatArray:
        r"""Share of the rounds that a client of each class completes, :math:`s_i`.

        The routing where tasks are routed.
        """
        return self.network.routing if self.client_shares is None else self.client_shares

    @property
    def rates(self) -> FloatArray:
        r"""Tasks that a client completes per unit of time, :math:`r_i = \lambda s_i`."""
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
        r"""How fast gradient noise enters unbiased steps: `sojourn.floor.noise_rate` of the rates."""
        return noise_rate(self.network.fleet, self.rates)

    @property
    def staleness_time(self) -> FloatArray:
        r"""Time that a task spends with a client, :math:`E[\xi_i]/r_i` by Little's law.

        Links and a server that takes time add what a task spends there.
        """
        time = self.mean_tasks_full / self.rates + self.mean_at_server_full / self.throughput
        links = link_times(self.network.fleet)
        return time if links is None else time + links

    @property
    def mean_staleness_time(self) -> float:
        """Mean over *clients* of the time that a task spends with them.

        A client carries its weight of an unbiased step, however many tasks it has: clients count by
        ``Fleet.relative_weights``, equally if there are none.
        """
        fleet = self.network.fleet
        return float((fleet.counts * fleet.relative_weights) @ self.staleness_time) / fleet.size

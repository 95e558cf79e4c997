"""The noise of routed tasks as an objective: no constants, no learning rate."""

from dataclasses import dataclass
from typing import ClassVar

from sojourn.bounds import penalties
from sojourn.network import MOST_TASKS, Fleet, Network
from sojourn.optimize.objectives import Evaluation, OfNetworkAlone


@dataclass(frozen=True)
class NoiseRate(OfNetworkAlone):
    r"""How fast gradient noise enters unbiased steps, :math:`\nu = S_1/(n^2 \lambda)`.

    Two ways to send tasks that move the mean equally fast differ in noise by :math:`\nu` alone
    (`sojourn.floor.noise_rate`, where weights of clients enter), so it ranks them without constants of the learning problem and
    without a learning rate. It falls with every task in flight, ever more slowly, while staleness
    grows: it has no best concurrency, and a plan takes ``usual_concurrency`` = n, beyond which no
    policy can add a task without queueing. At m = 1 square-root routing is best (times the weights).

    >>> from sojourn.network import built_in_fleet, square_root_routing
    >>> fleet = built_in_fleet("three-clusters")
    >>> round(NoiseRate().evaluate(Network(fleet, square_root_routing(fleet), 30)).value, 3)
    2.118
    """

    name: ClassVar[str] = "noise-rate"
    maximize: ClassVar[bool] = False

    def usual_concurrency(self, fleet: Fleet) -> int:
        """As many tasks as clients."""
        return min(fleet.size, MOST_TASKS)

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network)
        value = s.routing / (float(network.size) ** 2 * s.throughput)
        return Evaluation(value, s.routing_gradient / s.routing - s.log_throughput_gradient)

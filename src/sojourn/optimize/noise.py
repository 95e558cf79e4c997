"""The noise of routed tasks as an objective: no constants, no learning rate."""

from dataclasses import dataclass
from typing import Any, Self

from sojourn.bounds import penalties
from sojourn.config import Table
from sojourn.constants import LearningConstants
from sojourn.errors import InvalidInput
from sojourn.network import MOST_TASKS, Fleet, Network
from sojourn.optimize.objectives import Evaluation


@dataclass(frozen=True)
class NoiseRate:
    r"""How fast gradient noise enters unbiased steps, :math:`\nu = S_1/(n^2 \lambda)`.

    Two ways to send tasks that move the mean equally fast differ in noise by :math:`\nu` alone
    (`sojourn.floor.noise_rate`), so it ranks them without constants of the learning problem and
    without a learning rate. It falls with every task in flight, ever more slowly, while staleness
    grows: it has no best concurrency, and a plan takes ``usual_concurrency`` = n, beyond which no
    policy can add a task without queueing. At m = 1 square-root routing is best.

    >>> from sojourn.network import built_in_fleet, square_root_routing
    >>> fleet = built_in_fleet("three-clusters")
    >>> round(NoiseRate().evaluate(Network(fleet, square_root_routing(fleet), 30)).value, 3)
    2.118
    """

    @property
    def name(self) -> str:
        return "noise-rate"

    @property
    def maximize(self) -> bool:
        return False

    @property
    def constants(self) -> LearningConstants | None:
        return None

    @property
    def learning_rate(self) -> float | None:
        return None

    def with_learning_rate(self, learning_rate: float | None) -> "NoiseRate":
        if learning_rate is not None:
            raise InvalidInput("the noise rate does not depend on a learning rate: leave it out")
        return self

    def usual_concurrency(self, fleet: Fleet) -> int:
        """As many tasks as clients."""
        return min(fleet.size, MOST_TASKS)

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network)
        value = s.routing / (float(network.size) ** 2 * s.throughput)
        return Evaluation(value, s.routing_gradient / s.routing - s.log_throughput_gradient)

    def rounds_at(self, network: Network) -> float | None:
        return None

    def to_table(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_table(cls, table: Table, constants: LearningConstants | None) -> Self:
        return cls()

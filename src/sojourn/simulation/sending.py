"""What the event kernels draw on to send tasks, whatever a task does on its way."""

import numpy as np

from sojourn.dispatch import NeverQueue, Policy, Shuffled
from sojourn.network import Network
from sojourn.simulation.draws import routed_stream, shuffled_stream
from sojourn.simulation.streams import BLOCK, Stream
from sojourn.simulation.turns import begin, no_turns, turns
from sojourn.types import IntArray


class Sending:
    """Clients drawn beforehand, choices among the idle, who is idle, and whose turn it is."""

    def __init__(
        self,
        network: Network,
        policy: Policy,
        drawing: np.random.Generator,
        choosing: np.random.Generator,
    ) -> None:
        self.shuffled = isinstance(policy, Shuffled)
        self.targets = (shuffled_stream if self.shuffled else routed_stream)(network, drawing)
        self.choices = Stream(choosing.random, block=max(BLOCK, policy.in_flight(network)))
        self.pool = np.arange(network.size, dtype=np.uint32)
        self.turns = turns(network) if isinstance(policy, NeverQueue) else no_turns()

    def begin(self, clients: IntArray) -> int:
        """The first tasks go to ``clients``; how many others are idle."""
        return begin(self.turns, self.pool, clients)

    def ready(self, targets: int, choices: int) -> IntArray:
        """See that there are as many numbers to use; where the kernel is to begin, for both."""
        self.targets.ensure(targets)
        self.choices.ensure(choices)
        return np.array([self.targets.used, self.choices.used])

    def used(self, cursor: IntArray) -> None:
        """The kernel has come that far."""
        self.targets.used, self.choices.used = map(int, cursor)

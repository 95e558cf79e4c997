"""Service times waiting to be used: for every stream a row of numbers of mean 1.

All clients share one stream, or those of one law do, or every client has its own, so that its j-th
task takes the same time under every policy and concurrency (common random numbers).
"""

from collections.abc import Sequence

import numpy as np

from sojourn.laws import ServiceLaw
from sojourn.network import Network
from sojourn.simulation.events import Times
from sojourn.simulation.streams import Seed, generators, substreams
from sojourn.types import FloatArray, IntArray

OWN_BLOCK = 32
"""Numbers drawn at a time for a stream of a single client."""
SERVICE, DOWNLINK, UPLINK, SERVER = 1, 4, 5, 6
"""The places of times among the generators of a run."""


class Units:
    """Rows of numbers, refilled in blocks of one size, so that they do not depend on when.

    ``row[i]`` is the stream of client i and ``scale[i]`` its mean service time; ``values[r, used[r]]``
    is the next number of stream r. ``least`` are kept ready in every row.
    """

    def __init__(
        self,
        network: Network,
        laws: Sequence[ServiceLaw],
        *,
        work: float,
        own: bool,
        block: int,
        least: int,
        seed: Seed,
    ) -> None:
        fleet = network.fleet
        self.scale: FloatArray = work / fleet.expand(fleet.service_rates)
        law_of = np.repeat(network.parents if len(laws) > 1 else 0 * network.parents, fleet.counts)
        self.least = least
        if own:
            self._laws = [laws[k] for k in law_of.tolist()]
            self._random = substreams(seed, SERVICE, network.size)
            self.row: IntArray = np.arange(network.size)
            self._block = OWN_BLOCK
        else:
            shared = len(laws) == 1
            self._laws = list(laws)
            self._random = (
                [generators(seed, SERVICE + 1)[SERVICE]]
                if shared
                else substreams(seed, SERVICE, len(laws))
            )
            self.row = law_of.astype(np.int64)
            self._block = block
        rows = len(self._random)
        self.values: FloatArray = np.empty((rows, self._block + least))
        self.used: IntArray = np.zeros(rows, dtype=np.int64)
        self.filled: IntArray = np.zeros(rows, dtype=np.int64)
        self.refill()

    @property
    def times(self) -> Times:
        """The numbers as the kernels take them."""
        return Times(self.scale, self.row, self.values, self.used, self.filled, self.least)

    def refill(self) -> None:
        """Have at least ``least`` numbers ready in every row."""
        for r in np.flatnonzero(self.filled - self.used < self.least).tolist():
            rest = self.values[r, self.used[r] : self.filled[r]].copy()
            self.values[r, : rest.size] = rest
            fresh = self._laws[r].sample(self._random[r], self._block)
            self.values[r, rest.size : rest.size + self._block] = fresh
            self.used[r], self.filled[r] = 0, rest.size + self._block

    def take(self, client: int) -> float:
        """How long the next task of ``client`` takes."""
        r = int(self.row[client])
        if self.used[r] == self.filled[r]:
            self.refill()
        self.used[r] += 1
        return float(self.values[r, self.used[r] - 1] * self.scale[client])

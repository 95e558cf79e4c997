"""What the runs of all kernels draw and count alike: targets, rounds in pieces."""

from abc import ABC, abstractmethod
from typing import TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sojourn.compiling import Deferring  # noqa: F401
from sojourn.network import Network
from sojourn.simulation.alias import alias_table, routed_clients
from sojourn.simulation.streams import Stream
from sojourn.types import FloatArray, IntArray

Out: TypeAlias = tuple[NDArray[np.int32], IntArray, FloatArray]
"""Where completions are written: client, dispatch round and time of each."""


class InPieces(ABC):
    """A run whose kernel stops where random numbers run out, and goes on with fresh ones."""

    def advance(
        self,
        limit: float,
        done: int,
        client: NDArray[np.int32],
        sent: IntArray,
        time: FloatArray,
    ) -> tuple[int, bool]:
        """Fill the arrays; returns how many rounds were written and whether ``limit`` was passed."""
        written, ended = 0, False
        while written < client.size and not ended:
            rest = client[written:], sent[written:], time[written:]
            more, ended = self.piece(limit, done + written, rest)
            written += more
        return written, ended

    @abstractmethod
    def piece(self, limit: float, done: int, out: Out) -> tuple[int, bool]:
        """As `advance`, for as long as the random numbers last."""


def routed_stream(network: Network, random: np.random.Generator) -> "Stream[np.uint32]":
    """Clients drawn from the routing."""
    table = alias_table(network)
    return Stream(lambda size: routed_clients(table, random.random(size)))


def shuffled_stream(network: Network, random: np.random.Generator) -> "Stream[np.uint32]":
    """Clients in a fresh random order every n dispatches."""
    order = np.arange(network.size, dtype=np.uint32)
    position = np.zeros(1, dtype=np.int64)
    return Stream(lambda size: _shuffle(order, position, random.random(size)))


@njit(cache=True, nogil=True)
def _shuffle(
    order: NDArray[np.uint32], position: IntArray, uniforms: FloatArray
) -> NDArray[np.uint32]:
    """Clients in a fresh random order every n dispatches, one uniform number each."""
    clients = np.empty(uniforms.size, dtype=np.uint32)
    here = position[0]
    for i in range(uniforms.size):
        chosen = here + np.int64(uniforms[i] * (order.size - here))
        clients[i] = order[chosen]
        order[chosen] = order[here]
        order[here] = clients[i]
        here = (here + 1) % order.size
    position[0] = here
    return clients

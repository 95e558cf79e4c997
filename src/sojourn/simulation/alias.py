"""Drawing clients from the routing in constant time each, whatever the number of clients."""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sojourn.network import Network


class AliasTable(NamedTuple):
    """Walker's alias table over classes, and where the clients of each class lie.

    A uniform number picks a cell, then one of the cell's two classes; what is left of the number
    picks a member of that class, so one number is enough. The probability of every client is
    right to a few units of 1e-16.
    """

    keep: NDArray[np.float64]
    other: NDArray[np.int64]
    first: NDArray[np.int64]
    members: NDArray[np.int64]


def alias_table(network: Network) -> AliasTable:
    """The table that draws client i with probability ``network.client_routing[i]``.

    Cost: O(k) for k classes, once.
    """
    counts = network.fleet.counts
    weights = counts * network.routing
    mass = (weights / weights.sum() * counts.size).tolist()
    keep = np.ones(counts.size)
    other = np.arange(counts.size)
    poor = [k for k, value in enumerate(mass) if value < 1.0]
    rich = [k for k, value in enumerate(mass) if value >= 1.0]
    while poor and rich:
        giver, taker = rich[-1], poor.pop()
        keep[taker], other[taker] = mass[taker], giver
        mass[giver] -= 1.0 - mass[taker]
        if mass[giver] < 1.0:
            poor.append(rich.pop())
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    return AliasTable(keep, other, first, np.array(counts))


@njit(cache=True, nogil=True, error_model="numpy")
def routed_clients(table: AliasTable, uniforms: NDArray[np.float64]) -> NDArray[np.uint32]:
    """The clients that uniform numbers in [0, 1) pick."""
    keep, other, first, members = table
    clients = np.empty(uniforms.size, dtype=np.uint32)
    for i in range(uniforms.size):
        scaled = uniforms[i] * keep.size
        cell = np.int64(scaled)
        rest = scaled - cell
        edge = keep[cell]
        low = rest < edge
        chosen = cell if low else other[cell]
        part = rest / edge if low else (rest - edge) / (1.0 - edge)
        member = min(np.int64(part * members[chosen]), members[chosen] - 1)
        clients[i] = first[chosen] + member
    return clients

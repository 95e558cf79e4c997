"""Whose turn it is under never-queue: the idle clients in a heap, by when their next task is due.

The heap has four children per node and keeps the due times beside each other, so that one step down
reads one stretch of memory. Cost: O(log(n - m)) per round, nothing while everybody is busy.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sojourn.dispatch import intervals
from sojourn.network import Network
from sojourn.types import FloatArray, IntArray

_index = np.uint64


class Turns(NamedTuple):
    """Tasks of client i are due ``interval[i]`` apart, the first after half an interval.

    ``sent[i]`` have been sent; ``due[k]`` is when that of the idle client ``pool[k]`` is due.
    """

    interval: FloatArray
    sent: IntArray
    due: FloatArray


def no_turns() -> Turns:
    """For policies without turns."""
    return Turns(np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0))


def turns(network: Network) -> Turns:
    """Whose turn it is under `NeverQueue`, before any task is sent."""
    n = network.size
    apart = network.fleet.expand(intervals(network.fleet, network.concurrency))
    return Turns(apart, np.zeros(n, dtype=np.int64), np.full(n + 4, np.inf))


def begin(turns: Turns, pool: NDArray[np.uint32], clients: IntArray) -> int:
    """Write those without a task to ``pool`` when ``clients`` have got the first ones; how many they are."""
    idle = np.setdiff1d(pool, clients.astype(np.uint32))
    if turns.interval.size:
        np.add.at(turns.sent, clients, 1)
        idle = idle[np.argsort(turns.interval[idle], kind="stable")]  # a heap, sorted
        turns.due[: idle.size] = 0.5 * turns.interval[idle]
    pool[: idle.size] = idle
    return int(idle.size)


@njit(cache=True, nogil=True, error_model="numpy")
def furthest_behind(pool: NDArray[np.uint32], size: int, turns: Turns, finisher: int) -> int:
    """Whose turn it is among the idle clients and ``finisher``, who takes the other's place.

    A task is counted as sent to the one who is named.
    """
    chosen = finisher
    if size > 0:
        interval, sent, due = turns
        own = (sent[finisher] + 0.5) * interval[finisher]
        if due[0] < own or (due[0] == own and pool[0] < finisher):
            chosen = pool[0]
            _sink(pool, due, _index(size), own, finisher)
    turns.sent[chosen] += 1
    return int(chosen)


@njit(cache=True, nogil=True, error_model="numpy")
def _sink(
    pool: NDArray[np.uint32], due: FloatArray, size: np.uint64, own: float, client: int
) -> None:
    """Put ``client`` where the first one was. Places beyond the last hold infinite times."""
    parent = _index(0)
    while True:
        child = (parent << _index(2)) + _index(1)
        if child >= size:
            break
        least = child
        for sibling in range(1, 4):
            other = child + _index(sibling)
            if due[other] < due[least] or (due[other] == due[least] and pool[other] < pool[least]):
                least = other
        if due[least] > own or (due[least] == own and pool[least] > client):
            break
        due[parent], pool[parent] = due[least], pool[least]
        parent = least
    due[parent], pool[parent] = own, client

"""The tasks in flight: one first-in-first-out queue per client, threaded through m slots.

A completed task leaves its slot to the task dispatched at the same instant, so m slots are enough for
ever, and a run needs O(n + m) memory. The slot after the last means "nobody": writing to it does no
harm, which spares the kernels branches.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sojourn.types import IntArray


class Queues(NamedTuple):
    """``ends[i]`` holds the first and the last slot of client i; ``following[s]`` the slot after s.

    ``sent[s]`` is the number of rounds completed when the task in slot s was dispatched.
    """

    ends: NDArray[np.uint32]
    following: NDArray[np.uint32]
    sent: IntArray


def empty_queues(clients: int, tasks: int) -> Queues:
    """Queues for ``clients`` clients with room for ``tasks`` tasks."""
    return Queues(
        np.full((clients, 2), tasks, dtype=np.uint32),
        np.full(tasks + 1, tasks, dtype=np.uint32),
        np.zeros(tasks + 1, dtype=np.int64),
    )


@njit(cache=True, nogil=True)
def in_flight(queues: Queues) -> tuple[NDArray[np.int32], IntArray]:
    """The client and the dispatch round of every task that has not completed."""
    nobody = queues.following.size - 1
    clients = np.empty(nobody, dtype=np.int32)
    sent = np.empty(nobody, dtype=np.int64)
    found = 0
    for client in range(queues.ends.shape[0]):
        slot = queues.ends[client, 0]
        while slot != nobody:
            clients[found] = client
            sent[found] = queues.sent[slot]
            found += 1
            slot = queues.following[slot]
    return clients[:found], sent[:found]

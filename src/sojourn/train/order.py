"""What a schedule says in advance about the tasks of a run."""

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


def task_ordinals(client: NDArray[np.integer]) -> IntArray:
    """For every completion, how many tasks its client had completed before.

    Clients work in order of arrival, so this is also the order in which they were sent.

    >>> task_ordinals(np.array([0, 1, 0, 0, 1])).tolist()
    [0, 0, 1, 2, 1]
    """
    by_client = np.argsort(client, kind="stable")
    counts = np.bincount(client) if client.size else np.zeros(0, dtype=np.int64)
    starts = np.cumsum(counts) - counts
    ordinals = np.empty(client.size, dtype=np.int64)
    ordinals[by_client] = np.arange(client.size) - np.repeat(starts, counts)
    return ordinals


def last_uses(dispatched: NDArray[np.integer]) -> IntArray:
    """For every number of completions d, the last completion of a task sent then, or -1.

    Weights are kept until then and no longer.

    >>> last_uses(np.array([0, 0, 1, 0])).tolist()
    [3, 2, -1, -1, -1]
    """
    rounds = dispatched.size
    last = np.full(rounds + 1, -1, dtype=np.int64)
    np.maximum.at(last, dispatched, np.arange(rounds))
    return last


def run_end(dispatched: NDArray[np.integer], start: int, limit: int) -> int:
    """Where the run of independent tasks that begins at completion ``start`` ends.

    All tasks of the run were sent with weights that exist when it begins; at most ``limit`` tasks.

    >>> run_end(np.array([0, 0, 1, 0, 1]), start=0, limit=10)
    2
    >>> run_end(np.array([0, 0, 1, 0, 1]), start=2, limit=10)
    5
    """
    ahead = dispatched[start : start + limit] > start
    return start + (int(ahead.argmax()) if ahead.any() else ahead.size)

"""Where the m tasks are at time 0."""

import numpy as np
from numpy.typing import ArrayLike

from sojourn.errors import InvalidInput, UnknownName
from sojourn.network import Network
from sojourn.simulation.stationary import stationary_state
from sojourn.types import IntArray

STARTS = ("spread", "stationary")

Start = str | ArrayLike


def start_name(start: Start) -> str:
    """``"spread"``, ``"stationary"``, or ``"given"`` for a state of one's own."""
    if not isinstance(start, str):
        return "given"
    if start not in STARTS:
        raise UnknownName("start", start, STARTS)
    return start


def first_clients(
    network: Network, start: Start, tasks: int, random: np.random.Generator
) -> IntArray:
    """The client of each of the first tasks, shape ``(tasks,)``.

    ``"spread"`` deals the tasks out round-robin (client 0, 1, ..., n-1, 0, ...); ``"stationary"`` draws
    the state from the product form; anything else is the number of tasks of each client, shape ``(n,)``.
    """
    name = start_name(start)
    n = network.size
    if name == "spread":
        return np.arange(tasks, dtype=np.int64) % n
    state = stationary_state(network, random) if name == "stationary" else _given(n, start, tasks)
    return np.repeat(np.arange(n, dtype=np.int64), state)


def _given(n: int, start: Start, tasks: int) -> IntArray:
    state = np.asarray(start, dtype=np.float64)
    if state.shape != (n,) or not np.all((state >= 0) & (state == np.floor(state))):
        raise InvalidInput(
            f"a start of one's own must be {n} whole numbers, the tasks of each client at time 0; "
            f"its shape is {state.shape}"
        )
    if state.sum() != tasks:
        raise InvalidInput(
            f"a start of one's own must hold concurrency = {tasks} tasks; it holds {state.sum():g}"
        )
    return state.astype(np.int64)

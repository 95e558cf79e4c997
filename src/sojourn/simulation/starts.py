"""Where the m tasks are at time 0."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sojourn.errors import InvalidInput, UnknownName
from sojourn.network import Network
from sojourn.simulation.journeys import DOWNLINK, SERVER, SERVICE, UPLINK
from sojourn.simulation.stationary import stationary_state, stationary_whereabouts
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


def first_journeys(
    network: Network, start: Start, tasks: int, random: np.random.Generator
) -> tuple[IntArray, NDArray[np.uint8]]:
    """The client of each of the first tasks and where it is on its way, ``(tasks,)`` each.

    Tasks set out at time 0, on the downlink where there is one, unless the start is stationary.
    """
    if start_name(start) != "stationary":
        clients = first_clients(network, start, tasks, random)
        far = network.fleet.downlink
        travels = np.zeros(network.size) if far is None else network.fleet.expand(far)
        return clients, np.where(travels[clients] > 0.0, DOWNLINK, SERVICE).astype(np.uint8)
    found = stationary_whereabouts(network, random)
    everyone = np.arange(network.size, dtype=np.int64)
    parts = [
        (np.repeat(everyone, found.served), SERVICE),
        (np.repeat(everyone, found.on_downlink), DOWNLINK),
        (np.repeat(everyone, found.on_uplink), UPLINK),
        (random.permutation(np.repeat(everyone, found.at_server)), SERVER),
    ]
    stages = [np.full(clients.size, stage, dtype=np.uint8) for clients, stage in parts]
    return np.concatenate([clients for clients, _ in parts]), np.concatenate(stages)


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

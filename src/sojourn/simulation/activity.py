"""How long clients computed, received and sent in a simulated run, what energy and bytes that took."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sojourn.checks import check_number
from sojourn.dispatch import Idle, NeverQueue, Routed, Shuffled, Synchronous
from sojourn.energy import POWERS
from sojourn.errors import InvalidInput
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.schedule import Schedule
from sojourn.types import FloatArray, IntArray

KEEPS_TASKS = (Routed, NeverQueue, Idle, Shuffled, Synchronous)
"""Policies that let every task run to its end, so that a schedule tells who computed when."""


def tells_time_spent(scenario: Scenario) -> bool:
    """Whether `time_spent` can be had from the schedules of ``scenario``."""
    return isinstance(scenario.policy, KEEPS_TASKS)


def time_spent(schedule: Schedule) -> FloatArray:
    """Time that each client spent computing, receiving and sending, shape ``(n, 3)``.

    Tasks still under way count for what they took until the end. Cost: O(rounds), or O(n) where the
    kernel has kept account.

    >>> from sojourn.network import Fleet, Network
    >>> from sojourn.simulation.simulate import simulate
    >>> network = Network(Fleet([1.0, 2.0]), [0.5, 0.5], 1)
    >>> time_spent(simulate(network, time=6.0, law="deterministic", seed=2)).sum()
    np.float64(6.0)
    """
    n = schedule.network.size
    if not tells_time_spent(schedule.scenario):
        raise InvalidInput(
            f"the policy '{schedule.scenario.policy.name}' may stop tasks, whose time a schedule "
            "does not tell"
        )
    if schedule.spent is not None:
        return np.asarray(schedule.spent[:-1].reshape(3, n).T)
    busy = np.zeros((n, 3))
    busy[:, 0] = _computing(
        schedule.client,
        schedule.dispatched,
        schedule.time,
        schedule.pending_client,
        schedule.pending_dispatched,
        n,
        schedule.duration,
    )
    return busy


def energy_used(schedule: Schedule, *, server_power: float = 0.0) -> FloatArray:
    """Energy that each client used over the run, shape ``(n,)``, then the server's.

    As in `sojourn.energy.energy_per_round`, with the times that were simulated.
    """
    fleet = schedule.network.fleet
    if not any(name in fleet.columns for name in POWERS):
        raise InvalidInput(
            f"the fleet tells no powers: give it one of the columns {', '.join(POWERS)}"
        )
    zero = np.zeros(fleet.classes)
    compute, uplink, downlink, idle = (
        fleet.expand(fleet.columns.get(name, zero)) for name in POWERS
    )
    spent = time_spent(schedule)
    active = compute * spent[:, 0] + downlink * spent[:, 1] + uplink * spent[:, 2]
    clients = active + idle * (schedule.duration - spent[:, 0])
    at_server = 0.0 if schedule.spent is None else float(schedule.spent[-1])
    return np.append(clients, server_power * at_server)


def bytes_moved(schedule: Schedule, model_bytes: float) -> FloatArray:
    """Bytes that each client received and sent over the run, shape ``(n, 2)``.

    Every task sends a model of ``model_bytes`` down, also those still under way, and every completed
    one an update of the same size up. Cost: O(rounds).

    >>> from sojourn.network import Fleet, Network
    >>> from sojourn.simulation.simulate import simulate
    >>> network = Network(Fleet([1.0, 2.0]), [0.5, 0.5], 2)
    >>> bytes_moved(simulate(network, rounds=100, seed=2), 10.0).sum(axis=0).tolist()
    [1020.0, 1000.0]
    """
    size = check_number("model_bytes", model_bytes, above=0.0)
    scenario, n = schedule.scenario, schedule.network.size
    loses = scenario.offline == "lose" and scenario.has_calendar(schedule.network)
    if loses or not tells_time_spent(scenario):
        how = "clients that go away lose tasks" if loses else "the policy may stop tasks"
        raise InvalidInput(f"{how}, and a schedule does not tell how many were sent in vain")
    sent = np.bincount(schedule.client, minlength=n)
    received = sent + np.bincount(schedule.pending_client, minlength=n)
    return size * np.stack([received, sent], axis=1).astype(np.float64)


@njit(cache=True, nogil=True)
def _computing(
    client: NDArray[np.int32],
    dispatched: IntArray,
    time: FloatArray,
    pending_client: NDArray[np.int32],
    pending_dispatched: IntArray,
    clients: int,
    end: float,
) -> FloatArray:
    """A task is served from when it was sent, or its client became free, whichever is later."""
    busy = np.zeros(clients)
    free = np.zeros(clients)
    for t in range(client.size):
        i = client[t]
        sent = time[dispatched[t] - 1] if dispatched[t] else 0.0
        busy[i] += time[t] - max(sent, free[i])
        free[i] = time[t]
    begun = np.full(clients, np.inf)
    for j in range(pending_client.size):
        i = pending_client[j]
        sent = time[pending_dispatched[j] - 1] if pending_dispatched[j] else 0.0
        begun[i] = min(begun[i], max(sent, free[i]))
    for i in range(clients):
        if begun[i] < end:
            busy[i] += end - begun[i]
    return busy

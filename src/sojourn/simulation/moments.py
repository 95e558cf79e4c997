"""The states that a schedule went through, class by class, and their moments."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sojourn.simulation.schedule import Schedule
from sojourn.types import FloatArray, IntArray

_MOST_ENTRIES = 1 << 20


def class_moments(schedule: Schedule, *, warm_up: int) -> tuple[FloatArray, FloatArray]:
    """Means of the class totals at the ends of rounds, ``(k,)``, and of their products, ``(k, k)``.

    Every round is used while that takes at most a million entries, else evenly spaced rounds.
    """
    fleet = schedule.network.fleet
    stride = max(1, (schedule.rounds - warm_up) * fleet.classes // _MOST_ENTRIES)
    return _sampled_moments(
        np.repeat(np.arange(fleet.classes), fleet.counts),
        fleet.classes,
        schedule.client,
        schedule.dispatched,
        schedule.pending_client,
        schedule.pending_dispatched,
        warm_up,
        stride,
    )


@njit(cache=True, nogil=True)
def _sampled_moments(
    class_of: IntArray,
    classes: int,
    client: NDArray[np.int32],
    dispatched: IntArray,
    pending_client: NDArray[np.int32],
    pending_dispatched: IntArray,
    warm_up: int,
    stride: int,
) -> tuple[FloatArray, FloatArray]:
    """Replay the schedule, tasks counted by class; needs one dispatch per round."""
    rounds = client.size
    sent_to = np.empty(rounds, dtype=np.int32)
    state = np.zeros(classes)
    for t in range(rounds):
        if dispatched[t] == 0:
            state[class_of[client[t]]] += 1.0
        else:
            sent_to[dispatched[t] - 1] = class_of[client[t]]
    for j in range(pending_client.size):
        if pending_dispatched[j] == 0:
            state[class_of[pending_client[j]]] += 1.0
        else:
            sent_to[pending_dispatched[j] - 1] = class_of[pending_client[j]]
    first = np.zeros(classes)
    second = np.zeros((classes, classes))
    samples = 0
    for t in range(rounds):
        state[class_of[client[t]]] -= 1.0
        if t >= warm_up and (t - warm_up) % stride == 0:
            samples += 1
            first += state
            for a in range(classes):
                if state[a] > 0.0:
                    for b in range(classes):
                        second[a, b] += state[a] * state[b]
        state[sent_to[t]] += 1.0
    return first / samples, second / samples

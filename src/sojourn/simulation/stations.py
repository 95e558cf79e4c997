"""The compiled kernel for networks in which tasks travel, and updates wait at the server.

A task goes down a client's link, is served there first in, first out, comes back up the link and
queues at the server, first in, first out; then the round counts and the next task goes out. Stages
that take no time are passed through at the same instant and use no random number. Every task on a
link, the first of each queue and no other has one entry in the heap of `sojourn.simulation.events`.
Cost: O(log m) per stage.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sojourn.simulation.events import (
    NEVER_QUEUE,
    ROUTED,
    SYNCHRONOUS,
    Heap,
    Times,
    Turns,
    duration,
    furthest_behind,
    pop,
    push,
    short_of,
)
from sojourn.simulation.queues import Queues
from sojourn.types import FloatArray, IntArray

SERVICE, DOWNLINK, UPLINK, SERVER, DONE = 0, 1, 2, 3, 4
"""Where a task is. Stage s of client i has the number s n + i among times; the server 3 n."""


class Journeys(NamedTuple):
    """Where tasks are: ``client[s]`` and ``stage[s]`` of the task in slot s.

    ``spent`` is the time spent in every stage, shape ``(3 n + 1,)``, for those begun so far, each in
    full. The queue of the server is the one after those of the clients.
    """

    client: NDArray[np.uint32]
    stage: NDArray[np.uint8]
    spent: FloatArray


def no_journeys(clients: int, tasks: int) -> Journeys:
    """No task anywhere yet, and room for ``tasks``."""
    return Journeys(
        np.zeros(tasks + 1, dtype=np.uint32),
        np.full(tasks + 1, DONE, dtype=np.uint8),
        np.zeros(3 * clients + 1),
    )


@njit(cache=True, nogil=True)
def place(
    queues: Queues,
    journeys: Journeys,
    heap: Heap,
    times: Times,
    clients: IntArray,
    stages: NDArray[np.uint8],
    begin: int,
) -> int:
    """Put the first tasks where ``stages`` says, from ``begin`` on; each stage begins at time 0.

    Returns how many are placed: all, or those before random numbers ran out.
    """
    for slot in range(begin, clients.size):
        journeys.client[slot] = clients[slot]
        if _enter(queues, journeys, heap, times, slot, stages[slot], 0.0):
            return slot + 1
    return int(clients.size)


@njit(cache=True, nogil=True, error_model="numpy")
def advance(
    policy: int,
    queues: Queues,
    journeys: Journeys,
    heap: Heap,
    times: Times,
    pool: NDArray[np.uint32],
    turns: Turns,
    targets: NDArray[np.uint32],
    choices: FloatArray,
    cursor: IntArray,
    limit: float,
    done: int,
    client_out: NDArray[np.int32],
    sent_out: IntArray,
    time_out: FloatArray,
) -> tuple[int, bool]:
    """Run until the output is full, random numbers run out, or the clock passes ``limit``.

    As `sojourn.simulation.events.advance`, which explains the arguments; a client is idle while
    none of its tasks is anywhere on its journey.
    """
    written = 0
    ended = short = False
    tasks = queues.following.size - 1
    clients = queues.ends.shape[0] - 1
    has_server = times.scale[3 * clients] > 0.0
    while written < client_out.size and not short:
        if policy == SYNCHRONOUS and heap.state[0] == 0:
            if cursor[1] + tasks > choices.size:
                break
            now = heap.clock[0]
            for slot in range(tasks):
                chosen = slot + np.int64(choices[cursor[1]] * (pool.size - slot))
                cursor[1] += 1
                pool[slot], pool[chosen] = pool[chosen], pool[slot]
                short |= _send(queues, journeys, heap, times, slot, pool[slot], done + written, now)
            continue
        if cursor[0] >= targets.size or cursor[1] >= choices.size:
            break
        now = heap.when[0]
        if now > limit:
            ended = True
            break
        slot = int(heap.who[0])
        client = journeys.client[slot]
        stage = journeys.stage[slot]
        pop(heap)
        short |= _leave(queues, journeys, heap, times, slot, now)
        if stage == DOWNLINK:
            short |= _enter(queues, journeys, heap, times, slot, SERVICE, now)
            continue
        if stage == SERVICE and times.scale[UPLINK * clients + client] > 0.0:
            short |= _enter(queues, journeys, heap, times, slot, UPLINK, now)
            continue
        if stage != SERVER and has_server:
            short |= _enter(queues, journeys, heap, times, slot, SERVER, now)
            continue

        client_out[written] = client
        sent_out[written] = queues.sent[slot]
        time_out[written] = now
        written += 1
        journeys.stage[slot] = DONE
        if policy == SYNCHRONOUS:
            heap.clock[0] = now
            continue
        idle = heap.state[2]
        if policy == ROUTED:
            target = targets[cursor[0]]
            cursor[0] += 1
        elif policy == NEVER_QUEUE:
            target = np.uint32(furthest_behind(pool, idle, turns, client))
            turns.sent[target] += 1
        else:
            pool[idle] = client
            chosen = np.int64(choices[cursor[1]] * (idle + 1))
            cursor[1] += 1
            target = pool[chosen]
            pool[chosen] = pool[idle]
        short |= _send(queues, journeys, heap, times, slot, target, done + written, now)
    return written, ended


@njit(cache=True, nogil=True, error_model="numpy")
def _send(
    queues: Queues,
    journeys: Journeys,
    heap: Heap,
    times: Times,
    slot: int,
    client: int,
    done: int,
    now: float,
) -> bool:
    """A new task in ``slot`` sets out; whether numbers have to be refilled."""
    journeys.client[slot] = client
    queues.sent[slot] = done
    travels = times.scale[DOWNLINK * (queues.ends.shape[0] - 1) + client] > 0.0
    first = DOWNLINK if travels else SERVICE
    return _enter(queues, journeys, heap, times, slot, first, now)


@njit(cache=True, nogil=True, error_model="numpy")
def _enter(
    queues: Queues,
    journeys: Journeys,
    heap: Heap,
    times: Times,
    slot: int,
    stage: int,
    now: float,
) -> bool:
    nobody = queues.following.size - 1
    journeys.stage[slot] = stage
    queues.following[slot] = nobody
    if stage in (DOWNLINK, UPLINK):
        return _begin(journeys, heap, times, slot, now)
    queue = queues.ends.shape[0] - 1 if stage == SERVER else np.int64(journeys.client[slot])
    alone = queues.ends[queue, 0] == nobody
    if alone:
        queues.ends[queue, 0] = slot
    else:
        queues.following[queues.ends[queue, 1]] = slot
    queues.ends[queue, 1] = slot
    return _begin(journeys, heap, times, slot, now) if alone else False


@njit(cache=True, nogil=True, error_model="numpy")
def _leave(
    queues: Queues, journeys: Journeys, heap: Heap, times: Times, slot: int, now: float
) -> bool:
    """The task in ``slot`` has ended its stage: the next of its queue, if there is one, begins."""
    stage = journeys.stage[slot]
    if stage != SERVICE and stage != SERVER:
        return False
    successor = queues.following[slot]
    queue = queues.ends.shape[0] - 1 if stage == SERVER else np.int64(journeys.client[slot])
    queues.ends[queue, 0] = successor
    if successor == queues.following.size - 1:
        return False
    return _begin(journeys, heap, times, successor, now)


@njit(cache=True, nogil=True, error_model="numpy")
def _begin(journeys: Journeys, heap: Heap, times: Times, slot: int, now: float) -> bool:
    """The stage of the task in ``slot`` begins; whether numbers have to be refilled."""
    number = _number(journeys, slot)
    takes = duration(times, number)
    journeys.spent[number] += takes
    push(heap, now + takes, slot)
    return short_of(times, number)


@njit(cache=True, nogil=True, error_model="numpy")
def _number(journeys: Journeys, slot: int) -> int:
    """The number of the stage that the task in ``slot`` is in."""
    clients = (journeys.spent.size - 1) // 3
    stage = np.int64(journeys.stage[slot])
    if stage == SERVER:
        return 3 * clients
    return int(stage * clients + np.int64(journeys.client[slot]))


@njit(cache=True, nogil=True)
def spent_until(journeys: Journeys, heap: Heap, now: float) -> FloatArray:
    """The time spent in every stage until ``now``, shape ``(3 n + 1,)``."""
    spent = journeys.spent.copy()
    for place in range(heap.state[0]):
        spent[_number(journeys, heap.who[place])] -= heap.when[place] - now
    return spent


def under_way(queues: Queues, journeys: Journeys) -> tuple[NDArray[np.int32], IntArray]:
    """The client and the dispatch round of every task that has not completed, by client."""
    slots = np.flatnonzero(journeys.stage[:-1] != DONE)
    order = np.lexsort((queues.sent[slots], journeys.client[slots]))
    return journeys.client[slots][order].astype(np.int32), queues.sent[slots][order]

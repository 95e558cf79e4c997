"""The compiled kernel for networks in which tasks travel, updates wait at the server, clients go away.

A task makes its journey (`sojourn.simulation.journeys`); then the round counts and the next task goes
out. While a client is away, its tasks wait; or, if the calendar says so, all tasks that it has when it
goes are lost, and as many are sent anew, as the policy says. Tasks sent to a client that is away wait
there either way. Cost: O(log m) per stage.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sojourn.simulation.calendars import Calendar
from sojourn.simulation.events import (
    NEVER_QUEUE,
    ROUTED,
    SYNCHRONOUS,
    Heap,
    Times,
    pop,
)
from sojourn.simulation.journeys import (
    DONE,
    DOWNLINK,
    SERVER,
    SERVICE,
    UPLINK,
    Journeys,
    enter,
    leave,
    send,
    speed_at,
    work_on,
)
from sojourn.simulation.queues import Queues
from sojourn.simulation.turns import Turns, furthest_behind
from sojourn.types import FloatArray, IntArray


@njit(cache=True, nogil=True)
def place(
    queues: Queues,
    journeys: Journeys,
    calendar: Calendar | None,
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
        if enter(queues, journeys, calendar, heap, times, slot, stages[slot], 0.0):
            return slot + 1
    return int(clients.size)


@njit(cache=True, nogil=True, error_model="numpy")
def advance(
    policy: int,
    queues: Queues,
    journeys: Journeys,
    calendar: Calendar | None,
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
    # As many tasks may be sent at once: when a client goes away with all it has.
    sends = 1
    if calendar is not None:
        sends = tasks if calendar.loses[0] else 1
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
                short |= send(
                    queues, journeys, calendar, heap, times, slot, pool[slot], done + written, now
                )
            continue
        if cursor[0] + sends > targets.size or cursor[1] + sends > choices.size:
            break
        now = heap.when[0]
        if now > limit:
            ended = True
            break
        if calendar is not None and now >= calendar.end[0]:
            break
        slot = int(np.int64(heap.who[0]))  # one type, for which `journeys` is compiled once
        client = int(journeys.client[slot])
        stage = journeys.stage[slot]
        pop(heap)
        if calendar is not None and stage == SERVICE and journeys.left[slot] >= 0.0:
            if (
                calendar.loses[0]
                and journeys.works[slot]
                and speed_at(calendar, client, now) == 0.0
            ):
                short |= _lose(
                    policy,
                    queues,
                    journeys,
                    calendar,
                    heap,
                    times,
                    pool,
                    turns,
                    targets,
                    choices,
                    cursor,
                    client,
                    done + written,
                    now,
                )
            else:
                work_on(journeys, calendar, heap, slot, journeys.left[slot], now)
            continue
        short |= leave(queues, journeys, calendar, heap, times, slot, now)
        if stage == DOWNLINK:
            short |= enter(queues, journeys, calendar, heap, times, slot, SERVICE, now)
            continue
        if stage == SERVICE and times.scale[UPLINK * clients + client] > 0.0:
            short |= enter(queues, journeys, calendar, heap, times, slot, UPLINK, now)
            continue
        if stage != SERVER and has_server:
            short |= enter(queues, journeys, calendar, heap, times, slot, SERVER, now)
            continue

        client_out[written] = client
        sent_out[written] = queues.sent[slot]
        time_out[written] = now
        written += 1
        journeys.stage[slot] = DONE
        if policy == SYNCHRONOUS:
            heap.clock[0] = now
            continue
        target = _next_client(policy, pool, heap.state[2], turns, targets, choices, cursor, client)
        short |= send(queues, journeys, calendar, heap, times, slot, target, done + written, now)
    return written, ended


@njit(cache=True, nogil=True, error_model="numpy")
def _next_client(
    policy: int,
    pool: NDArray[np.uint32],
    idle: int,
    turns: Turns,
    targets: NDArray[np.uint32],
    choices: FloatArray,
    cursor: IntArray,
    client: int,
) -> int:
    """Who gets the next task, when ``client`` is rid of one."""
    if policy == ROUTED:
        target = int(targets[cursor[0]])
        cursor[0] += 1
    elif policy == NEVER_QUEUE:
        target = furthest_behind(pool, idle, turns, client)
    else:
        pool[idle] = client
        chosen = np.int64(choices[cursor[1]] * (idle + 1))
        cursor[1] += 1
        target = int(pool[chosen])
        pool[chosen] = pool[idle]
    return target


@njit(cache=True, nogil=True, error_model="numpy")
def _lose(
    policy: int,
    queues: Queues,
    journeys: Journeys,
    calendar: Calendar,
    heap: Heap,
    times: Times,
    pool: NDArray[np.uint32],
    turns: Turns,
    targets: NDArray[np.uint32],
    choices: FloatArray,
    cursor: IntArray,
    client: int,
    done: int,
    now: float,
) -> bool:
    """``client`` has gone with its tasks: as many are sent, those of a cohort to it again."""
    nobody = queues.following.size - 1
    slot = int(np.int64(queues.ends[client, 0]))
    queues.ends[client, 0] = nobody
    short = False
    while slot != nobody:
        following = int(np.int64(queues.following[slot]))
        target = client
        if policy != SYNCHRONOUS:
            if policy == NEVER_QUEUE:
                turns.sent[client] -= 1
            target = _next_client(
                policy, pool, heap.state[2], turns, targets, choices, cursor, client
            )
        short |= send(queues, journeys, calendar, heap, times, slot, target, done, now)
        slot = following
    return short

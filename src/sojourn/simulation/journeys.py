"""Where the tasks of a run are on their way, and how they move from stage to stage, compiled.

A task goes down a client's link, is served there first in, first out, comes back up the link and
queues at the server, first in, first out. Stages that take no time are passed through at the same
instant and use no random number. Every task on a link, the first of each queue and no other has one
entry in the heap of `sojourn.simulation.events`.

Where clients come and go or change their speed (`sojourn.simulation.calendars`), a service is cut at
every step of its client's speed, and each piece is an entry.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sojourn.simulation.calendars import Calendar
from sojourn.simulation.events import Heap, Times, duration, push, short_of
from sojourn.simulation.queues import Queues
from sojourn.types import FloatArray, IntArray

SERVICE, DOWNLINK, UPLINK, SERVER, DONE = 0, 1, 2, 3, 4
"""Where a task is. Stage s of client i has the number s n + i among times; the server 3 n."""


class Journeys(NamedTuple):
    """Where tasks are: ``client[s]`` and ``stage[s]`` of the task in slot s.

    ``spent`` is the time spent in every stage, shape ``(3 n + 1,)``, for those begun so far, each in
    full. The queue of the server is the one after those of the clients. ``left[s]`` is the work that
    is left when the present piece of a service ends, -1 if none; ``works[s]`` whether the client is
    there meanwhile.
    """

    client: NDArray[np.uint32]
    stage: NDArray[np.uint8]
    spent: FloatArray
    left: FloatArray
    works: NDArray[np.bool_]


def no_journeys(clients: int, tasks: int) -> Journeys:
    """No task anywhere yet, and room for ``tasks``."""
    return Journeys(
        np.zeros(tasks + 1, dtype=np.uint32),
        np.full(tasks + 1, DONE, dtype=np.uint8),
        np.zeros(3 * clients + 1),
        np.full(tasks + 1, -1.0),
        np.ones(tasks + 1, dtype=np.bool_),
    )


@njit(cache=True, nogil=True, error_model="numpy")
def send(
    queues: Queues,
    journeys: Journeys,
    calendar: Calendar | None,
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
    return enter(queues, journeys, calendar, heap, times, slot, first, now)


@njit(cache=True, nogil=True, error_model="numpy")
def enter(
    queues: Queues,
    journeys: Journeys,
    calendar: Calendar | None,
    heap: Heap,
    times: Times,
    slot: int,
    stage: int,
    now: float,
) -> bool:
    """The task in ``slot`` comes to ``stage``; whether numbers have to be refilled."""
    nobody = queues.following.size - 1
    journeys.stage[slot] = stage
    queues.following[slot] = nobody
    if stage in (DOWNLINK, UPLINK):
        return _begin(journeys, calendar, heap, times, slot, now)
    queue = queues.ends.shape[0] - 1 if stage == SERVER else np.int64(journeys.client[slot])
    alone = queues.ends[queue, 0] == nobody
    if alone:
        queues.ends[queue, 0] = slot
    else:
        queues.following[queues.ends[queue, 1]] = slot
    queues.ends[queue, 1] = slot
    return _begin(journeys, calendar, heap, times, slot, now) if alone else False


@njit(cache=True, nogil=True, error_model="numpy")
def leave(
    queues: Queues,
    journeys: Journeys,
    calendar: Calendar | None,
    heap: Heap,
    times: Times,
    slot: int,
    now: float,
) -> bool:
    """The task in ``slot`` has ended its stage: the next of its queue, if there is one, begins."""
    stage = journeys.stage[slot]
    if stage != SERVICE and stage != SERVER:
        return False
    successor = int(np.int64(queues.following[slot]))
    queue = queues.ends.shape[0] - 1 if stage == SERVER else np.int64(journeys.client[slot])
    queues.ends[queue, 0] = successor
    if successor == queues.following.size - 1:
        return False
    return _begin(journeys, calendar, heap, times, successor, now)


@njit(cache=True, nogil=True, error_model="numpy")
def _begin(
    journeys: Journeys, calendar: Calendar | None, heap: Heap, times: Times, slot: int, now: float
) -> bool:
    """The stage of the task in ``slot`` begins; whether numbers have to be refilled."""
    number = _number(journeys, slot)
    takes = duration(times, number)
    if calendar is not None and journeys.stage[slot] == SERVICE:
        work_on(journeys, calendar, heap, slot, takes, now)
        return short_of(times, number)
    journeys.spent[number] += takes
    push(heap, now + takes, slot)
    return short_of(times, number)


@njit(cache=True, nogil=True, error_model="numpy")
def work_on(
    journeys: Journeys, calendar: Calendar, heap: Heap, slot: int, work: float, now: float
) -> None:
    """Serve the task in ``slot`` until ``work`` is done or the speed of its client changes."""
    client = int(journeys.client[slot])
    speed = speed_at(calendar, client, now)
    after = calendar.at[client] + 1
    inside = after < calendar.first[client + 1]
    change = calendar.begin[after] if inside else calendar.end[0]
    journeys.works[slot] = speed > 0.0
    finish = now + work / speed if speed > 0.0 else np.inf
    if finish <= change:
        journeys.left[slot] = -1.0
    else:
        journeys.left[slot] = max(work - (change - now) * speed, 0.0)
        finish = change
    if speed > 0.0:
        journeys.spent[client] += finish - now
    push(heap, finish, slot)


@njit(cache=True, nogil=True, error_model="numpy")
def speed_at(calendar: Calendar, client: int, now: float) -> float:
    """The speed of ``client`` from ``now`` on; nobody looks back before ``now``."""
    at, last = calendar.at[client], calendar.first[client + 1] - 1
    while at < last and calendar.begin[at + 1] <= now:
        at += 1
    calendar.at[client] = at
    return float(calendar.speed[at])


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
        slot = heap.who[place]
        if journeys.works[slot] or journeys.stage[slot] != SERVICE:
            spent[_number(journeys, slot)] -= heap.when[place] - now
    return spent


def under_way(queues: Queues, journeys: Journeys) -> tuple[NDArray[np.int32], IntArray]:
    """The client and the dispatch round of every task that has not completed, by client."""
    slots = np.flatnonzero(journeys.stage[:-1] != DONE)
    order = np.lexsort((queues.sent[slots], journeys.client[slots]))
    return journeys.client[slots][order].astype(np.int32), queues.sent[slots][order]

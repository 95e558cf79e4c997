"""The compiled kernel for networks in which tasks travel, updates wait at the server, clients leave.

A task goes down a client's link, is served there first in, first out, comes back up the link and
queues at the server, first in, first out; then the round counts and the next task goes out. Stages
that take no time are passed through at the same instant and use no random number. Every task on a
link, the first of each queue and no other has one entry in the heap of `sojourn.simulation.events`.
Cost: O(log m) per stage.

Where clients are intermittent or change their speed (`sojourn.simulation.calendars`), a service is
cut at every step of its client's speed, and each piece is an entry. While a client is away, its tasks
wait; or, if the calendar says so, all tasks that it has when it leaves are lost, and as many are sent
anew, as the policy says. Tasks sent to a client that is away wait there either way; never-queue
chooses among those that are present.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn._support.compiling import njit
from sojourn.simulation.calendars import Calendar
from sojourn.simulation.events import (
    NEVER_QUEUE,
    ROUTED,
    SYNCHRONOUS,
    Completions,
    Dispatch,
    Heap,
    Queues,
    Times,
    duration,
    furthest_behind,
    pop,
    push,
    short_of,
)
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


@njit(cache=True, nogil=True)
def place(
    queues: Queues,
    journeys: Journeys,
    heap: Heap,
    times: Times,
    calendar: Calendar | None,
    clients: IntArray,
    stages: NDArray[np.uint8],
    begin: int,
) -> int:
    """Put the first tasks where ``stages`` says, from ``begin`` on; each stage begins at time 0.

    Returns how many are placed: all, or those before random numbers ran out.
    """
    for slot in range(begin, clients.size):
        journeys.client[slot] = clients[slot]
        if _enter(queues, journeys, heap, times, calendar, slot, stages[slot], 0.0):
            return slot + 1
    return int(clients.size)


@njit(cache=True, nogil=True, error_model="numpy")
def advance(
    policy: int,
    queues: Queues,
    journeys: Journeys,
    heap: Heap,
    times: Times,
    calendar: Calendar | None,
    dispatch: Dispatch,
    limit: float,
    done: int,
    completions: Completions,
) -> tuple[int, bool]:
    """Run until the output is full, random numbers run out, or the clock passes ``limit``.

    As `sojourn.simulation.events.advance`; a client is idle while none of its tasks is anywhere on
    its journey.
    """
    pool, _, targets, choices, cursor = dispatch
    client_out, sent_out, time_out = completions
    written = 0
    ended = short = False
    tasks = queues.following.size - 1
    # So many tasks may be sent at once: when a client leaves with all it has.
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
                short |= _send(
                    queues, journeys, heap, times, calendar, slot, pool[slot], done + written, now
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
        slot = int(np.int64(heap.who[0]))
        client = int(journeys.client[slot])
        stage = journeys.stage[slot]
        pop(heap)
        if calendar is not None and stage == SERVICE and journeys.left[slot] >= 0.0:
            loses = calendar.loses[0] and journeys.works[slot]
            if loses and _speed_at(calendar, client, now) == 0.0:
                short |= _lose(
                    policy,
                    queues,
                    journeys,
                    heap,
                    times,
                    calendar,
                    dispatch,
                    client,
                    done + written,
                    now,
                )
            else:
                _work_on(journeys, calendar, heap, slot, journeys.left[slot], now)
            continue
        short |= _leave(queues, journeys, heap, times, calendar, slot, now)
        if stage == DOWNLINK:
            short |= _enter(queues, journeys, heap, times, calendar, slot, SERVICE, now)
            continue
        if stage == SERVICE and times.scale[UPLINK * clients + client] > 0.0:
            short |= _enter(queues, journeys, heap, times, calendar, slot, UPLINK, now)
            continue
        if stage != SERVER and has_server:
            short |= _enter(queues, journeys, heap, times, calendar, slot, SERVER, now)
            continue

        client_out[written] = client
        sent_out[written] = queues.sent[slot]
        time_out[written] = now
        written += 1
        journeys.stage[slot] = DONE
        if policy == SYNCHRONOUS:
            heap.clock[0] = now
            continue
        target = _next_present(policy, dispatch, calendar, heap.state[2], client, now)
        short |= _send(queues, journeys, heap, times, calendar, slot, target, done + written, now)
    return written, ended


@njit(cache=True, nogil=True, error_model="numpy")
def _next_client(policy: int, dispatch: Dispatch, idle: int, finisher: int) -> int:
    """The client of the next task, when ``finisher`` has completed one and ``idle`` others rest."""
    pool, due_times, targets, choices, cursor = dispatch
    if policy == ROUTED:
        client = targets[np.uint64(cursor[0])]
        cursor[0] += 1
        return int(np.int64(client))
    if policy == NEVER_QUEUE:
        return furthest_behind(pool, idle, due_times, finisher)
    pool[idle] = finisher
    chosen = np.int64(choices[np.uint64(cursor[1])] * (idle + 1))
    cursor[1] += 1
    client = pool[chosen]
    pool[chosen] = pool[idle]
    return int(np.int64(client))


@njit(cache=True, nogil=True, error_model="numpy")
def _next_present(
    policy: int,
    dispatch: Dispatch,
    calendar: Calendar | None,
    idle: int,
    finisher: int,
    now: float,
) -> int:
    """As `_next_client`; where clients are away at times, never-queue chooses among those present.

    If none is, the first to return gets the task. Cost: O(n - m), since presence changes unseen.
    """
    if calendar is None or policy != NEVER_QUEUE or not calendar.leaves[0]:
        return _next_client(policy, dispatch, idle, finisher)
    else:
        pool, due_times = dispatch.pool, dispatch.due_times
        place, chosen = -1, int(finisher)
        back = _returns(calendar, chosen, now)
        due = (due_times.sent[chosen] + 0.5) * due_times.interval[chosen]
        for other_place in range(idle):
            other = int(pool[other_place])
            other_back = _returns(calendar, other, now)
            if other_back > back:
                continue
            other_due = (due_times.sent[other] + 0.5) * due_times.interval[other]
            sooner = other_due < due or (other_due == due and other < chosen)
            if other_back < back or sooner:
                place, chosen, back, due = other_place, other, other_back, other_due
        if place >= 0:
            pool[place] = finisher
        due_times.sent[chosen] += 1
        return chosen


@njit(cache=True, nogil=True, error_model="numpy")
def _returns(calendar: Calendar, client: int, now: float) -> float:
    """When ``client`` is next there: ``now`` if it is; the end of the window if not within it."""
    if _speed_at(calendar, client, now) > 0.0:
        return now
    for step in range(calendar.at[client] + 1, calendar.first[client + 1]):
        if calendar.speed[step] > 0.0:
            return float(calendar.begin[step])
    return float(calendar.end[0])


@njit(cache=True, nogil=True, error_model="numpy")
def _lose(
    policy: int,
    queues: Queues,
    journeys: Journeys,
    heap: Heap,
    times: Times,
    calendar: Calendar,
    dispatch: Dispatch,
    client: int,
    done: int,
    now: float,
) -> bool:
    """``client`` has left with its tasks: as many are sent, those of a cohort to it again."""
    nobody = queues.following.size - 1
    slot = int(np.int64(queues.ends[client, 0]))
    queues.ends[client, 0] = nobody
    short = False
    while slot != nobody:
        following = int(np.int64(queues.following[slot]))
        target = client
        if policy != SYNCHRONOUS:
            if policy == NEVER_QUEUE:
                dispatch.due_times.sent[client] -= 1
            idle = heap.state[2]
            target = _next_present(policy, dispatch, calendar, idle, client, now)
        short |= _send(queues, journeys, heap, times, calendar, slot, target, done, now)
        slot = following
    return short


# The steps of a journey are taken for every stage of every task: called instead of inlined, or with all
# of the state in one tuple of tuples, they take four times as long, for counting references to arrays.
@njit(cache=True, nogil=True, error_model="numpy")
def _send(
    queues: Queues,
    journeys: Journeys,
    heap: Heap,
    times: Times,
    calendar: Calendar | None,
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
    return _enter(queues, journeys, heap, times, calendar, slot, first, now)


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _enter(
    queues: Queues,
    journeys: Journeys,
    heap: Heap,
    times: Times,
    calendar: Calendar | None,
    slot: int,
    stage: int,
    now: float,
) -> bool:
    """The task in ``slot`` comes to ``stage``; whether numbers have to be refilled."""
    nobody = queues.following.size - 1
    journeys.stage[slot] = stage
    queues.following[slot] = nobody
    if stage in (DOWNLINK, UPLINK):
        return _begin(journeys, heap, times, calendar, slot, now)
    queue = queues.ends.shape[0] - 1 if stage == SERVER else np.int64(journeys.client[slot])
    alone = queues.ends[queue, 0] == nobody
    if alone:
        queues.ends[queue, 0] = slot
    else:
        queues.following[queues.ends[queue, 1]] = slot
    queues.ends[queue, 1] = slot
    return _begin(journeys, heap, times, calendar, slot, now) if alone else False


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _leave(
    queues: Queues,
    journeys: Journeys,
    heap: Heap,
    times: Times,
    calendar: Calendar | None,
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
    return _begin(journeys, heap, times, calendar, successor, now)


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _begin(
    journeys: Journeys,
    heap: Heap,
    times: Times,
    calendar: Calendar | None,
    slot: int,
    now: float,
) -> bool:
    """The stage of the task in ``slot`` begins; whether numbers have to be refilled."""
    number = _number(journeys, slot)
    takes = duration(times, number)
    if calendar is not None and journeys.stage[slot] == SERVICE:
        _work_on(journeys, calendar, heap, slot, takes, now)
        return short_of(times, number)
    journeys.spent[number] += takes
    push(heap, now + takes, slot)
    return short_of(times, number)


@njit(cache=True, nogil=True, error_model="numpy")
def _work_on(
    journeys: Journeys, calendar: Calendar, heap: Heap, slot: int, work: float, now: float
) -> None:
    """Serve the task in ``slot`` until ``work`` is done or the speed of its client changes."""
    client = int(journeys.client[slot])
    speed = _speed_at(calendar, client, now)
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
def _speed_at(calendar: Calendar, client: int, now: float) -> float:
    """The speed of ``client`` from ``now`` on; nobody looks back before ``now``."""
    at, last = calendar.at[client], calendar.first[client + 1] - 1
    while at < last and calendar.begin[at + 1] <= now:
        at += 1
    calendar.at[client] = at
    return float(calendar.speed[at])


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
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

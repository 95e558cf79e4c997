"""The compiled kernel for any service-time law and any dispatch policy.

Every busy client has one entry in a heap with four children per node, ordered by (time of
completion, order in which services began), so that ties are broken the same way on every machine.
Cost: O(log min(n, m)) per round.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sojourn.simulation.queues import Queues
from sojourn.simulation.turns import Turns, furthest_behind
from sojourn.types import FloatArray, IntArray

ROUTED, NEVER_QUEUE, IDLE, SYNCHRONOUS = 0, 1, 2, 3

_index = np.uint64


class Heap(NamedTuple):
    """Completions to come. ``state`` holds (entries in the heap, services begun, idle clients).

    ``clock`` is when the last cohort ended.
    """

    when: FloatArray
    order: IntArray
    who: NDArray[np.uint32]
    state: IntArray
    clock: FloatArray


class Times(NamedTuple):
    """How long tasks take: ``scale[i]`` times the next number of stream ``row[i]`` (see `Units`)."""

    scale: FloatArray
    row: IntArray
    values: FloatArray
    used: IntArray
    filled: IntArray
    least: int


def empty_heap(room: int) -> Heap:
    """A heap with room for ``room`` busy clients, and for the siblings of the last."""
    places = room + 4
    return Heap(
        np.full(places, np.inf),
        np.zeros(places, dtype=np.int64),
        np.zeros(places, dtype=np.uint32),
        np.zeros(3, dtype=np.int64),
        np.zeros(1),
    )


@njit(cache=True, nogil=True)
def place(queues: Queues, heap: Heap, times: Times, clients: IntArray) -> None:
    """Send the first tasks, one to each entry of ``clients``."""
    nobody = queues.following.size - 1
    for slot in range(clients.size):
        client = clients[slot]
        if queues.ends[client, 0] == nobody:
            queues.ends[client, 0] = slot
            push(heap, duration(times, client), client)
        else:
            queues.following[queues.ends[client, 1]] = slot
        queues.ends[client, 1] = slot


@njit(cache=True, nogil=True, error_model="numpy")
def advance(
    policy: int,
    queues: Queues,
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

    ``targets`` are the clients to send to under ROUTED (which serves every policy that does not look
    at the state); ``choices`` uniform numbers for IDLE and SYNCHRONOUS. ``pool`` lists the idle
    clients (under NEVER_QUEUE as a heap ordered by ``turns``), or all clients (SYNCHRONOUS).
    ``cursor`` says how many of targets and choices have been used. Returns the rounds written and
    whether ``limit`` was passed.
    """
    ends, following, sent = queues
    when, who, state = heap.when, heap.who, heap.state
    nobody = np.uint32(following.size - 1)
    head, tail = _index(0), _index(1)
    # One stream for all is the usual case: its next number is kept at hand.
    scale, shared = times.scale, times.used.size == 1
    numbers, at, enough = times.values[0], times.used[0], times.filled[0] - times.least
    written = 0
    ended = short = False
    while written < client_out.size and not short:
        if policy == SYNCHRONOUS and state[0] == 0:
            if cursor[1] + following.size - 1 > choices.size:
                break
            short = _send_cohort(queues, heap, times, pool, choices, cursor, done + written)
        if cursor[0] >= targets.size or cursor[1] >= choices.size:
            break
        now = when[0]
        if now > limit:
            ended = True
            break
        finisher = who[0]
        slot = ends[finisher, head]
        client_out[_index(written)] = finisher
        sent_out[_index(written)] = sent[slot]
        time_out[_index(written)] = now
        written += 1

        successor = following[slot]
        ends[finisher, head] = successor
        vacant = successor == nobody
        if not vacant:
            if shared:
                takes = numbers[_index(at)] * scale[_index(finisher)]
                at += 1
                short |= at > enough
            else:
                takes = duration(times, finisher)
                short |= short_of(times, finisher)
            replace(heap, now + takes, finisher)
        if policy == SYNCHRONOUS:
            pop(heap)
            heap.clock[0] = now
            continue

        if policy == ROUTED:
            client = targets[_index(cursor[0])]
            cursor[0] += 1
        elif policy == NEVER_QUEUE:
            client = furthest_behind(pool, state[2], turns, finisher)
        else:
            pool[state[2]] = finisher
            chosen = np.int64(choices[_index(cursor[1])] * (state[2] + 1))
            cursor[1] += 1
            client = pool[chosen]
            pool[chosen] = pool[state[2]]

        sent[slot] = done + written
        following[slot] = nobody
        if ends[client, head] == nobody:
            ends[client, head] = slot
            if shared:
                takes = numbers[_index(at)] * scale[_index(client)]
                at += 1
                short |= at > enough
            else:
                takes = duration(times, client)
                short |= short_of(times, client)
            finish = now + takes
            if vacant:
                replace(heap, finish, client)
                vacant = False
            else:
                push(heap, finish, client)
        else:
            following[ends[client, tail]] = slot
        ends[client, tail] = slot
        if vacant:
            pop(heap)
    if shared and policy != SYNCHRONOUS:
        times.used[0] = at
    return written, ended


@njit(cache=True, nogil=True, error_model="numpy")
def _send_cohort(
    queues: Queues,
    heap: Heap,
    times: Times,
    pool: NDArray[np.uint32],
    choices: FloatArray,
    cursor: IntArray,
    done: int,
) -> bool:
    """Whether numbers have to be refilled before the next cohort."""
    now = heap.clock[0]
    short = False
    for slot in range(queues.following.size - 1):
        chosen = slot + np.int64(choices[cursor[1]] * (pool.size - slot))
        cursor[1] += 1
        client = pool[chosen]
        pool[chosen] = pool[slot]
        pool[slot] = client
        queues.sent[slot] = done
        queues.ends[client, 0] = slot
        push(heap, now + duration(times, client), client)
        short |= short_of(times, client)
    return short


@njit(cache=True, nogil=True, error_model="numpy")
def duration(times: Times, client: int) -> float:
    """How long the next task of ``client`` takes; its number is used up."""
    row = _index(times.row[_index(client)])
    at = _index(times.used[row])
    times.used[row] += 1
    return float(times.values[row, at] * times.scale[_index(client)])


@njit(cache=True, nogil=True, error_model="numpy")
def short_of(times: Times, client: int) -> bool:
    """Whether the stream of ``client`` has to be refilled before the next round."""
    row = _index(times.row[_index(client)])
    return bool(times.filled[row] - times.used[row] < times.least)


@njit(cache=True, nogil=True, error_model="numpy")
def push(heap: Heap, time: float, client: int) -> None:
    """One more entry, behind those of the same time."""
    when, order, who, state, _ = heap
    begun = state[1]
    child = _index(state[0])
    state[0] += 1
    state[1] += 1
    while child > _index(0):
        parent = (child - _index(1)) >> _index(2)
        if when[parent] <= time:  # equal times: the parent's service began earlier
            break
        when[child], order[child], who[child] = when[parent], order[parent], who[parent]
        child = parent
    when[child], order[child], who[child] = time, begun, client


@njit(cache=True, nogil=True, error_model="numpy")
def replace(heap: Heap, time: float, client: int) -> None:
    """A new entry in place of the first."""
    begun = heap.state[1]
    heap.state[1] += 1
    _sink(heap, time, begun, client)


@njit(cache=True, nogil=True, error_model="numpy")
def pop(heap: Heap) -> None:
    """Take out the first entry."""
    heap.state[0] -= 1
    last = heap.state[0]
    time, begun, client = heap.when[last], heap.order[last], heap.who[last]
    heap.when[last] = np.inf
    if last > 0:
        _sink(heap, time, begun, client)


@njit(cache=True, nogil=True, error_model="numpy")
def _sink(heap: Heap, time: float, begun: int, client: int) -> None:
    """Put an entry where the first one was. Places beyond the last hold infinite times."""
    when, order, who, state, _ = heap
    size = _index(state[0])
    parent = _index(0)
    while True:
        child = (parent << _index(2)) + _index(1)
        if child >= size:
            break
        left = child + _index(_before(when, order, child + _index(1), child))
        right = child + _index(2)
        right += _index(_before(when, order, child + _index(3), right))
        least = right if _before(when, order, right, left) else left
        earliest = when[least]
        if earliest > time or (earliest == time and order[least] > begun):
            break
        when[parent], order[parent], who[parent] = earliest, order[least], who[least]
        parent = least
    when[parent], order[parent], who[parent] = time, begun, client


@njit(cache=True, nogil=True, error_model="numpy")
def _before(when: FloatArray, order: IntArray, a: np.uint64, b: np.uint64) -> bool:
    return bool((when[a] < when[b]) | ((when[a] == when[b]) & (order[a] < order[b])))

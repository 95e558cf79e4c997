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
from sojourn.types import FloatArray, IntArray

ROUTED, FINISHER, IDLE, SYNCHRONOUS = 0, 1, 2, 3

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


class Service(NamedTuple):
    """How long a task takes: ``scale[i]`` times a number of mean 1.

    The number is the next of the stream or, for a trace (``observed`` not empty), the stream's uniform
    number picks one of ``observed[first[i] : first[i] + number[i]]``.
    """

    scale: FloatArray
    observed: FloatArray
    first: IntArray
    number: IntArray


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
def place(
    queues: Queues, heap: Heap, service: Service, clients: IntArray, units: FloatArray
) -> int:
    """Send the first tasks, one to each entry of ``clients``; returns how many ``units`` it used."""
    nobody = queues.following.size - 1
    used = 0
    for slot in range(clients.size):
        client = clients[slot]
        if queues.ends[client, 0] == nobody:
            queues.ends[client, 0] = slot
            _push(heap, _duration(service, client, units[used]), client)
            used += 1
        else:
            queues.following[queues.ends[client, 1]] = slot
        queues.ends[client, 1] = slot
    return used


@njit(cache=True, nogil=True, error_model="numpy")
def advance(
    policy: int,
    queues: Queues,
    heap: Heap,
    service: Service,
    pool: NDArray[np.uint32],
    units: FloatArray,
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
    clients (IDLE), or all clients (SYNCHRONOUS). ``cursor`` says how many of units, targets and
    choices have been used. Returns the rounds written and whether ``limit`` was passed.
    """
    ends, following, sent = queues
    when, who, state = heap.when, heap.who, heap.state
    nobody = np.uint32(following.size - 1)
    head, tail = _index(0), _index(1)
    written = 0
    ended = False
    while written < client_out.size:
        if policy == SYNCHRONOUS and state[0] == 0:
            cohort = following.size - 1
            if cursor[0] + cohort > units.size or cursor[2] + cohort > choices.size:
                break
            _send_cohort(queues, heap, service, pool, units, choices, cursor, done + written)
        if cursor[0] + 2 > units.size or cursor[1] >= targets.size or cursor[2] >= choices.size:
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
            _replace(heap, now + _duration(service, finisher, units[_index(cursor[0])]), finisher)
            cursor[0] += 1
        if policy == SYNCHRONOUS:
            _pop(heap)
            heap.clock[0] = now
            continue

        if policy == ROUTED:
            client = targets[_index(cursor[1])]
            cursor[1] += 1
        elif policy == FINISHER:
            client = finisher
        else:
            pool[state[2]] = finisher
            chosen = np.int64(choices[_index(cursor[2])] * (state[2] + 1))
            cursor[2] += 1
            client = pool[chosen]
            pool[chosen] = pool[state[2]]

        sent[slot] = done + written
        following[slot] = nobody
        if ends[client, head] == nobody:
            ends[client, head] = slot
            finish = now + _duration(service, client, units[_index(cursor[0])])
            cursor[0] += 1
            if vacant:
                _replace(heap, finish, client)
                vacant = False
            else:
                _push(heap, finish, client)
        else:
            following[ends[client, tail]] = slot
        ends[client, tail] = slot
        if vacant:
            _pop(heap)
    return written, ended


@njit(cache=True, nogil=True, error_model="numpy")
def _send_cohort(
    queues: Queues,
    heap: Heap,
    service: Service,
    pool: NDArray[np.uint32],
    units: FloatArray,
    choices: FloatArray,
    cursor: IntArray,
    done: int,
) -> None:
    now = heap.clock[0]
    for slot in range(queues.following.size - 1):
        chosen = slot + np.int64(choices[cursor[2]] * (pool.size - slot))
        cursor[2] += 1
        client = pool[chosen]
        pool[chosen] = pool[slot]
        pool[slot] = client
        queues.sent[slot] = done
        queues.ends[client, 0] = slot
        _push(heap, now + _duration(service, client, units[cursor[0]]), client)
        cursor[0] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def _duration(service: Service, client: int, unit: float) -> float:
    if service.observed.size > 0:
        drawn = np.int64(unit * service.number[client])
        unit = service.observed[service.first[client] + drawn]
    return unit * float(service.scale[client])


@njit(cache=True, nogil=True, error_model="numpy")
def _push(heap: Heap, time: float, client: int) -> None:
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
def _replace(heap: Heap, time: float, client: int) -> None:
    begun = heap.state[1]
    heap.state[1] += 1
    _sink(heap, time, begun, client)


@njit(cache=True, nogil=True, error_model="numpy")
def _pop(heap: Heap) -> None:
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

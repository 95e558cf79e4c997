"""The compiled kernels for clients alone: with a clock for every busy client, and without.

`advance` is for any service-time law and any dispatch policy that has a code here. Every busy
client has one entry in a heap with four children per node, ordered by (time of completion, order in
which services began), so that ties are broken the same way on every machine. Cost: O(log min(n, m))
per round.

`advance_memoryless` is for exponential service, routed dispatch and never-queue. Exponential service
forgets, so no clock per client is needed: the next client to finish is drawn among the busy ones in
proportion to their rates. Busy clients are kept in buckets of rates within a factor of two; a bucket is
drawn by its weight, a member of it uniformly, and the member is accepted with probability rate/bound
(composition and rejection). Time advances at the rate of the bounds at every attempt, accepted or not,
which is the same process. Constant time per round, whatever n and m. Data-dependent branches are
written as selections: measured at n = m = 30, 35 ns a round against 60 ns with branches. Indices are
unsigned because Numba then skips its check for negative ones.

The tasks in flight stand in one first-in-first-out queue per client, threaded through m slots. A
completed task leaves its slot to the task dispatched at the same instant, so m slots are always
enough, and a run needs O(n + m) memory. The slot after the last means "nobody": writing to it does
no harm, which spares the kernels branches.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn._support.compiling import njit
from sojourn.types import FloatArray, IntArray

ROUTED, NEVER_QUEUE, IDLE, SYNCHRONOUS = 0, 1, 2, 3

Completions = tuple[NDArray[np.int32], IntArray, FloatArray]
"""Where completions are written: client, dispatch round and time of each."""

_index = np.uint64


class Queues(NamedTuple):
    """``ends[i]`` holds the first and the last slot of client i; ``following[s]`` the slot after s.

    ``sent[s]`` is the number of rounds completed when the task in slot s was dispatched.
    """

    ends: NDArray[np.uint32]
    following: NDArray[np.uint32]
    sent: IntArray


def empty_queues(clients: int, tasks: int) -> Queues:
    """Queues for ``clients`` clients with room for ``tasks`` tasks."""
    return Queues(
        np.full((clients, 2), tasks, dtype=np.uint32),
        np.full(tasks + 1, tasks, dtype=np.uint32),
        np.zeros(tasks + 1, dtype=np.int64),
    )


@njit(cache=True, nogil=True)
def in_flight(queues: Queues) -> tuple[NDArray[np.int32], IntArray]:
    """The client and the dispatch round of every task that has not completed."""
    nobody = queues.following.size - 1
    clients = np.empty(nobody, dtype=np.int32)
    sent = np.empty(nobody, dtype=np.int64)
    found = 0
    for client in range(queues.ends.shape[0]):
        slot = queues.ends[client, 0]
        while slot != nobody:
            clients[found] = client
            sent[found] = queues.sent[slot]
            found += 1
            slot = queues.following[slot]
    return clients[:found], sent[:found]


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def enqueue(queues: Queues, queue: int, slot: int) -> bool:
    """Put the task in ``slot`` at the end of a queue; whether it is alone there."""
    ends, following, _ = queues
    nobody = following.size - 1
    following[slot] = nobody
    alone = ends[queue, 0] == nobody
    if alone:
        ends[queue, 0] = slot
    else:
        following[ends[queue, 1]] = slot
    ends[queue, 1] = slot
    return bool(alone)


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
    """How long tasks take: ``scale[i]`` times the next number of stream ``row[i]`` (see `ServiceTimes`)."""

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
    for slot in range(clients.size):
        client = clients[slot]
        if enqueue(queues, client, slot):
            push(heap, duration(times, client), client)


class DueTimes(NamedTuple):
    """When tasks are due under never-queue: those of client i are ``interval[i]`` apart.

    The first is due after half an interval. ``sent[i]`` have been sent; ``due[k]`` is when the next
    task of the idle client ``pool[k]`` is due. The pool is a heap with four children per node, which
    keeps the due times beside each other, so that one step down reads one stretch of memory.
    Cost: O(log(n - m)) per round, nothing while everybody is busy.
    """

    interval: FloatArray
    sent: IntArray
    due: FloatArray


def due_times(interval: FloatArray) -> DueTimes:
    """The due times of `NeverQueue` before any task is sent; ``interval`` is ``(n,)``, empty without."""
    n = interval.size
    return DueTimes(interval, np.zeros(n, dtype=np.int64), np.full(n + 4, np.inf))


def fill_pool(due_times: DueTimes, pool: NDArray[np.uint32], clients: IntArray) -> int:
    """Write the clients that got none of the first tasks to ``pool``; returns how many they are.

    ``clients`` are those of the first tasks.
    """
    idle = np.setdiff1d(pool, clients.astype(np.uint32))
    if due_times.interval.size:
        np.add.at(due_times.sent, clients, 1)
        idle = idle[np.argsort(due_times.interval[idle], kind="stable")]  # sorted, hence a heap
        due_times.due[: idle.size] = 0.5 * due_times.interval[idle]
    pool[: idle.size] = idle
    return int(idle.size)


class Dispatch(NamedTuple):
    """What a kernel needs to choose the client of the next task.

    ``pool`` lists the idle clients (under NEVER_QUEUE as a heap ordered by ``due_times``), or all
    clients (SYNCHRONOUS). ``targets`` are the clients to send to under ROUTED, which serves every
    policy that does not look at the state; ``choices`` are uniform numbers for IDLE and SYNCHRONOUS.
    ``cursor`` says how many of targets and choices have been used.
    """

    pool: NDArray[np.uint32]
    due_times: DueTimes
    targets: NDArray[np.uint32]
    choices: FloatArray
    cursor: IntArray


@njit(cache=True, nogil=True, error_model="numpy")
def advance(
    policy: int,
    queues: Queues,
    heap: Heap,
    times: Times,
    dispatch: Dispatch,
    limit: float,
    done: int,
    completions: Completions,
) -> tuple[int, bool]:
    """Run until the output is full, random numbers run out, or the clock passes ``limit``.

    ``done`` rounds were completed before. Returns the rounds written and whether ``limit`` was passed.
    """
    ends, following, sent = queues
    when, who, state = heap.when, heap.who, heap.state
    pool, due_times, targets, choices, cursor = dispatch
    client_out, sent_out, time_out = completions
    nobody = np.uint32(following.size - 1)
    head, tail = _index(0), _index(1)
    # One stream for all is the usual case: its next number is kept in local variables.
    scale, shared = times.scale, times.used.size == 1
    numbers, at, enough = times.values[0], times.used[0], times.filled[0] - times.least
    written = 0
    ended = short = False
    while written < client_out.size and not short:
        if policy == SYNCHRONOUS and state[0] == 0:
            if cursor[1] + following.size - 1 > choices.size:
                break
            short = _send_cohort(queues, heap, times, dispatch, done + written)
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

        # As `stations._next_client`, but in place: a call for every task takes up to twice the time.
        if policy == ROUTED:
            client = targets[_index(cursor[0])]
            cursor[0] += 1
        elif policy == NEVER_QUEUE:
            client = furthest_behind(pool, state[2], due_times, finisher)
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
def _send_cohort(queues: Queues, heap: Heap, times: Times, dispatch: Dispatch, done: int) -> bool:
    """Whether numbers have to be refilled before the next cohort."""
    pool, choices, cursor = dispatch.pool, dispatch.choices, dispatch.cursor
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


@njit(cache=True, nogil=True, error_model="numpy")
def furthest_behind(pool: NDArray[np.uint32], size: int, due_times: DueTimes, finisher: int) -> int:
    """The idle client, or ``finisher``, whose task is due first; ``finisher`` joins the others.

    A task is counted as sent to the client that is returned.
    """
    chosen = finisher
    if size > 0:
        interval, sent, due = due_times
        own = (sent[finisher] + 0.5) * interval[finisher]
        if due[0] < own or (due[0] == own and pool[0] < finisher):
            chosen = pool[0]
            _sink_in_pool(pool, due, _index(size), own, finisher)
    due_times.sent[chosen] += 1
    return int(chosen)


@njit(cache=True, nogil=True, error_model="numpy")
def _sink_in_pool(
    pool: NDArray[np.uint32], due: FloatArray, size: np.uint64, own: float, client: int
) -> None:
    """Put ``client`` where the first one was. Places beyond the last hold infinite times."""
    parent = _index(0)
    while True:
        child = (parent << _index(2)) + _index(1)
        if child >= size:
            break
        least = child
        for sibling in range(1, 4):
            other = child + _index(sibling)
            if due[other] < due[least] or (due[other] == due[least] and pool[other] < pool[least]):
                least = other
        if due[least] > own or (due[least] == own and pool[least] > client):
            break
        due[parent], pool[parent] = due[least], pool[least]
        parent = least
    due[parent], pool[parent] = own, client


class Busy(NamedTuple):
    """The busy clients: ``members[start[b] : start[b] + size[b]]`` are the busy clients of bucket b.

    ``bound`` is the largest rate in a bucket, ``mixed`` whether others are smaller. Each bucket has a
    spare place at its end, where the kernel may write without effect.
    """

    members: NDArray[np.uint32]
    start: IntArray
    size: IntArray
    bound: FloatArray
    mixed: NDArray[np.bool_]
    bucket: NDArray[np.uint16]
    rate: FloatArray


def buckets(rates: FloatArray) -> Busy:
    """Empty buckets for clients with these service rates."""
    distinct, bucket = np.unique(np.frexp(rates)[1], return_inverse=True)
    room = np.bincount(bucket) + 1
    bound = np.zeros(distinct.size)
    np.maximum.at(bound, bucket, rates)
    least = np.full(distinct.size, np.inf)
    np.minimum.at(least, bucket, rates)
    return Busy(
        np.zeros(room.sum(), dtype=np.uint32),
        np.cumsum(room) - room,
        np.zeros(distinct.size, dtype=np.int64),
        bound,
        least < bound,
        bucket.astype(np.uint16),
        rates,
    )


@njit(cache=True, nogil=True)
def place_memoryless(queues: Queues, busy: Busy, clients: IntArray) -> None:
    """Send the first tasks, one to each entry of ``clients``, at round 0."""
    for slot in range(clients.size):
        client = clients[slot]
        if enqueue(queues, client, slot):
            b = busy.bucket[client]
            busy.members[busy.start[b] + busy.size[b]] = client
            busy.size[b] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def advance_memoryless(
    queues: Queues,
    busy: Busy,
    gaps: FloatArray,
    targets: NDArray[np.uint32],
    picks: FloatArray,
    cursor: IntArray,
    due_times: DueTimes | None,
    pool: NDArray[np.uint32],
    idle_clients: int,
    now: float,
    limit: float,
    done: int,
    completions: Completions,
) -> tuple[int, float, bool]:
    """Run until the output is full, random numbers run out, or the clock passes ``limit``.

    ``picks`` are uniform numbers that draw finishers, ``gaps`` unit exponential times, of which as
    many are used; ``cursor`` says how many of targets and picks have been. They are those of a
    `Dispatch`, whose unpacking would show in short runs. With ``due_times`` (never-queue) the
    client whose task is due first, among the first ``idle_clients`` of ``pool`` and the finisher,
    gets the task; without, the kernel is compiled without them. ``done`` rounds were completed
    before. Returns the rounds written, the clock, and whether it has passed ``limit``.
    """
    ends, following, sent = queues
    members, start, size, bound, mixed, bucket, rate = busy
    client_out, sent_out, time_out = completions
    routed, used = cursor[0], cursor[1]
    nobody = np.uint32(following.size - 1)
    head, tail = _index(0), _index(1)
    written = 0
    ended = False
    while written < client_out.size and used < picks.size and routed < targets.size:
        total = 0.0
        for j in range(bound.size):
            total += size[_index(j)] * bound[_index(j)]
        drawn = picks[_index(used)] * total
        now += gaps[_index(used)] / total
        used += 1
        if now > limit:
            ended = True
            break

        b = _index(0)
        below = 0.0
        upto = 0.0
        for j in range(bound.size - 1):
            upto += size[_index(j)] * bound[_index(j)]
            beyond = drawn >= upto
            below = upto if beyond else below
            b = _index(j + 1) if beyond else b
        scaled = (drawn - below) / bound[b]
        place_in_bucket = np.int64(scaled)
        in_bucket = size[b]
        if place_in_bucket >= in_bucket:  # rounding at the very edge of a bucket: draw again
            continue
        finisher = members[_index(start[b] + place_in_bucket)]
        if mixed[b] and (scaled - place_in_bucket) * bound[b] >= rate[finisher]:
            continue

        slot = ends[finisher, head]
        client_out[_index(written)] = finisher
        sent_out[_index(written)] = sent[slot]
        time_out[_index(written)] = now
        written += 1

        successor = following[slot]
        ends[finisher, head] = successor
        emptied = successor == nobody
        vacated = place_in_bucket if emptied else in_bucket - 1
        members[_index(start[b] + vacated)] = members[_index(start[b] + in_bucket - 1)]
        size[b] = in_bucket - (1 if emptied else 0)

        if due_times is None:
            client = targets[_index(routed)]
            routed += 1
        else:
            client = np.uint32(furthest_behind(pool, idle_clients, due_times, finisher))
        sent[slot] = done + written
        following[slot] = nobody
        first = ends[client, head]
        idle = first == nobody
        b = _index(bucket[client])
        members[_index(start[b] + size[b])] = client
        size[b] += 1 if idle else 0
        following[nobody if idle else ends[client, tail]] = slot
        ends[client, head] = slot if idle else first
        ends[client, tail] = slot
    cursor[0], cursor[1] = routed, used
    return written, now, ended

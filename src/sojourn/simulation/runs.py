"""A simulation in progress: the state of the network and the random numbers still to use."""

from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sojourn.errors import InvalidInput, UnknownName
from sojourn.network import Network
from sojourn.simulation import events, memoryless
from sojourn.simulation.alias import alias_table, routed_clients
from sojourn.simulation.laws import Law
from sojourn.simulation.queues import empty_queues, in_flight
from sojourn.simulation.starts import Start, first_clients, start_name
from sojourn.simulation.streams import BLOCK, Seed, Stream, generators
from sojourn.types import FloatArray, IntArray

_POLICY_CODES = {
    "routed": events.ROUTED,
    "finisher": events.FINISHER,
    "idle": events.IDLE,
    "shuffled": events.ROUTED,
    "synchronous": events.SYNCHRONOUS,
}

POLICIES = tuple(_POLICY_CODES)


class Run(Protocol):
    """A simulation that can be carried on, some rounds at a time."""

    def advance(
        self,
        limit: float,
        done: int,
        client: NDArray[np.int32],
        sent: IntArray,
        time: FloatArray,
    ) -> tuple[int, bool]:
        """Fill the arrays; returns how many rounds were written and whether ``limit`` was passed."""

    def in_flight(self) -> tuple[NDArray[np.int32], IntArray]:
        """The client and the dispatch round of every task that has not completed."""


def start_run(
    network: Network, *, law: Law, policy: str, start: Start, work: float, seed: Seed
) -> Run:
    """A run at time 0, with the kernel that suits its law and policy."""
    _check_policy(network, policy, start)
    random = generators(seed, 4)
    if law.name == "exponential" and policy == "routed":
        return _MemorylessRun(network, start, work, random)
    return _EventRun(network, law, policy, start, work, random)


class _MemorylessRun:
    def __init__(
        self, network: Network, start: Start, work: float, random: list[np.random.Generator]
    ) -> None:
        starting, service, dispatch, picking = random
        rates = network.fleet.expand(network.fleet.service_rates) / work
        self._queues = empty_queues(network.size, network.concurrency)
        self._busy = memoryless.buckets(rates)
        self._now = 0.0
        self._picks = Stream(picking.random)
        self._gaps = Stream(service.standard_exponential)
        self._targets = _routed_stream(network, dispatch)
        memoryless.place(self._queues, self._busy, first_clients(network, start, starting))

    def advance(
        self,
        limit: float,
        done: int,
        client: NDArray[np.int32],
        sent: IntArray,
        time: FloatArray,
    ) -> tuple[int, bool]:
        written, ended = 0, False
        while written < client.size and not ended:
            for stream in (self._picks, self._gaps, self._targets):
                stream.ensure(1)
            cursor = np.array([self._picks.used, self._targets.used])
            more, self._now, ended = memoryless.advance(
                self._queues,
                self._busy,
                self._picks.values,
                self._gaps.values,
                self._targets.values,
                cursor,
                self._now,
                limit,
                done + written,
                client[written:],
                sent[written:],
                time[written:],
            )
            self._picks.used = self._gaps.used = int(cursor[0])
            self._targets.used = int(cursor[1])
            written += more
        return written, ended

    def in_flight(self) -> tuple[NDArray[np.int32], IntArray]:
        return in_flight(self._queues)


class _EventRun:
    def __init__(
        self,
        network: Network,
        law: Law,
        policy: str,
        start: Start,
        work: float,
        random: list[np.random.Generator],
    ) -> None:
        starting, service, dispatch, choosing = random
        n, m = network.size, network.concurrency
        self._policy = _POLICY_CODES[policy]
        self._queues = empty_queues(n, m)
        self._heap = events.empty_heap(min(n, m))
        self._service = _service(network, law, work)
        self._needed = max(2, m) if policy == "synchronous" else 2
        block = max(BLOCK, m)
        self._units = Stream(lambda size: law.draw(service, size), block=block)
        self._choices = Stream(choosing.random, block=block)
        shuffled = policy == "shuffled"
        self._targets = (_shuffled_stream if shuffled else _routed_stream)(network, dispatch)
        self._pool = np.arange(n, dtype=np.uint32)
        if policy != "synchronous":
            if shuffled and start_name(start) == "spread":
                clients = self._targets.take(m).astype(np.int64)
            else:
                clients = first_clients(network, start, starting)
            self._place(clients)

    def _place(self, clients: IntArray) -> None:
        self._units.ensure(clients.size)
        self._units.used += events.place(
            self._queues, self._heap, self._service, clients, self._units.values[self._units.used :]
        )
        idle = np.setdiff1d(self._pool, clients.astype(np.uint32))
        self._pool[: idle.size] = idle
        self._heap.state[2] = idle.size

    def advance(
        self,
        limit: float,
        done: int,
        client: NDArray[np.int32],
        sent: IntArray,
        time: FloatArray,
    ) -> tuple[int, bool]:
        written, ended = 0, False
        while written < client.size and not ended:
            self._units.ensure(self._needed)
            self._targets.ensure(1)
            self._choices.ensure(self._needed)
            cursor = np.array([self._units.used, self._targets.used, self._choices.used])
            more, ended = events.advance(
                self._policy,
                self._queues,
                self._heap,
                self._service,
                self._pool,
                self._units.values,
                self._targets.values,
                self._choices.values,
                cursor,
                limit,
                done + written,
                client[written:],
                sent[written:],
                time[written:],
            )
            self._units.used, self._targets.used, self._choices.used = map(int, cursor)
            written += more
        return written, ended

    def in_flight(self) -> tuple[NDArray[np.int32], IntArray]:
        return in_flight(self._queues)


def _check_policy(network: Network, policy: str, start: Start) -> None:
    if policy not in _POLICY_CODES:
        raise UnknownName("policy", policy, POLICIES)
    n, m = network.size, network.concurrency
    name = start_name(start)
    if policy in ("idle", "synchronous") and m > n:
        raise InvalidInput(
            f"the policy '{policy}' gives a client one task at a time, so concurrency must be at "
            f"most the number of clients, {n}; it is {m}"
        )
    if policy != "routed" and name == "stationary":
        raise InvalidInput(
            f"the stationary start is known for the policy 'routed' only; for '{policy}' start "
            "from 'spread' and leave out a warm-up"
        )
    if policy == "synchronous" and name == "given":
        raise InvalidInput("the policy 'synchronous' draws its first cohort; leave out start")
    if policy == "idle" and name == "given" and np.max(np.asarray(start)) > 1:
        raise InvalidInput("the policy 'idle' starts with at most one task per client")


def _service(network: Network, law: Law, work: float) -> events.Service:
    fleet = network.fleet
    classes = np.repeat(network.parents, fleet.counts)
    lists, whole = law.observed, int(network.parents[-1]) + 1
    if lists and len(lists) not in (1, whole):
        raise InvalidInput(
            f"a trace needs durations for every class of the fleet, or one list for all: the "
            f"fleet has {whole} classes, the trace {len(lists)} lists"
        )
    if len(lists) == 1:
        lists = lists * whole
    sizes = np.array([len(durations) for durations in lists], dtype=np.int64)
    first = np.cumsum(sizes) - sizes
    return events.Service(
        work / fleet.expand(fleet.service_rates),
        np.array([value for durations in lists for value in durations], dtype=np.float64),
        first[classes] if lists else first,
        sizes[classes] if lists else sizes,
    )


def _routed_stream(network: Network, random: np.random.Generator) -> "Stream[np.uint32]":
    table = alias_table(network)
    return Stream(lambda size: routed_clients(table, random.random(size)))


def _shuffled_stream(network: Network, random: np.random.Generator) -> "Stream[np.uint32]":
    order = np.arange(network.size, dtype=np.uint32)
    position = np.zeros(1, dtype=np.int64)
    return Stream(lambda size: _shuffle(order, position, random.random(size)))


@njit(cache=True, nogil=True)
def _shuffle(
    order: NDArray[np.uint32], position: IntArray, uniforms: FloatArray
) -> NDArray[np.uint32]:
    """Clients in a fresh random order every n dispatches, one uniform number each."""
    clients = np.empty(uniforms.size, dtype=np.uint32)
    here = position[0]
    for i in range(uniforms.size):
        chosen = here + np.int64(uniforms[i] * (order.size - here))
        clients[i] = order[chosen]
        order[chosen] = order[here]
        order[here] = clients[i]
        here = (here + 1) % order.size
    position[0] = here
    return clients

"""A simulation in progress: the state of the network and the random numbers still to use."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sojourn.dispatch import Idle, NeverQueue, Policy, Routed, Shuffled, Synchronous, intervals
from sojourn.network import Network
from sojourn.simulation import events, memoryless
from sojourn.simulation.alias import alias_table, routed_clients
from sojourn.simulation.plain import PlainRun
from sojourn.simulation.queues import empty_queues, in_flight
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.starts import first_clients
from sojourn.simulation.streams import BLOCK, Seed, Stream, generators
from sojourn.simulation.units import Units
from sojourn.types import FloatArray, IntArray

_COMPILED: dict[type[Policy], int] = {
    Routed: events.ROUTED,
    NeverQueue: events.NEVER_QUEUE,
    Idle: events.IDLE,
    Shuffled: events.ROUTED,
    Synchronous: events.SYNCHRONOUS,
}
"""The policies that the event kernel knows, by its code for them."""


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


def start_run(network: Network, scenario: Scenario, *, seed: Seed) -> Run:
    """A run at time 0, with the kernel that suits its law and policy."""
    scenario.check(network)
    policy = type(scenario.policy)
    if policy is Routed and scenario.is_exponential and not scenario.paired:
        return _MemorylessRun(network, scenario, seed)
    if policy in _COMPILED:
        return _EventRun(network, scenario, seed)
    return PlainRun(network, scenario, seed)


class _MemorylessRun:
    def __init__(self, network: Network, scenario: Scenario, seed: Seed) -> None:
        starting, service, dispatch, picking = generators(seed, 4)
        rates = network.fleet.expand(network.fleet.service_rates) / scenario.work
        self._queues = empty_queues(network.size, network.concurrency)
        self._busy = memoryless.buckets(rates)
        self._now = 0.0
        self._picks = Stream(picking.random)
        self._gaps = Stream(service.standard_exponential)
        self._targets = _routed_stream(network, dispatch)
        first = first_clients(network, scenario.start, network.concurrency, starting)
        memoryless.place(self._queues, self._busy, first)

    def advance(
        self,
        limit: float,
        done: int,
        client: NDArray[np.int32],
        sent: IntArray,
        time: FloatArray,
    ) -> tuple[int, bool]:
        def further(start: int) -> tuple[int, bool]:
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
                done + start,
                client[start:],
                sent[start:],
                time[start:],
            )
            self._picks.used = self._gaps.used = int(cursor[0])
            self._targets.used = int(cursor[1])
            return more, ended

        return _until_full(client.size, further)

    def in_flight(self) -> tuple[NDArray[np.int32], IntArray]:
        return in_flight(self._queues)


class _EventRun:
    def __init__(self, network: Network, scenario: Scenario, seed: Seed) -> None:
        starting, _, dispatch, choosing = generators(seed, 4)
        policy = scenario.policy
        n, m = network.size, policy.in_flight(network)
        self._code = _COMPILED[type(policy)]
        self._queues = empty_queues(n, m)
        self._heap = events.empty_heap(min(n, m))
        cohorts = isinstance(policy, Synchronous)
        self._needed = max(2, m) if cohorts else 2
        block = max(BLOCK, m)
        self._units = Units(
            network,
            scenario.laws,
            work=scenario.work,
            own=scenario.paired,
            block=block,
            least=2 if scenario.paired else self._needed,
            seed=seed,
        )
        self._choices = Stream(choosing.random, block=block)
        shuffled = isinstance(policy, Shuffled)
        self._targets = (_shuffled_stream if shuffled else _routed_stream)(network, dispatch)
        self._pool = np.arange(n, dtype=np.uint32)
        self._turns = _turns(network) if isinstance(policy, NeverQueue) else _NO_TURNS
        if not cohorts:
            if shuffled and scenario.start == "spread":
                clients = self._targets.take(m).astype(np.int64)
            else:
                clients = first_clients(network, scenario.start, m, starting)
            self._place(clients)

    @property
    def _times(self) -> events.Times:
        units = self._units
        return events.Times(
            units.scale, units.row, units.values, units.used, units.filled, units.least
        )

    def _place(self, clients: IntArray) -> None:
        events.place(self._queues, self._heap, self._times, clients)
        idle = np.setdiff1d(self._pool, clients.astype(np.uint32))
        if self._turns.interval.size:
            np.add.at(self._turns.sent, clients, 1)
            idle = idle[np.argsort(self._turns.interval[idle], kind="stable")]  # a heap, sorted
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
        def further(start: int) -> tuple[int, bool]:
            self._units.refill()
            self._targets.ensure(1)
            self._choices.ensure(self._needed)
            cursor = np.array([self._targets.used, self._choices.used])
            more, ended = events.advance(
                self._code,
                self._queues,
                self._heap,
                self._times,
                self._pool,
                self._turns,
                self._targets.values,
                self._choices.values,
                cursor,
                limit,
                done + start,
                client[start:],
                sent[start:],
                time[start:],
            )
            self._targets.used, self._choices.used = map(int, cursor)
            return more, ended

        return _until_full(client.size, further)

    def in_flight(self) -> tuple[NDArray[np.int32], IntArray]:
        return in_flight(self._queues)


def _until_full(size: int, further: Callable[[int], tuple[int, bool]]) -> tuple[int, bool]:
    """Call ``further(written)`` until ``size`` rounds are written or the time is over."""
    written, ended = 0, False
    while written < size and not ended:
        more, ended = further(written)
        written += more
    return written, ended


_NO_TURNS = events.Turns(np.zeros(0), np.zeros(0, dtype=np.int64))


def _turns(network: Network) -> events.Turns:
    apart = network.fleet.expand(intervals(network.fleet, network.concurrency))
    return events.Turns(apart, np.zeros(network.size, dtype=np.int64))


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

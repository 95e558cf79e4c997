"""A simulation in progress: the state of the network and the random numbers still to use."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sojourn.dispatch import Idle, NeverQueue, Policy, Routed, Shuffled, Synchronous
from sojourn.errors import InvalidInput
from sojourn.network import Network
from sojourn.simulation import events, memoryless
from sojourn.simulation.draws import InPieces, Out, routed_stream
from sojourn.simulation.plain import PlainRun
from sojourn.simulation.queues import empty_queues, in_flight
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.sending import Sending
from sojourn.simulation.starts import first_clients
from sojourn.simulation.stationruns import StationRun
from sojourn.simulation.streams import BLOCK, Seed, Stream, generators
from sojourn.simulation.turns import begin, turns
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

    def spent(self, now: float) -> FloatArray | None:
        """The time spent in every stage until ``now``, if the kernel keeps account of it."""


def start_run(network: Network, scenario: Scenario, *, seed: Seed) -> Run:
    """A run at time 0, with the kernel that suits its law and policy."""
    scenario.check(network)
    policy = type(scenario.policy)
    if network.has_stations or scenario.has_calendar(network):
        if policy not in _COMPILED:
            raise InvalidInput(
                f"links and a server that take time are simulated for the policies "
                f"{', '.join(sorted(known.name for known in _COMPILED))}, and so are clients that come "
                f"and go or drift; for '{scenario.policy.name}' leave out downlink, uplink, server_rate, "
                "mean_up and mean_down, hours and drift"
            )
        return StationRun(network, scenario, seed, code=_COMPILED[policy])
    if policy in (Routed, NeverQueue) and scenario.is_exponential and not scenario.paired:
        return _MemorylessRun(network, scenario, seed)
    if policy in _COMPILED:
        return _EventRun(network, scenario, seed)
    return PlainRun(network, scenario, seed)


class _MemorylessRun(InPieces):
    def __init__(self, network: Network, scenario: Scenario, seed: Seed) -> None:
        starting, service, dispatch, picking = generators(seed, 4)
        rates = network.fleet.expand(network.fleet.service_rates) / scenario.work
        n, m = network.size, scenario.policy.in_flight(network)
        self._queues = empty_queues(n, m)
        self._busy = memoryless.buckets(rates)
        self._now = 0.0
        self._picks = Stream(picking.random)
        self._gaps = Stream(service.standard_exponential)
        self._targets = routed_stream(network, dispatch)
        self._turns = turns(network) if isinstance(scenario.policy, NeverQueue) else None
        self._pool = np.arange(n, dtype=np.uint32)
        first = first_clients(network, scenario.start, m, starting)
        memoryless.place(self._queues, self._busy, first)
        self._idle = 0 if self._turns is None else begin(self._turns, self._pool, first)

    def piece(self, limit: float, done: int, out: Out) -> tuple[int, bool]:
        for stream in (self._picks, self._gaps, self._targets):
            stream.ensure(1)
        cursor = np.array([self._picks.used, self._targets.used])
        more, self._now, ended = memoryless.advance(
            self._queues,
            self._busy,
            self._picks.values,
            self._gaps.values,
            self._targets.values,
            self._turns,
            self._pool,
            self._idle,
            cursor,
            self._now,
            limit,
            done,
            *out,
        )
        self._picks.used = self._gaps.used = int(cursor[0])
        self._targets.used = int(cursor[1])
        return more, ended

    def in_flight(self) -> tuple[NDArray[np.int32], IntArray]:
        return in_flight(self._queues)

    def spent(self, now: float) -> None:
        return None


class _EventRun(InPieces):
    def __init__(self, network: Network, scenario: Scenario, seed: Seed) -> None:
        starting, _, dispatch, choosing = generators(seed, 4)
        policy = scenario.policy
        n, m = network.size, policy.in_flight(network)
        self._code = _COMPILED[type(policy)]
        self._queues = empty_queues(n, m)
        self._heap = events.empty_heap(min(n, m))
        cohorts = isinstance(policy, Synchronous)
        self._needed = max(2, m) if cohorts else 2
        self._units = Units(
            network,
            scenario.laws,
            work=scenario.work,
            own=scenario.paired,
            block=max(BLOCK, m),
            least=2 if scenario.paired else self._needed,
            seed=seed,
        )
        self._sending = Sending(network, policy, dispatch, choosing)
        if cohorts:
            return
        if self._sending.shuffled and scenario.start == "spread":
            clients = self._sending.targets.take(m).astype(np.int64)
        else:
            clients = first_clients(network, scenario.start, m, starting)
        events.place(self._queues, self._heap, self._units.times, clients)
        self._heap.state[2] = self._sending.begin(clients)

    def piece(self, limit: float, done: int, out: Out) -> tuple[int, bool]:
        self._units.refill()
        sending = self._sending
        cursor = sending.ready(1, self._needed)
        more, ended = events.advance(
            self._code,
            self._queues,
            self._heap,
            self._units.times,
            sending.pool,
            sending.turns,
            sending.targets.values,
            sending.choices.values,
            cursor,
            limit,
            done,
            *out,
        )
        sending.used(cursor)
        return more, ended

    def in_flight(self) -> tuple[NDArray[np.int32], IntArray]:
        return in_flight(self._queues)

    def spent(self, now: float) -> None:
        return None

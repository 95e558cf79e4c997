"""A simulation in progress: the state of the network and the random numbers still to use."""

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sojourn.dispatch import Idle, NeverQueue, Policy, Routed, Shuffled, Synchronous, intervals
from sojourn.fleet import Network
from sojourn.simulation import events, memoryless, stations
from sojourn.simulation.events import Completions, Dispatch
from sojourn.simulation.plain import PlainRun
from sojourn.simulation.scenario import Scenario, each_client
from sojourn.simulation.starts import first_clients, first_journeys
from sojourn.simulation.streams import (
    BLOCK,
    Seed,
    ServiceTimes,
    Stream,
    generators,
    routed_stream,
    shuffled_stream,
)
from sojourn.types import FloatArray, IntArray

_COMPILED: dict[type[Policy], int] = {
    Routed: events.ROUTED,
    NeverQueue: events.NEVER_QUEUE,
    Idle: events.IDLE,
    Shuffled: events.ROUTED,
    Synchronous: events.SYNCHRONOUS,
}
"""The policies that the event kernels know, by their codes."""


class Run(Protocol):
    """A simulation that can be carried on, some rounds at a time."""

    def advance(self, limit: float, done: int, completions: Completions) -> tuple[int, bool]:
        """Fill ``completions``; returns how many rounds were written and whether ``limit`` was passed."""

    def in_flight(self) -> tuple[NDArray[np.int32], IntArray]:
        """The client and the dispatch round of every task that has not completed."""

    def spent(self, now: float) -> FloatArray | None:
        """The time spent in every stage until ``now``, if the kernel records it."""


def start_run(network: Network, scenario: Scenario, *, seed: Seed) -> Run:
    """A run at time 0, with the kernel that suits its law and policy."""
    scenario.check(network)
    policy = type(scenario.policy)
    stops = isinstance(scenario.policy, NeverQueue) and scenario.policy.patience is not None
    stops = stops or (isinstance(scenario.policy, Synchronous) and scenario.policy.drops_stragglers)
    if policy not in _COMPILED or stops:
        return PlainRun(network, scenario, seed)
    if network.has_delays or scenario.has_calendar(network):
        return _StationRun(network, scenario, seed)
    if policy in (Routed, NeverQueue) and scenario.is_exponential and not scenario.paired:
        return _MemorylessRun(network, scenario, seed)
    return _EventRun(network, scenario, seed)


class _KernelRun(ABC):
    """A run whose kernel stops where random numbers run out, and goes on with fresh ones."""

    _queues: events.Queues

    def advance(self, limit: float, done: int, completions: Completions) -> tuple[int, bool]:
        client, sent, time = completions
        written, ended = 0, False
        while written < client.size and not ended:
            rest = client[written:], sent[written:], time[written:]
            more, ended = self._advance(limit, done + written, rest)
            written += more
        return written, ended

    @abstractmethod
    def _advance(self, limit: float, done: int, completions: Completions) -> tuple[int, bool]:
        """As `advance`, for as long as the random numbers last."""

    def in_flight(self) -> tuple[NDArray[np.int32], IntArray]:
        return events.in_flight(self._queues)

    def spent(self, now: float) -> FloatArray | None:
        return None


class _MemorylessRun(_KernelRun):
    def __init__(self, network: Network, scenario: Scenario, seed: Seed) -> None:
        starting, service, dispatch, picking = generators(seed, 4)
        work = scenario.client_work(network)
        rates = network.fleet.expand(network.fleet.service_rates) / work
        n, m = network.size, scenario.policy.in_flight(network)
        self._queues = events.empty_queues(n, m)
        self._busy = memoryless.buckets(rates)
        self._now = 0.0
        self._picks = Stream(picking.random)
        self._gaps = Stream(service.standard_exponential)
        self._targets = routed_stream(network, dispatch)
        never_queue = isinstance(scenario.policy, NeverQueue)
        self._due_times = _due_times(network, scenario) if never_queue else None
        self._pool = np.arange(n, dtype=np.uint32)
        first = first_clients(network, scenario.start, m, starting)
        memoryless.place(self._queues, self._busy, first)
        self._idle = 0
        if self._due_times is not None:
            self._idle = events.fill_pool(self._due_times, self._pool, first)

    def _advance(self, limit: float, done: int, completions: Completions) -> tuple[int, bool]:
        for stream in (self._picks, self._gaps, self._targets):
            stream.ensure(1)
        cursor = np.array([self._picks.used, self._targets.used])
        more, self._now, ended = memoryless.advance(
            self._queues,
            self._busy,
            self._picks.values,
            self._gaps.values,
            self._targets.values,
            self._due_times,
            self._pool,
            self._idle,
            cursor,
            self._now,
            limit,
            done,
            completions,
        )
        self._picks.used = self._gaps.used = int(cursor[0])
        self._targets.used = int(cursor[1])
        return more, ended


def _due_times(network: Network, scenario: Scenario) -> events.DueTimes:
    """When tasks are due; work that differs between clients changes their proportions."""
    fleet, m = network.fleet, network.concurrency
    if not isinstance(scenario.work, tuple):
        return events.due_times(fleet.expand(intervals(fleet, m)))
    clients = each_client(network).fleet
    return events.due_times(intervals(clients, m, scenario.client_work(network)))


class _DispatchStreams:
    """Clients drawn beforehand, choices among the idle, who is idle, and whose task is due."""

    def __init__(
        self,
        network: Network,
        scenario: Scenario,
        drawing: np.random.Generator,
        choosing: np.random.Generator,
    ) -> None:
        policy = scenario.policy
        self.shuffled = isinstance(policy, Shuffled)
        self.targets = (shuffled_stream if self.shuffled else routed_stream)(network, drawing)
        self._choices = Stream(choosing.random, block=max(BLOCK, policy.in_flight(network)))
        self._pool = np.arange(network.size, dtype=np.uint32)
        never_queue = isinstance(policy, NeverQueue)
        self._due_times = _due_times(network, scenario) if never_queue else events.no_due_times()

    def begin(self, clients: IntArray) -> int:
        """The first tasks go to ``clients``; returns how many others are idle."""
        return events.fill_pool(self._due_times, self._pool, clients)

    def ready(self, targets: int, choices: int) -> Dispatch:
        """What the kernel draws on, with at least so many targets and choices left."""
        self.targets.ensure(targets)
        self._choices.ensure(choices)
        cursor = np.array([self.targets.used, self._choices.used])
        values = self.targets.values, self._choices.values
        return Dispatch(self._pool, self._due_times, *values, cursor)

    def used(self, dispatch: Dispatch) -> None:
        """Continue where the kernel left off."""
        self.targets.used, self._choices.used = map(int, dispatch.cursor)


class _EventRun(_KernelRun):
    def __init__(self, network: Network, scenario: Scenario, seed: Seed) -> None:
        starting, _, dispatch, choosing = generators(seed, 4)
        policy = scenario.policy
        n, m = network.size, policy.in_flight(network)
        self._code = _COMPILED[type(policy)]
        self._queues = events.empty_queues(n, m)
        self._heap = events.empty_heap(min(n, m))
        cohorts = isinstance(policy, Synchronous)
        self._needed = max(2, m) if cohorts else 2
        self._times = ServiceTimes(
            network,
            scenario.law,
            work=scenario.client_work(network),
            paired=scenario.paired,
            block=max(BLOCK, m),
            least=2 if scenario.paired else self._needed,
            seed=seed,
        )
        self._streams = _DispatchStreams(network, scenario, dispatch, choosing)
        if cohorts:
            return
        if self._streams.shuffled and scenario.start == "spread":
            clients = self._streams.targets.take(m).astype(np.int64)
        else:
            clients = first_clients(network, scenario.start, m, starting)
        events.place(self._queues, self._heap, self._times.times, clients)
        self._heap.state[2] = self._streams.begin(clients)

    def _advance(self, limit: float, done: int, completions: Completions) -> tuple[int, bool]:
        self._times.refill()
        dispatch = self._streams.ready(1, self._needed)
        state = self._queues, self._heap, self._times.times
        more, ended = events.advance(self._code, *state, dispatch, limit, done, completions)
        self._streams.used(dispatch)
        return more, ended


class _StationRun(_KernelRun):
    """Tasks travel, or queue at the server, or wait for clients that are away."""

    def __init__(self, network: Network, scenario: Scenario, seed: Seed) -> None:
        starting, _, dispatch, choosing = generators(seed, 4)
        policy = scenario.policy
        n, m = network.size, policy.in_flight(network)
        cohorts = isinstance(policy, Synchronous)
        self._code = _COMPILED[type(policy)]
        self._calendars = scenario.calendars(network, seed)
        self._calendar = None if self._calendars is None else self._calendars.following()
        loses = self._calendar is not None and bool(self._calendar.loses[0])
        self._sends = m if loses else 1
        self._needed = max(2, m) + 2 * loses if cohorts or loses else 2
        self._queues = events.empty_queues(n + 1, m)
        self._journeys = stations.no_journeys(n, m)
        self._heap = events.empty_heap(m)
        self._times = ServiceTimes(
            network,
            scenario.law,
            work=scenario.client_work(network),
            paired=scenario.paired,
            block=max(BLOCK, self._needed),
            least=2 if scenario.paired and not loses else self._needed,
            seed=seed,
            delay_laws=(scenario.link_law, scenario.server_law),
        )
        self._streams = _DispatchStreams(network, scenario, dispatch, choosing)
        if cohorts:
            return
        clients, stages = first_journeys(network, scenario.start, m, starting)
        if self._streams.shuffled and scenario.start == "spread":
            clients = self._streams.targets.take(m).astype(np.int64)
            travels = self._times.scale[n + clients] > 0.0
            stages = np.where(travels, stations.DOWNLINK, stations.SERVICE).astype(np.uint8)
        placed = 0
        while placed < m:
            self._times.refill()
            placed = stations.place(self._state(), self._calendar, clients, stages, placed)
        self._heap.state[2] = self._streams.begin(clients)

    def _state(self) -> stations.Stations:
        return stations.Stations(self._queues, self._journeys, self._heap, self._times.times)

    def _advance(self, limit: float, done: int, completions: Completions) -> tuple[int, bool]:
        self._times.refill()
        if self._calendars is not None and self._calendar is not None:
            # The window of the calendar in which the next event happens.
            while self._heap.state[0] and self._heap.when[0] >= self._calendar.end[0]:
                self._calendar = self._calendars.following()
        dispatch = self._streams.ready(self._sends, self._needed)
        more, ended = stations.advance(
            self._code, self._state(), self._calendar, dispatch, limit, done, completions
        )
        self._streams.used(dispatch)
        return more, ended

    def in_flight(self) -> tuple[NDArray[np.int32], IntArray]:
        return stations.under_way(self._queues, self._journeys)

    def spent(self, now: float) -> FloatArray:
        """Time spent in every stage until ``now``: see `sojourn.simulation.stations`."""
        return stations.spent_until(self._journeys, self._heap, now)

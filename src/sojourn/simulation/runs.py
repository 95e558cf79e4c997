"""A simulation in progress: the state of the network and the random numbers still to use."""

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sojourn.dispatch import Idle, NeverQueue, Policy, Routed, Shuffled, Synchronous, intervals
from sojourn.fleet import Network
from sojourn.simulation import events, stations
from sojourn.simulation.events import Completions, Dispatch
from sojourn.simulation.plain import PlainRun
from sojourn.simulation.scenario import Scenario, each_client
from sojourn.simulation.starts import first_clients, stationary_journeys
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

    @property
    def cut(self) -> IntArray | None:
        """The rounds so far whose task was cut short; ``None``: none was."""


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
    """A run whose kernel stops where random numbers run out, and goes on with fresh ones.

    It holds what every kernel dispatches by: clients drawn beforehand, choices among the idle, who is
    idle, and whose task is due. ``_sends`` targets and ``_needed`` choices are ready for each call.
    """

    cut = None
    _queues: events.Queues
    _sends = 1
    _needed = 2

    def __init__(self, network: Network, scenario: Scenario, seed: Seed) -> None:
        self._starting, self._service, drawing, choosing = generators(seed, 4)
        policy = scenario.policy
        self._network, self._scenario = network, scenario
        self._code = _COMPILED[type(policy)]
        self._tasks = policy.in_flight(network)
        self._block = max(BLOCK, self._tasks)
        self._shuffled = isinstance(policy, Shuffled)
        self._targets = (shuffled_stream if self._shuffled else routed_stream)(network, drawing)
        self._choices = Stream(choosing.random, block=self._block)
        self._pool = np.arange(network.size, dtype=np.uint32)
        self._due_times = events.due_times(_intervals(network, scenario))

    @property
    def _cohorts(self) -> bool:
        return self._code == events.SYNCHRONOUS

    def _first_clients(self) -> IntArray:
        if self._shuffled and self._scenario.start == "spread":
            return self._targets.take(self._tasks).astype(np.int64)
        return first_clients(self._network, self._scenario.start, self._tasks, self._starting)

    def _begin(self, clients: IntArray) -> int:
        """The first tasks go to ``clients``; returns how many others are idle, where it matters."""
        if self._code == events.ROUTED:
            return 0
        return events.fill_pool(self._due_times, self._pool, clients)

    def advance(self, limit: float, done: int, completions: Completions) -> tuple[int, bool]:
        client, sent, time = completions
        written, ended = 0, False
        while written < client.size and not ended:
            self._targets.ensure(self._sends)
            self._choices.ensure(self._needed)
            cursor = np.array([self._targets.used, self._choices.used])
            values = self._targets.values, self._choices.values
            dispatch = Dispatch(self._pool, self._due_times, *values, cursor)
            rest = client[written:], sent[written:], time[written:]
            more, ended = self._advance(dispatch, limit, done + written, rest)
            self._targets.used, self._choices.used = map(int, cursor)
            written += more
        return written, ended

    @abstractmethod
    def _advance(
        self, dispatch: Dispatch, limit: float, done: int, completions: Completions
    ) -> tuple[int, bool]:
        """As `advance`, for as long as the random numbers last."""

    def in_flight(self) -> tuple[NDArray[np.int32], IntArray]:
        return events.in_flight(self._queues)

    def spent(self, now: float) -> FloatArray | None:
        return None


def _intervals(network: Network, scenario: Scenario) -> FloatArray:
    """Times between the due tasks of every client; empty for policies without due times."""
    fleet, m = network.fleet, network.concurrency
    if not isinstance(scenario.policy, NeverQueue):
        return np.zeros(0)
    if not isinstance(scenario.work, tuple):
        return fleet.expand(intervals(fleet, m))
    # Work that differs between clients changes the proportions of their rates.
    return intervals(each_client(network).fleet, m, scenario.client_work(network))


class _MemorylessRun(_KernelRun):
    """Choices pick who finishes, and the gaps between completions are used up beside them."""

    _needed = 1

    def __init__(self, network: Network, scenario: Scenario, seed: Seed) -> None:
        super().__init__(network, scenario, seed)
        rates = network.fleet.expand(network.fleet.service_rates) / scenario.client_work(network)
        self._gaps = Stream(self._service.standard_exponential, block=self._block)
        self._queues = events.empty_queues(network.size, self._tasks)
        self._busy = events.buckets(rates)
        self._now = 0.0
        clients = self._first_clients()
        events.place_memoryless(self._queues, self._busy, clients)
        self._idle = self._begin(clients)

    def _advance(
        self, dispatch: Dispatch, limit: float, done: int, completions: Completions
    ) -> tuple[int, bool]:
        self._gaps.ensure(1)
        more, self._now, ended = events.advance_memoryless(
            self._queues,
            self._busy,
            self._gaps.values,
            dispatch.targets,
            dispatch.choices,
            dispatch.cursor,
            self._due_times if self._code == events.NEVER_QUEUE else None,
            self._pool,
            self._idle,
            self._now,
            limit,
            done,
            completions,
        )
        self._gaps.used = int(dispatch.cursor[1])
        return more, ended


class _EventRun(_KernelRun):
    def __init__(self, network: Network, scenario: Scenario, seed: Seed) -> None:
        super().__init__(network, scenario, seed)
        m = self._tasks
        self._queues = events.empty_queues(network.size, m)
        self._heap = events.empty_heap(min(network.size, m))
        self._needed = max(2, m) if self._cohorts else 2
        least = 2 if scenario.paired else self._needed
        self._times = ServiceTimes(network, scenario, seed, block=self._block, least=least)
        if not self._cohorts:
            clients = self._first_clients()
            events.place(self._queues, self._heap, self._times.times, clients)
            self._heap.state[2] = self._begin(clients)

    def _advance(
        self, dispatch: Dispatch, limit: float, done: int, completions: Completions
    ) -> tuple[int, bool]:
        self._times.refill()
        state = self._queues, self._heap, self._times.times
        return events.advance(self._code, *state, dispatch, limit, done, completions)


class _StationRun(_KernelRun):
    """Tasks travel, or queue at the server, or wait for clients that are away."""

    def __init__(self, network: Network, scenario: Scenario, seed: Seed) -> None:
        super().__init__(network, scenario, seed)
        n, m = network.size, self._tasks
        self._calendars = scenario.calendars(network, seed)
        self._calendar = None if self._calendars is None else self._calendars.following()
        loses = self._calendar is not None and bool(self._calendar.loses[0])
        self._sends = m if loses else 1
        self._needed = max(2, m) + 2 * loses if self._cohorts or loses else 2
        self._queues = events.empty_queues(n + 1, m)
        self._journeys = stations.no_journeys(n, m)
        self._heap = events.empty_heap(m)
        self._times = ServiceTimes(
            network,
            scenario,
            seed,
            block=max(BLOCK, self._needed),
            least=2 if scenario.paired and not loses else self._needed,
            delays=True,
        )
        if self._cohorts:
            return
        clients, stages = self._first_journeys()
        placed = 0
        while placed < m:
            self._times.refill()
            placed = stations.place(*self._state(), self._calendar, clients, stages, placed)
        self._heap.state[2] = self._begin(clients)

    def _first_journeys(self) -> tuple[IntArray, NDArray[np.uint8]]:
        if self._scenario.start == "stationary":
            return stationary_journeys(self._network, self._starting)
        clients = self._first_clients()
        travels = self._times.scale[self._network.size + clients] > 0.0
        return clients, np.where(travels, stations.DOWNLINK, stations.SERVICE).astype(np.uint8)

    def _state(self) -> tuple[events.Queues, stations.Journeys, events.Heap, events.Times]:
        return self._queues, self._journeys, self._heap, self._times.times

    def _advance(
        self, dispatch: Dispatch, limit: float, done: int, completions: Completions
    ) -> tuple[int, bool]:
        self._times.refill()
        if self._calendars is not None and self._calendar is not None:
            # The window of the calendar in which the next event happens.
            while self._heap.state[0] and self._heap.when[0] >= self._calendar.end[0]:
                self._calendar = self._calendars.following()
        return stations.advance(
            self._code, *self._state(), self._calendar, dispatch, limit, done, completions
        )

    def in_flight(self) -> tuple[NDArray[np.int32], IntArray]:
        return stations.under_way(self._queues, self._journeys)

    def spent(self, now: float) -> FloatArray:
        """Time spent in every stage until ``now``: see `sojourn.simulation.stations`."""
        return stations.spent_until(self._journeys, self._heap, now)

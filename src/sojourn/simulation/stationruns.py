"""A simulation in progress of a network whose tasks travel, or queue at the server, or wait for clients."""

import numpy as np
from numpy.typing import NDArray

from sojourn.dispatch import Synchronous
from sojourn.laws import ServiceLaw
from sojourn.network import Network
from sojourn.simulation import events, journeys, stations
from sojourn.simulation.draws import InPieces, Out
from sojourn.simulation.queues import empty_queues
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.sending import Sending
from sojourn.simulation.starts import first_journeys
from sojourn.simulation.streams import BLOCK, Seed, generators, substreams
from sojourn.simulation.units import DOWNLINK, SERVER, UPLINK, Units
from sojourn.types import FloatArray, IntArray


class StationRun(InPieces):
    """The kernel of `sojourn.simulation.stations`, and the random numbers still to use."""

    def __init__(self, network: Network, scenario: Scenario, seed: Seed, *, code: int) -> None:
        starting, _, dispatch, choosing = generators(seed, 4)
        policy = scenario.policy
        n, m = network.size, policy.in_flight(network)
        cohorts = isinstance(policy, Synchronous)
        self._code = code
        self._calendars = scenario.calendars(network, seed)
        self._calendar = None if self._calendars is None else self._calendars.following()
        loses = self._calendar is not None and bool(self._calendar.loses[0])
        self._sends = m if loses else 1
        self._needed = max(2, m) + 2 * loses if cohorts or loses else 2
        self._queues = empty_queues(n + 1, m)
        self._journeys = journeys.no_journeys(n, m)
        self._heap = events.empty_heap(m)
        self._units = _StationUnits(network, scenario, seed, least=self._needed, loses=loses)
        self._sending = Sending(network, policy, dispatch, choosing)
        if cohorts:
            return
        clients, stages = first_journeys(network, scenario.start, m, starting)
        if self._sending.shuffled and scenario.start == "spread":
            clients = self._sending.targets.take(m).astype(np.int64)
            travels = self._units.scale[n + clients] > 0.0
            stages = np.where(travels, journeys.DOWNLINK, journeys.SERVICE).astype(np.uint8)
        placed = 0
        while placed < m:
            self._units.refill()
            state = self._queues, self._journeys, self._calendar, self._heap, self._units.times
            placed = stations.place(*state, clients, stages, placed)
        self._heap.state[2] = self._sending.begin(clients)

    def piece(self, limit: float, done: int, out: Out) -> tuple[int, bool]:
        self._units.refill()
        self._turn_the_page()
        sending = self._sending
        cursor = sending.ready(self._sends, self._needed)
        more, ended = stations.advance(
            self._code,
            self._queues,
            self._journeys,
            self._calendar,
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

    def _turn_the_page(self) -> None:
        """Have the window of the calendar that the next thing to happen is in."""
        if self._calendars is None or self._calendar is None:
            return
        while self._heap.state[0] and self._heap.when[0] >= self._calendar.end[0]:
            self._calendar = self._calendars.following()

    def in_flight(self) -> tuple[NDArray[np.int32], IntArray]:
        return journeys.under_way(self._queues, self._journeys)

    def spent(self, now: float) -> FloatArray:
        """Time spent in every stage until ``now``: see `sojourn.simulation.journeys`."""
        return journeys.spent_until(self._journeys, self._heap, now)


class _StationUnits(Units):
    """Times of service as in every run, then those of downlinks, uplinks and the server."""

    def __init__(
        self, network: Network, scenario: Scenario, seed: Seed, *, least: int, loses: bool
    ) -> None:
        own, n, fleet = scenario.paired, network.size, network.fleet
        super().__init__(
            network,
            scenario.laws,
            work=scenario.work,
            own=own,
            block=max(BLOCK, least),
            least=2 if own and not loses else least,
            seed=seed,
        )
        rows = self.row.max() + 1
        for place, times in ((DOWNLINK, fleet.downlink), (UPLINK, fleet.uplink)):
            scale = np.zeros(n) if times is None else fleet.expand(times)
            self.scale = np.append(self.scale, scale)
            self.row = np.append(self.row, rows + (np.arange(n) if own else 0 * np.arange(n)))
            more = substreams(seed, place, n) if own else [generators(seed, place + 1)[place]]
            self._add(more, scenario.link_law)
            rows += len(more)
        self.scale = np.append(self.scale, 1.0 / (network.server_rate or np.inf))
        self.row = np.append(self.row, rows)
        self._add([generators(seed, SERVER + 1)[SERVER]], scenario.server_law)
        self.refill()

    def _add(self, random: list[np.random.Generator], law: ServiceLaw) -> None:
        number = len(random)
        self._random = [*self._random, *random]
        self._laws = [*self._laws, *[law] * number]
        self.values = np.vstack([self.values, np.empty((number, self.values.shape[1]))])
        self.used = np.append(self.used, np.zeros(number, dtype=np.int64))
        self.filled = np.append(self.filled, np.zeros(number, dtype=np.int64))

"""The event loop in plain Python, for policies without a compiled form: anybody's own.

A task due at the same instant as a completion is sent then, or as soon as the policy names a client
for it. A task that the policy stops is taken from its client without a trace in the schedule; one
that it cuts short makes a round without a result.
Cost: some microseconds per round, and what the policy takes to choose.
"""

import heapq
import itertools
from collections import deque

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import InvalidInput
from sojourn.network import Network
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.starts import first_clients
from sojourn.simulation.streams import BLOCK, Seed, generators
from sojourn.simulation.units import Units
from sojourn.types import FloatArray, IntArray

ROOM = 64
"""Completions of stopped tasks that may stand in the list, beside as many as there are clients."""


class PlainRun:
    """A run that is its own policy's `sojourn.dispatch.View`: all clients live, rates are known."""

    def __init__(self, network: Network, scenario: Scenario, seed: Seed) -> None:
        starting, _, _, choosing = generators(seed, 4)
        policy = scenario.policy
        self.living = range(network.size)
        self.concurrency = policy.in_flight(network)
        self.routing: FloatArray = network.client_routing
        self.rates: FloatArray = network.fleet.expand(network.fleet.service_rates) / scenario.work
        self.client_weights = network.fleet.expand(network.fleet.relative_weights)
        self.now = 0.0
        self._policy = policy
        self._units = Units(
            network,
            scenario.laws,
            work=scenario.work,
            own=scenario.paired,
            block=max(BLOCK, self.concurrency),
            least=2,
            seed=seed,
        )
        self._queues: list[deque[int]] = [deque() for _ in self.living]
        self._future: list[tuple[float, int, int]] = []
        self._begun = itertools.count()
        self._service: dict[int, int] = {}
        self._held = 0
        self._cutting: set[int] = set()
        self._cut: list[int] = []
        self._chooser = policy.chooser(choosing)
        self._chooser.changed(self)
        first = policy.first_clients(network)
        if first is None:
            first = first_clients(network, scenario.start, self.concurrency, starting).tolist()
        for client in first:
            self._send(client, 0)

    @property
    def cut(self) -> IntArray | None:
        """The rounds so far whose task was cut short; ``None``: none was."""
        return np.array(self._cut, dtype=np.int64) if self._cut else None

    @property
    def under_way(self) -> int:
        """How many tasks are with clients now."""
        return self.concurrency - self._held

    def tasks(self, client: int) -> int:
        """How many tasks a client has, in service or waiting."""
        return len(self._queues[client])

    def advance(
        self,
        limit: float,
        done: int,
        client: NDArray[np.int32],
        sent: IntArray,
        time: FloatArray,
    ) -> tuple[int, bool]:
        """Fill the arrays; returns how many rounds were written and whether ``limit`` was passed."""
        written = 0
        while written < client.size:
            self._forget_stopped()
            if not self._future:
                raise InvalidInput(
                    f"the policy '{self._policy.name}' has left all clients without a task and names "
                    "nobody for the next"
                )
            if self._future[0][0] > limit:
                return written, True
            self.now, _, finisher = heapq.heappop(self._future)
            queue = self._queues[finisher]
            client[written], sent[written], time[written] = finisher, queue[0], self.now
            if finisher in self._cutting:
                self._cut.append(done + written)
            written += 1
            self._leave(finisher)
            for stopped in self._chooser.stops(self, finisher):
                self._stop(stopped)
            self._send_held(finisher, done + written)
        return written, False

    def in_flight(self) -> tuple[NDArray[np.int32], IntArray]:
        """The client and the dispatch round of every task that has not completed."""
        held = [(i, sent) for i, queue in enumerate(self._queues) for sent in queue]
        clients = np.array([i for i, _ in held], dtype=np.int32)
        return clients, np.array([sent for _, sent in held], dtype=np.int64)

    def spent(self, now: float) -> None:
        """No account is kept of it: tasks are with their clients only."""

    def _send_held(self, finisher: int, done: int) -> None:
        while self._held:
            chosen = self._chooser.choose(self, finisher)
            if chosen is None:
                return
            if chosen not in self.living:
                raise InvalidInput(
                    f"the policy '{self._policy.name}' chose client {chosen!r}; there are clients 0 "
                    f"to {len(self.living) - 1}"
                )
            self._held -= 1
            self._send(int(chosen), done)

    def _send(self, client: int, done: int) -> None:
        self._queues[client].append(done)
        if len(self._queues[client]) == 1:
            self._serve(client)
        self._chooser.sent(client)

    def _leave(self, client: int) -> None:
        """The task that ``client`` works on is the server's again."""
        self._queues[client].popleft()
        del self._service[client]
        self._cutting.discard(client)
        if self._queues[client]:
            self._serve(client)
        self._held += 1

    def _stop(self, client: int) -> None:
        if client not in self._service:
            raise InvalidInput(
                f"the policy '{self._policy.name}' stops the task of client {client!r}, which has none"
            )
        self._leave(client)

    def _serve(self, client: int) -> None:
        taken, cut = self._chooser.holds(client, self._units.take(client))
        if cut:
            self._cutting.add(client)
        self._service[client] = next(self._begun)
        heapq.heappush(self._future, (self.now + taken, self._service[client], client))

    def _forget_stopped(self) -> None:
        """Let the next completion be one that happens; now and then, all others too."""
        future, service = self._future, self._service
        while future and service.get(future[0][2]) != future[0][1]:
            heapq.heappop(future)
        if len(future) > 2 * len(service) + ROOM:
            self._future = [entry for entry in future if service.get(entry[2]) == entry[1]]
            heapq.heapify(self._future)

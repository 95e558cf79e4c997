"""Clients on a virtual clock, to drive the dispatcher without waiting."""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.tasks import Actions, Event, Task, Use

TICK_SECONDS = 0.3
"""How often a server on Flower looks, about."""


@dataclass
class VirtualClients:
    """Serve tasks first in first out, each client with exponential times of mean ``seconds[i]``.

    ``seconds`` may be changed while it runs; ``ticks`` is how often the dispatcher's clock ticks;
    ``carried`` are the weights that tasks were sent with, by their numbers, until they are done.
    """

    server: Dispatcher
    seconds: list[float]
    seed: int = 0
    ticks: float = 0.1
    now: float = 0.0
    used: list[Use] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    update: Callable[[Task], np.ndarray] = field(default=lambda task: np.ones(1))

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.inbox: list[deque[Task]] = [deque() for _ in self.seconds]
        self.carried: dict[int, np.ndarray] = {}
        self.done: list[tuple[float, int, int]] = []
        self.next_tick = self.ticks
        self.completions = [0] * len(self.seconds)

    def begin(self) -> None:
        for client in range(len(self.seconds)):
            self.take(self.server.joined(client, now=self.now))
        self.take(self.server.start(now=self.now))

    def take(self, actions: Actions) -> None:
        self.events += actions.events
        for task in actions.send:
            self.carried[task.number] = self.server.weights_of(task)
            self.inbox[task.client].append(task)
            if len(self.inbox[task.client]) == 1:
                self._work(task.client)
        for client in actions.probe:
            self.take(self.server.answered(client, now=self.now))
        if actions.used is not None:
            self.used.append(actions.used)

    def _work(self, client: int) -> None:
        takes = self.random.exponential(self.seconds[client])
        heapq.heappush(self.done, (self.now + takes, client, self.inbox[client][0].number))

    def step(self) -> int:
        """Run until the next completion; the client that completed."""
        finish, client, number = heapq.heappop(self.done)
        while self.next_tick <= finish:
            self.now = self.next_tick
            self.next_tick += self.ticks
            self.take(self.server.tick(self.now))
            if self.done and self.done[0][0] < finish:
                heapq.heappush(self.done, (finish, client, number))
                return self.step()
        self.now = finish
        task = self.inbox[client].popleft()
        if self.inbox[client]:
            self._work(client)
        self.completions[client] += 1
        update = self.update(task)
        del self.carried[number]
        self.take(self.server.completed(number, update, now=self.now, client=client))
        return client

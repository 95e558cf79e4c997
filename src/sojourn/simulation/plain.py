"""The event loop in plain Python, for policies without a compiled form: anybody's own.

A task travels down a client's link, is served there first in, first out, travels back and queues at
the server, as in `sojourn.simulation.stations`; without links and server it is served only. A task due
at the same instant as a completion is sent then, or as soon as the policy names a client for it. A task
that the policy stops is taken from its client without a trace in the schedule; one that it cuts short
makes a round without a result; one that outlasts the policy's patience begins anew. Where clients are
away at times, the policy sees those that are present as the living, as in a deployment.
Cost: some microseconds per event, and what the policy takes to choose.
"""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import InvalidInput
from sojourn.fleet import Network
from sojourn.simulation.calendars import Calendars
from sojourn.simulation.events import Completions
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.starts import first_clients
from sojourn.simulation.stations import DOWNLINK, SERVER, SERVICE, UPLINK
from sojourn.simulation.streams import BLOCK, Seed, ServiceTimes, generators
from sojourn.types import FloatArray, IntArray

ROOM = 64
"""Events of stopped tasks that may stand in the list, beside as many as there are clients."""
IDLE_CHANGES = 100_000
"""Comings and goings without a task anywhere after which a policy is taken to have stopped."""


@dataclass(slots=True, eq=False)
class _Task:
    """A task under way: the number of its next event (-1: none), and of its service what is left."""

    client: int
    sent: int
    stage: int = SERVICE
    event: int = -1
    left: float = 0.0
    since: float = 0.0
    cut: bool = False
    again: bool = False
    over: bool = False


class PlainRun:
    """A run that is its own policy's `sojourn.dispatch.View`; rates are known."""

    def __init__(self, network: Network, scenario: Scenario, seed: Seed) -> None:
        starting, _, _, choosing = generators(seed, 4)
        policy, n = scenario.policy, network.size
        self.living: list[int] | range = range(n)
        self.concurrency = policy.in_flight(network)
        self.routing: FloatArray = network.client_routing
        work = scenario.client_work(network)
        self.rates: FloatArray = network.fleet.expand(network.fleet.service_rates) / work
        self.client_weights = network.fleet.expand(network.fleet.relative_weights)
        self.now = 0.0
        self._policy = policy
        self._clients = n
        self._times = ServiceTimes(
            network,
            scenario,
            seed,
            block=max(BLOCK, self.concurrency),
            least=2,
            delays=network.has_delays,
        )
        scale = self._times.scale if network.has_delays else np.zeros(3 * n + 1)
        self._takes_time = scale > 0.0
        self._queues: list[deque[_Task]] = [deque() for _ in range(n)]
        self._updates: deque[_Task] = deque()
        self._tasks: list[deque[_Task]] = [deque() for _ in range(n)]
        self._future: list[tuple[float, int, _Task | None]] = []
        self._deadlines: deque[tuple[float, _Task]] = deque()
        self._begun = itertools.count()
        self._under_way = 0
        self._held = 0
        self._cut: list[int] = []
        self._speeds = None
        calendars = scenario.calendars(network, seed)
        if calendars is not None:
            self._speeds = _Speeds(calendars, n)
            self.living = self._speeds.present()
        self._loses = scenario.offline == "lose"
        self._chooser = policy.chooser(choosing)
        self._chooser.changed(self)
        first = policy.first_clients(network)
        if first is None:
            first = first_clients(network, scenario.start, self.concurrency, starting).tolist()
        for client in first:
            # Where clients are away at times, the policy deals the tasks of those that are not there.
            if self._speeds is None or self._speeds.speed[client] > 0.0:
                self._send(client, 0)
            else:
                self._held += 1
        self._send_held(None, 0)

    @property
    def cut(self) -> IntArray | None:
        """The rounds so far whose task was cut short; ``None``: none was."""
        return np.array(self._cut, dtype=np.int64) if self._cut else None

    @property
    def under_way(self) -> int:
        """How many tasks are with clients now, or on their way."""
        return self.concurrency - self._held

    def tasks(self, client: int) -> int:
        """How many tasks a client has, in service, waiting or on their way."""
        return len(self._tasks[client])

    def advance(self, limit: float, done: int, completions: Completions) -> tuple[int, bool]:
        """As of `sojourn.simulation.runs.Run`."""
        client, sent, time = completions
        written = changes = 0
        while written < client.size:
            self._forget_stopped()
            self._check_going(changes)
            change = np.inf if self._speeds is None else self._speeds.next_change
            next_event = min(self._future[0][0] if self._future else np.inf, change)
            if self._ends_at_deadline(min(next_event, limit)):
                continue
            if next_event > limit:
                return written, True
            if not self._future or self._future[0][0] > change:
                self._change_speeds(done + written)
                changes = 0 if self._under_way else changes + 1
                continue
            self.now, _, task = heapq.heappop(self._future)
            if task is None or not self._completes(task, done + written):
                continue
            finisher = task.client
            client[written], sent[written], time[written] = finisher, task.sent, self.now
            if task.cut:
                self._cut.append(done + written)
            written += 1
            self._take_back(task)
            for client_cut in () if task.cut else self._chooser.cuts(self, finisher):
                self._end_without_result(self._tasks[client_cut][0])
            for stopped in self._chooser.stops(self, finisher):
                self._stop(stopped)
            self._send_held(finisher, done + written)
        return written, False

    def in_flight(self) -> tuple[NDArray[np.int32], IntArray]:
        """The client and the dispatch round of every task that has not completed."""
        held = [(i, task.sent) for i, tasks in enumerate(self._tasks) for task in tasks]
        clients = np.array([i for i, _ in held], dtype=np.int32)
        return clients, np.array([sent for _, sent in held], dtype=np.int64)

    def spent(self, now: float) -> None:
        """Not recorded: tasks may be stopped."""

    def _send_held(self, finisher: int | None, done: int) -> None:
        while self._held:
            chosen = self._chooser.choose(self, finisher)
            if chosen is None:
                return
            if chosen not in range(self._clients):
                raise InvalidInput(
                    f"the policy '{self._policy.name}' chose client {chosen!r}; there are clients 0 "
                    f"to {self._clients - 1}"
                )
            self._held -= 1
            self._send(int(chosen), done)

    def _send(self, client: int, done: int) -> None:
        task = _Task(client, done)
        self._tasks[client].append(task)
        self._under_way += 1
        self._set_out(task)
        self._chooser.sent(client)
        longest = self._chooser.deadline(client)
        if longest < np.inf:
            self._deadlines.append((self.now + longest, task))

    def _set_out(self, task: _Task) -> None:
        travels = self._takes_time[DOWNLINK * self._clients + task.client]
        self._enter(task, DOWNLINK if travels else SERVICE)

    def _enter(self, task: _Task, stage: int) -> None:
        """The task comes to a stage; it waits there if another is before it."""
        task.stage = stage
        if stage in (DOWNLINK, UPLINK):
            self._schedule(task, self._times.take(stage * self._clients + task.client))
            return
        queue = self._updates if stage == SERVER else self._queues[task.client]
        queue.append(task)
        if len(queue) == 1:
            self._begin(task)

    def _begin(self, task: _Task) -> None:
        """The first of a queue is served."""
        if task.stage == SERVER:
            self._schedule(task, self._times.take(3 * self._clients))
            return
        client = task.client
        task.left, task.cut = self._chooser.holds(client, self._times.take(client))
        longest = self._chooser.patience(client)
        task.again = task.left > longest
        task.left = min(task.left, longest)
        self._work_on(task)

    def _work_on(self, task: _Task) -> None:
        task.since = self.now
        speed = 1.0 if self._speeds is None else self._speeds.speed[task.client]
        if speed > 0.0:
            self._schedule(task, task.left / speed)
        else:
            task.event = -1

    def _schedule(self, task: _Task, takes: float) -> None:
        task.event = next(self._begun)
        heapq.heappush(self._future, (self.now + takes, task.event, task))

    def _leave(self, task: _Task) -> None:
        """The task leaves the queue that it stands in, if any, and the next is served."""
        if task.stage in (DOWNLINK, UPLINK):
            return
        queue = self._updates if task.stage == SERVER else self._queues[task.client]
        first = queue[0] is task
        queue.remove(task)
        if first and queue:
            self._begin(queue[0])

    def _completes(self, task: _Task, done: int) -> bool:
        """The task has ended its stage; whether that was the last."""
        if task.over:
            return True
        stage = task.stage
        self._leave(task)
        if stage == SERVICE and task.again:
            task.sent = done
            self._set_out(task)
            return False
        if stage == DOWNLINK:
            self._enter(task, SERVICE)
        elif stage == SERVICE and self._takes_time[UPLINK * self._clients + task.client]:
            self._enter(task, UPLINK)
        elif stage != SERVER and self._takes_time[3 * self._clients]:
            self._enter(task, SERVER)
        else:
            return True
        return False

    def _ends_at_deadline(self, before: float) -> bool:
        """Whether a task's deadline comes ``before`` anything else: then the task ends there.

        Deadlines come in the order in which tasks were sent: all have the same time.
        """
        while self._deadlines:
            task = self._deadlines[0][1]
            if task in self._tasks[task.client]:
                break
            self._deadlines.popleft()
        if not self._deadlines or self._deadlines[0][0] >= before:
            return False
        self.now, task = self._deadlines.popleft()
        self._end_without_result(task)
        return True

    def _end_without_result(self, task: _Task) -> None:
        """The task ends now, wherever it is."""
        if not task.over:
            self._leave(task)
            task.cut = task.over = True
            self._schedule(task, 0.0)

    def _take_back(self, task: _Task) -> None:
        """The task is the server's again."""
        self._tasks[task.client].remove(task)
        task.event = -1
        self._under_way -= 1
        self._held += 1

    def _stop(self, client: int) -> None:
        if client not in range(self._clients) or not self._tasks[client]:
            raise InvalidInput(
                f"the policy '{self._policy.name}' stops the task of client {client!r}, which has none"
            )
        task = self._tasks[client][0]
        self._leave(task)
        self._take_back(task)

    def _change_speeds(self, done: int) -> None:
        """A client comes, goes or changes its speed: its service goes on so, or its tasks are lost."""
        assert self._speeds is not None
        self.now, client, before, speed = self._speeds.change()
        queue = self._queues[client]
        if queue:
            first = queue[0]
            first.left = max(first.left - (self.now - first.since) * before, 0.0)
        if (before > 0.0) == (speed > 0.0):
            if queue:
                self._work_on(queue[0])
            return
        self.living = self._speeds.present()
        if queue and self._loses and speed == 0.0:
            lost = list(queue)
            queue.clear()
            for task in lost:
                self._take_back(task)
        elif queue:
            self._work_on(queue[0])
        self._chooser.changed(self)
        self._send_held(None, done)

    def _check_going(self, changes: int) -> None:
        if self._under_way == 0 and (self._speeds is None or changes > IDLE_CHANGES):
            raise InvalidInput(
                f"the policy '{self._policy.name}' has left all clients without a task and names "
                "nobody for the next"
            )

    def _forget_stopped(self) -> None:
        """Drop the events of stopped tasks that stand first; now and then, all others too."""
        future = self._future
        while future and future[0][2] is not None and future[0][2].event != future[0][1]:
            heapq.heappop(future)
        if len(future) > 2 * self._under_way + ROOM:
            self._future = [entry for entry in future if entry[2] and entry[2].event == entry[1]]
            heapq.heapify(self._future)


class _Speeds:
    """The speed of every client, and its next change, from the windows of `Calendars`."""

    def __init__(self, calendars: Calendars, clients: int) -> None:
        self._calendars = calendars
        self._changes: deque[tuple[float, int, float]] = deque()
        self._end = 0.0
        self.speed = [0.0] * clients
        self._load()
        while self._changes and self._changes[0][0] <= 0.0:
            _, client, speed = self._changes.popleft()
            self.speed[client] = speed
        self._find()

    def present(self) -> list[int]:
        """Who is there."""
        return [client for client, speed in enumerate(self.speed) if speed > 0.0]

    def change(self) -> tuple[float, int, float, float]:
        """The next change is made: its time, the client, and its speed before and after."""
        time, client, speed = self._changes.popleft()
        before, self.speed[client] = self.speed[client], speed
        self._find()
        return time, client, before, speed

    def _find(self) -> None:
        """Find the next change; most windows end without one for most clients."""
        while True:
            while self._changes and self._changes[0][2] == self.speed[self._changes[0][1]]:
                self._changes.popleft()
            if self._changes or self._end == np.inf:
                break
            self._load()
        self.next_change = self._changes[0][0] if self._changes else np.inf

    def _load(self) -> None:
        """Take the changes of the next window."""
        window = self._calendars.following()
        self._end = float(window.end[0])
        client = np.repeat(np.arange(len(self.speed)), np.diff(window.first))
        # Of a client's steps at one instant the last one counts.
        order = np.argsort(window.begin, kind="stable")
        columns = (window.begin, client, window.speed)
        self._changes = deque(zip(*(column[order].tolist() for column in columns), strict=True))

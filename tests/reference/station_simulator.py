"""A slow twin of the simulation kernel with links and server: a list of things to come, in order."""

import heapq
import itertools
from bisect import bisect_right
from collections import deque
from functools import partial

import numpy as np

from sojourn.dispatch import intervals
from sojourn.fleet import Network
from sojourn.fleet.laws import ServiceLaw
from sojourn.simulation.calendars import Calendars
from sojourn.simulation.streams import BLOCK, generators, substreams
from tests.reference.simulator import Completion, _numbers, _targets


def simulate_stations(
    network: Network,
    *,
    rounds: int,
    law: ServiceLaw,
    link_law: ServiceLaw,
    server_law: ServiceLaw,
    policy: str,
    seed: int,
    paired: bool = False,
    calendars: Calendars | None = None,
    loses: bool = False,
) -> tuple[list[Completion], np.ndarray]:
    """The completions from a spread start, and time computing, receiving and sending per client."""
    _, service, dispatch, choosing, down, up, serving = generators(seed, 7)
    fleet, n, m = network.fleet, network.size, network.concurrency
    m = min(n, m) if policy == "never-queue" else m
    means = [1.0 / fleet.service_rates, fleet.downlink, fleet.uplink]
    mean = [fleet.expand(np.zeros(fleet.classes) if x is None else x) for x in means]
    laws = [law, link_law, link_law]
    if paired:
        streams = [
            [_numbers(partial(one.sample, r), 32) for r in substreams(seed, place, n)]
            for one, place in zip(laws, (1, 4, 5), strict=True)
        ]
    else:
        shared = [
            _numbers(partial(one.sample, r), max(BLOCK, m))
            for one, r in zip(laws, (service, down, up), strict=True)
        ]
        streams = [[numbers] * n for numbers in shared]
    at_server = _numbers(partial(server_law.sample, serving), 32 if paired else max(BLOCK, m))
    uniforms = _numbers(choosing.random, max(BLOCK, m))
    targets = _targets(network, policy, dispatch)
    interval = fleet.expand(intervals(fleet, network.concurrency))
    queues: list[deque[int]] = [deque() for _ in range(n)]
    updates: deque[tuple[int, int]] = deque()
    held = [0] * n
    given = [0] * n
    order = list(range(n))
    spent = np.zeros((n, 3))
    future: list[tuple[float, int, str, int, int]] = []
    events = itertools.count()
    done: list[Completion] = []
    working: dict[int, float] = {}

    def worked(client: int, now: float) -> None:
        """Until ``now`` the client has been at a task, as far as it was there."""
        if speeds is not None:
            spent[client, 0] += speeds.there(client, working.pop(client), now)

    speeds = None if calendars is None else _Speeds(calendars, n)

    def later(now: float, column: int, what: str, client: int, sent: int) -> None:
        takes = next(streams[column][client]) * mean[column][client]
        if speeds is not None and column == 0:
            finish, lost = speeds.finish(client, now, takes, loses=loses)
            working[client] = now
            heapq.heappush(future, (finish, next(events), "lost" if lost else what, client, sent))
            return
        spent[client, column] += takes
        heapq.heappush(future, (now + takes, next(events), what, client, sent))

    def send(client: int, now: float) -> None:
        held[client] += 1
        given[client] += 1
        if mean[1][client] > 0:
            later(now, 1, "arrives", client, len(done))
        else:
            arrive(client, len(done), now)

    def arrive(client: int, sent: int, now: float) -> None:
        queues[client].append(sent)
        if len(queues[client]) == 1:
            later(now, 0, "served", client, sent)

    def serve_update(now: float) -> None:
        client, sent = updates[0]
        takes = next(at_server) / network.server_rate
        heapq.heappush(future, (now + takes, next(events), "applied", client, sent))

    def come_back(client: int, sent: int, now: float) -> None:
        if network.server_rate is None:
            complete(client, sent, now)
            return
        updates.append((client, sent))
        if len(updates) == 1:
            serve_update(now)

    def complete(client: int, sent: int, now: float) -> None:
        done.append(Completion(client, sent, now))
        held[client] -= 1
        if policy != "synchronous":
            send_next(client, now)
        elif not any(held):
            send_cohort(now)

    def send_next(client: int, now: float) -> None:
        if policy in ("routed", "shuffled"):
            send(next(targets), now)
        elif policy == "never-queue":
            free = [i for i in range(n) if not held[i]]
            back = {i: now if speeds is None else speeds.back(i, now) for i in free}
            send(min(free, key=lambda i: (back[i], (given[i] + 0.5) * interval[i], i)), now)
        else:
            send(client, now)

    def send_cohort(now: float) -> None:
        for j in range(m):
            chosen = j + int(next(uniforms) * (n - j))
            order[j], order[chosen] = order[chosen], order[j]
            send(order[j], now)

    if policy == "synchronous":
        send_cohort(0.0)
    else:
        first = [next(targets) for _ in range(m)] if policy == "shuffled" else range(m)
        for client in first:
            send(client % n, 0.0)
    while len(done) < rounds:
        now, _, what, client, sent = heapq.heappop(future)
        if what == "arrives":
            arrive(client, sent, now)
        elif what == "served":
            queues[client].popleft()
            worked(client, now)
            if queues[client]:
                later(now, 0, "served", client, queues[client][0])
            if mean[2][client] > 0:
                later(now, 2, "back", client, sent)
            else:
                come_back(client, sent, now)
        elif what == "lost":
            worked(client, now)
            tasks = len(queues[client])
            queues[client].clear()
            for _ in range(tasks):
                held[client] -= 1
                given[client] -= 1
                send_next(client, now)
        elif what == "back":
            come_back(client, sent, now)
        else:
            updates.popleft()
            if updates:
                serve_update(now)
            complete(client, sent, now)
    columns = {"served": 0, "arrives": 1, "back": 2}
    for client in list(working):
        worked(client, done[-1].time)
    for finish, _, what, client, _ in future:
        if what in columns and not (what == "served" and speeds is not None):
            spent[client, columns[what]] -= finish - done[-1].time
    return done, spent


class _Speeds:
    """Every client's speed as a list of steps, as long as is asked for."""

    def __init__(self, calendars: Calendars, clients: int) -> None:
        self._calendars, self._ends = calendars, [0.0]
        self._steps: list[list[tuple[float, float]]] = [[] for _ in range(clients)]

    def _step(self, client: int, place: int) -> tuple[float, float]:
        while len(self._steps[client]) <= place:
            if self._ends[-1] == np.inf:
                return np.inf, 1.0
            self._load()
        return self._steps[client][place]

    def _load(self) -> None:
        window = self._calendars.following()
        self._ends.append(float(window.end[0]))
        for i, steps in enumerate(self._steps):
            part = slice(window.first[i], window.first[i + 1])
            steps += zip(window.begin[part].tolist(), window.speed[part].tolist(), strict=True)

    def back(self, client: int, now: float) -> float:
        """When the client is next there; at the latest the end of the window that ``now`` is in."""
        while self._ends[-1] <= now:
            self._load()
        end = next(end for end in self._ends if end > now)
        for begin, _, speed in self._pieces(client, now):
            if speed > 0.0 or begin >= end:
                return min(begin, end)
        raise AssertionError

    def _pieces(self, client: int, begin: float):
        """(begin, end, speed) from ``begin`` on."""
        place = max(bisect_right(self._steps[client], (begin, np.inf)) - 1, 0)
        while self._step(client, place + 1)[0] <= begin:
            place += 1
        while True:
            (a, speed), (b, _) = self._step(client, place), self._step(client, place + 1)
            yield max(a, begin), b, speed
            place += 1

    def finish(self, client: int, begin: float, work: float, *, loses: bool) -> tuple[float, bool]:
        """When ``work`` is done; or, with ``loses``, when the client goes away from it."""
        present = False
        for a, b, speed in self._pieces(client, begin):
            if speed == 0.0 and present and loses:
                return a, True
            present = speed > 0.0
            if present and a + work / speed <= b:
                return a + work / speed, False
            work -= (b - a) * speed
        raise AssertionError

    def there(self, client: int, begin: float, end: float) -> float:
        total = 0.0
        for a, b, speed in self._pieces(client, begin):
            if a >= end:
                return total
            total += (min(b, end) - a) * (speed > 0.0)
        raise AssertionError

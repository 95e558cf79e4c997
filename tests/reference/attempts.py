"""A slow, independent event loop: one task per client at most, local work, links, patience, absences.

It shares nothing with the simulator but the due times of never-queue: its random numbers are its own,
so that it can be compared with it in distribution only.
"""

import bisect
import heapq
import math

import numpy as np

from sojourn.fleet import Fleet
from sojourn.fleet.laws import ServiceLaw


class Presence:
    """When a client is there: stretches of exponential length, in turns with absences, from a random one on."""

    def __init__(self, random: np.random.Generator, up: float, down: float) -> None:
        self._random, self._means = random, (up, down)
        self._ends = [0.0]
        # The parity of the stretches in which it is there.
        self._here = 0 if random.random() < up / (up + down) else 1

    def _stretch(self, now: float) -> int:
        while self._ends[-1] <= now:
            place = len(self._ends) - 1
            mean = self._means[(place + self._here) % 2]
            self._ends.append(self._ends[-1] + self._random.exponential(mean))
        return bisect.bisect_right(self._ends, now) - 1

    def returns(self, now: float) -> float:
        """When it is next there: now, if it is."""
        place = self._stretch(now)
        return now if (place + self._here) % 2 == 0 else self._ends[place + 1]

    def finishes(self, now: float, takes: float) -> float:
        """When a computation of ``takes`` is finished that waits while it is away."""
        while True:
            now = self.returns(now)
            end = self._ends[self._stretch(now) + 1]
            if now + takes <= end:
                return now + takes
            now, takes = end, takes - (end - now)


class Always:
    """A client that is always there."""

    def returns(self, now: float) -> float:
        return now

    def finishes(self, now: float, takes: float) -> float:
        return now + takes


def completion_rates(
    fleet: Fleet,
    tasks: int,
    *,
    law: ServiceLaw,
    interval: np.ndarray,
    rounds: int,
    warm_up: int,
    seed: int,
    work: np.ndarray | float = 1.0,
    patience: float = math.inf,
) -> np.ndarray:
    """Tasks that every client completes per time unit after ``warm_up`` rounds, under never-queue, shape ``(n,)``."""
    random, n = np.random.default_rng(seed), fleet.size
    mean = work / fleet.expand(fleet.service_rates)
    zero = np.zeros(fleet.classes)
    down, up = (fleet.expand(zero if x is None else x) for x in (fleet.downlink, fleet.uplink))
    clients: list[Presence | Always] = [Always() for _ in range(n)]
    if fleet.mean_up is not None and fleet.mean_down is not None:
        means = zip(fleet.expand(fleet.mean_up), fleet.expand(fleet.mean_down), strict=True)
        clients = [Presence(random, here, away) for here, away in means]

    def answers(client: int, now: float) -> float:
        """When the update of a task that is sent now is back, all attempts included."""
        while True:
            takes = float(law.sample(random, 1)[0])
            now += random.exponential(down[client]) if down[client] else 0.0
            now = clients[client].finishes(now, min(takes, patience) * mean[client])
            if takes <= patience:
                return now + (random.exponential(up[client]) if up[client] else 0.0)

    sent, done = np.zeros(n), np.zeros(n)
    future: list[tuple[float, int]] = []
    idle = set(range(n))

    def send(now: float) -> None:
        """To the idle client that is there, or there first; of several the one furthest behind."""
        due = (sent + 0.5) * interval
        client = min(idle, key=lambda i: (clients[i].returns(now), due[i], i))
        idle.discard(client)
        sent[client] += 1
        heapq.heappush(future, (answers(client, now), client))

    for _ in range(min(tasks, n)):
        send(0.0)
    now = begun = 0.0
    for number in range(rounds):
        if number == warm_up:
            begun = now
            done[:] = 0.0
        now, client = heapq.heappop(future)
        done[client] += 1
        idle.add(client)
        send(now)
    return done / (now - begun)

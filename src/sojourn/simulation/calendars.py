"""When clients are there and how fast they work: random absences, given hours, drifting speeds.

All three make a client's speed a step function of time, the product of the three. The kernel is given
these steps for a window of time and asks for the next window when it comes to its end, so a run is as
long as one likes, and what happens to a client does not depend on the policy.
"""

import math
from typing import NamedTuple

import numpy as np

from sojourn._support.compiling import njit
from sojourn.errors import InvalidInput
from sojourn.fleet import Network
from sojourn.fleet.calendars import Drift, Hours
from sojourn.simulation.streams import Seed, generators
from sojourn.types import FloatArray, IntArray

ABSENCES = 7
"""The place of absences among the generators of a run."""
STEPS_AT_LEAST = 8192
"""About as many steps of speed a window has, or some for every client."""


class Calendar(NamedTuple):
    """Speeds within a window: client i's are ``speed[first[i]:first[i + 1]]``, each from ``begin`` on.

    ``at[i]`` is the step that client i is in, ``end[0]`` the end of the window; ``loses[0]`` says
    whether tasks of a client that goes away are lost, ``leaves[0]`` whether anybody ever does. The
    kernels take ``None`` for clients that are always there, and are then compiled without it.
    """

    first: IntArray
    begin: FloatArray
    speed: FloatArray
    at: IntArray
    end: FloatArray
    loses: IntArray
    leaves: IntArray


_Steps = tuple[IntArray, FloatArray, IntArray, FloatArray]
"""Clients, times, which of the factors (absences, hours, drift; -1: none), and its new value."""


class Calendars:
    """The windows of a run, one after another."""

    def __init__(
        self, network: Network, hours: Hours | None, drift: Drift | None, *, loses: bool, seed: Seed
    ) -> None:
        self._n = network.size
        self._loses = np.array([int(loses)])
        self._level = np.ones((3, self._n))
        self._now = 0.0
        self._hours = None if hours is None else _Weekly(hours, self._n)
        self._drift = None if drift is None else _drifting(network, drift)
        self._random = generators(seed, ABSENCES + 1)[ABSENCES]
        fleet, self._away = network.fleet, network.fleet.is_intermittent
        lengths = [math.inf]
        if self._away and fleet.mean_up is not None and fleet.mean_down is not None:
            self._means = np.stack([fleet.expand(fleet.mean_down), fleet.expand(fleet.mean_up)])
            goes = self._means[0] > 0.0
            up = np.where(self._random.random(self._n) < fleet.expand(fleet.availability), 1, 0)
            up[~goes] = 1
            self._up = up
            lasting = self._means[up, np.arange(self._n)]
            lasting *= self._random.standard_exponential(self._n)
            self._next = np.where(goes, lasting, np.inf)
            self._level[0] = up
            lengths.append(self._room() / float((2.0 / self._means.sum(axis=0)[goes]).sum()))
        if self._hours is not None:
            lengths.append(self._room() / self._hours.steps_per_time)
        self._length = min(lengths)
        self._leaves = np.array([int(self._away or self._hours is not None)])

    def _room(self) -> float:
        return float(max(STEPS_AT_LEAST, 4 * self._n))

    def following(self) -> Calendar:
        """The next window."""
        begin, self._now = self._now, self._now + self._length
        parts = [
            (np.arange(self._n), np.full(self._n, begin), np.full(self._n, -1), np.ones(self._n))
        ]
        if self._away:
            parts += self._absences(self._now)
        if self._hours is not None:
            parts.append(self._hours.between(begin, self._now))
        if self._drift is not None:
            client, time, factor = self._drift
            within = (time >= begin) & (time < self._now)
            parts.append((client[within], time[within], np.full(within.sum(), 2), factor[within]))
        client, time, kind, value = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((kind, time, client))
        speed = _product(client[order], kind[order], value[order], self._level)
        first = np.searchsorted(client[order], np.arange(self._n + 1))
        return Calendar(
            first,
            time[order],
            speed,
            first[:-1].copy(),
            np.array([self._now]),
            self._loses,
            self._leaves,
        )

    def _absences(self, end: float) -> list[_Steps]:
        """Comings and goings before ``end``, client by client."""
        found, at = [], 0
        while at < self._n:
            numbers = self._random.standard_exponential(STEPS_AT_LEAST)
            client, time = np.empty(numbers.size, dtype=np.int64), np.empty(numbers.size)
            value = np.empty(numbers.size)
            state = self._up, self._next, self._means
            at, size = _come_and_go(at, end, *state, numbers, client, time, value)
            kind = np.zeros(size, dtype=np.int64)
            found.append((client[:size], time[:size], kind, value[:size]))
        return found


class _Weekly:
    """The steps of `Hours`, client by client, in any window."""

    def __init__(self, hours: Hours, clients: int) -> None:
        self._period = hours.period
        steps: list[list[tuple[float, float]]] = []
        for intervals in hours.devices:
            begins_there = intervals[0][0] == 0.0
            row = [] if begins_there else [(0.0, 0.0)]
            for a, b in intervals:
                row.append((a, 1.0))
                if b < hours.period:
                    row.append((b, 0.0))
            steps.append(row)
        device = np.arange(clients) % len(steps)
        sizes = np.array([len(row) for row in steps])
        self._client = np.repeat(np.arange(clients), sizes[device])
        chosen = [np.array(steps[j]) for j in range(min(clients, len(steps)))]
        both = np.concatenate([chosen[j] for j in device.tolist()])
        self._time, self._value = both[:, 0], both[:, 1]
        self.steps_per_time = self._client.size / hours.period

    def between(self, begin: float, end: float) -> _Steps:
        repeats = np.arange(math.floor(begin / self._period), math.ceil(end / self._period) + 1)
        time = (repeats[:, None] * self._period + self._time).ravel()
        within = (time >= begin) & (time < end)
        client, value = (np.tile(x, repeats.size)[within] for x in (self._client, self._value))
        return client, time[within], np.ones(client.size, dtype=np.int64), value


def _drifting(network: Network, drift: Drift) -> tuple[IntArray, FloatArray, FloatArray]:
    """Client, time and factor of every change."""
    if len(drift.steps) not in (1, network.whole_classes):
        raise InvalidInput(
            f"drift must have one list of (time, factor) for all clients or one for every class of "
            f"the fleet, which has {network.whole_classes}; it has {len(drift.steps)}"
        )
    parent = np.repeat(network.parents, network.fleet.counts)
    whose = parent if len(drift.steps) > 1 else 0 * parent
    sizes = np.array([len(pairs) for pairs in drift.steps])
    client = np.repeat(np.arange(network.size), sizes[whose])
    rows = [np.array(pairs, dtype=np.float64).reshape(-1, 2) for pairs in drift.steps]
    both = np.concatenate([rows[k] for k in whose.tolist()])
    return client, both[:, 0], both[:, 1]


@njit(cache=True, nogil=True)
def _come_and_go(
    at: int,
    end: float,
    up: IntArray,
    following: FloatArray,
    means: FloatArray,
    numbers: FloatArray,
    client: IntArray,
    time: FloatArray,
    value: FloatArray,
) -> tuple[int, int]:
    """Fill in the changes before ``end`` from client ``at`` on; who is next, and how many changes."""
    written = 0
    for i in range(at, up.size):
        while following[i] < end:
            if written == numbers.size:
                return i, written
            up[i] = 1 - up[i]
            client[written], time[written], value[written] = i, following[i], up[i]
            following[i] += means[up[i], i] * numbers[written]
            written += 1
    return up.size, written


@njit(cache=True, nogil=True)
def _product(client: IntArray, kind: IntArray, value: FloatArray, level: FloatArray) -> FloatArray:
    """The speed from every step on; ``level`` holds the three factors of every client meanwhile."""
    speed = np.empty(client.size)
    for j in range(client.size):
        i = client[j]
        if kind[j] >= 0:
            level[kind[j], i] = value[j]
        speed[j] = level[0, i] * level[1, i] * level[2, i]
    return speed

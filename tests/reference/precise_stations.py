"""Networks with links and a server to many digits: values by recursion, gradients by differences.

Nothing is differentiated by formula. In sixty digits a central difference with a step of 1e-20 is
right to some forty of them, so that what it differs from is the error of the gradient alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from mpmath import mp, mpf

import sojourn as sj

DIGITS = 60
STEP = mpf("1e-20")


class Precise(NamedTuple):
    """Every client's tasks at the end of a round, as `sojourn.theory.jackson.occupancy.Occupancy`."""

    throughput: mpf
    relative_delay: list[mpf]


class Clients:
    """A network's clients one by one, in long numbers; ``member`` is the first of each class."""

    def __init__(self, network: sj.Network) -> None:
        fleet = network.fleet
        self.member = [int(fleet.counts[:k].sum()) for k in range(fleet.classes)]
        self.tasks = network.concurrency
        self.server = mpf(0) if network.server_rate is None else 1 / mpf(network.server_rate)
        self.routing = self._spread(fleet, network.routing)
        self.work = [1 / rate for rate in self._spread(fleet, fleet.service_rates)]
        zeros = [0.0] * fleet.classes
        columns = {
            name: self._spread(fleet, fleet.columns.get(name, zeros))
            for name in ("downlink", "uplink", *(f"power_{x}" for x in POWERS))
        }
        self.columns = columns
        self.links = [d + u for d, u in zip(columns["downlink"], columns["uplink"], strict=True)]

    @staticmethod
    def _spread(fleet: sj.Fleet, values: object) -> list[mpf]:
        return [
            mpf(float(value))
            for value, count in zip(values, fleet.counts, strict=True)
            for _ in range(int(count))
        ]


POWERS = ("compute", "uplink", "downlink", "idle")
Value = Callable[[Clients, list[mpf]], mpf]


def steady(clients: Clients, p: list[mpf]) -> Precise:
    """By recursion on the population: no sum in it has terms of two signs."""
    loads = [x * s for x, s in zip(p, clients.work, strict=True)]
    theta = mp.fdot(p, clients.links)
    mean, server, throughput = [mpf(0)] * len(p), mpf(0), mpf(0)
    for tasks in range(1, clients.tasks + 1):
        before, passing, waiting = mean, throughput, server
        times = [load * (1 + q) for load, q in zip(loads, mean, strict=True)]
        at_server = clients.server * (1 + server)
        throughput = tasks / (theta + at_server + mp.fsum(times))
        mean = [throughput * t for t in times]
        server = throughput * at_server
    delay = [
        q + x * (passing * t + waiting)
        for q, x, t in zip(before, p, clients.links, strict=True)
    ]  # fmt: skip
    return Precise(throughput, delay)


def weighted_delay(weights: list[mpf]) -> Value:
    """Relative delays, weighed."""
    return lambda clients, p: mp.fdot(weights, steady(clients, p).relative_delay)


def staleness(clients: Clients, p: list[mpf]) -> mpf:
    """The penalty S_2."""
    return mp.fsum(d / x**2 for d, x in zip(steady(clients, p).relative_delay, p, strict=True))


def log_throughput(clients: Clients, p: list[mpf]) -> mpf:
    return mp.log(steady(clients, p).throughput)


def bound_and_throughput(
    clients: Clients, p: list[mpf], constants: sj.LearningConstants
) -> tuple[mpf, mpf, mpf]:
    """What multiplies the learning rate and its square in the bound, and the throughput."""
    state, n = steady(clients, p), len(p)
    noise = mpf(constants.gradient_noise) ** 2 + 2 * mpf(constants.heterogeneity) ** 2
    b = constants.smoothness * noise / n**2 * mp.fsum(1 / x for x in p)
    stale = mp.fsum(d / x**2 for d, x in zip(state.relative_delay, p, strict=True))
    c = mpf(constants.smoothness) ** 2 * noise * clients.tasks / n**2 * stale
    return b, c, state.throughput


def per_time(constants: sj.LearningConstants, *, learning_rate: float, rounds: int) -> Value:
    """The bound H."""

    def value(clients: Clients, p: list[mpf]) -> mpf:
        b, c, throughput = bound_and_throughput(clients, p, constants)
        eta = mpf(learning_rate)
        progress = constants.initial_gap / (eta * (rounds + 1))
        return (progress + eta * b + eta**2 * c) / throughput

    return value


def time_to_accuracy(constants: sj.LearningConstants, *, squared_gradient_norm: float) -> Value:
    def value(clients: Clients, p: list[mpf]) -> mpf:
        b, c, throughput = bound_and_throughput(clients, p, constants)
        target = mpf(squared_gradient_norm) / 8
        eta = target / (b + mp.sqrt(b * b + 3 * c * target))
        return constants.initial_gap / (eta * (target - eta * b - eta**2 * c)) / throughput

    return value


def energy(server_power: float) -> Value:
    """Energy of a round."""

    def value(clients: Clients, p: list[mpf]) -> mpf:
        throughput, powers = steady(clients, p).throughput, clients.columns
        total = mpf(server_power) * clients.server
        for i, x in enumerate(p):
            busy = throughput * x * clients.work[i]
            total += x * powers["power_compute"][i] * clients.work[i]
            total += powers["power_idle"][i] * (1 - busy) / throughput
            for link in ("downlink", "uplink"):
                total += x * powers[f"power_{link}"][i] * powers[link][i]
        return total

    return value


def gradient(value: Value, network: sj.Network) -> np.ndarray:
    """Derivatives in the probability of one client of each class, all others held fixed."""
    with mp.workdps(DIGITS):
        clients = Clients(network)
        found = []
        for i in clients.member:
            step = STEP * clients.routing[i]
            ends = []
            for sign in (1, -1):
                moved = list(clients.routing)
                moved[i] += sign * step
                ends.append(value(clients, moved))
            found.append(float((ends[0] - ends[1]) / (2 * step)))
    return np.array(found)

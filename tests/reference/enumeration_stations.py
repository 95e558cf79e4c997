"""A closed network with links and a server, by listing its states, in rational arithmetic.

A state says how many tasks each client holds, how many are on its downlink, on its uplink, and at the
server. Queues are of the first-in-first-out kind, links hold any number of tasks at once.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import factorial

import numpy as np

from tests.reference.enumeration import states


@dataclass(frozen=True)
class Listed:
    """Stationary law of the counts (clients, downlinks, uplinks, server) and its constant."""

    constant: Fraction
    law: dict[tuple[int, ...], Fraction]
    clients: int

    def mean(self, function) -> Fraction:
        return sum((q * function(x) for x, q in self.law.items()), Fraction(0))


def listed(network, tasks: int) -> Listed:
    """Weights of all states, up to a constant: loads to the counts, divided by k! on links."""
    n, fleet = network.fleet.classes, network.fleet
    p = [Fraction(x) for x in network.routing]
    zero = np.zeros(n)
    down = [Fraction(x) for x in (zero if fleet.downlink is None else fleet.downlink)]
    up = [Fraction(x) for x in (zero if fleet.uplink is None else fleet.uplink)]
    work = [Fraction(1) / Fraction(x) for x in fleet.service_rates]
    server = Fraction(0) if network.server_rate is None else 1 / Fraction(network.server_rate)
    loads = [
        *(p[i] * work[i] for i in range(n)),
        *(p[i] * down[i] for i in range(n)),
        *(p[i] * up[i] for i in range(n)),
        server,
    ]
    weights = {}
    for state in states(len(loads), tasks):
        weight = Fraction(1)
        for place, (load, number) in enumerate(zip(loads, state, strict=True)):
            weight *= load**number
            if n <= place < 3 * n:
                weight /= factorial(number)
        weights[state] = weight
    z = sum(weights.values(), Fraction(0))
    return Listed(z, {state: weight / z for state, weight in weights.items()}, n)


@dataclass(frozen=True)
class Exact:
    throughput: float
    tasks: list[float]
    downlink: list[float]
    uplink: list[float]
    server: float
    relative_delay: list[float]
    covariance: list[list[float]]


def enumerate_stations(network) -> Exact:
    """Everything with one task fewer, as at the end of a round, and the throughput."""
    n, m = network.fleet.classes, network.concurrency
    before, full = listed(network, m - 1), listed(network, m)
    tasks = [before.mean(lambda x, i=i: x[i]) for i in range(n)]
    down = [before.mean(lambda x, i=i: x[n + i]) for i in range(n)]
    up = [before.mean(lambda x, i=i: x[2 * n + i]) for i in range(n)]
    server = before.mean(lambda x: x[3 * n])
    second = [[before.mean(lambda x, i=i, j=j: x[i] * x[j]) for j in range(n)] for i in range(n)]
    delay = [tasks[i] + down[i] + up[i] + Fraction(network.routing[i]) * server for i in range(n)]
    return Exact(
        throughput=float(before.constant / full.constant),
        tasks=list(map(float, tasks)),
        downlink=list(map(float, down)),
        uplink=list(map(float, up)),
        server=float(server),
        relative_delay=list(map(float, delay)),
        covariance=[
            [float(second[i][j] - tasks[i] * tasks[j]) for j in range(n)] for i in range(n)
        ],
    )

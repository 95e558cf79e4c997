"""Slow twins of the simulation kernels, shaped like the definition: queues, a clock, one event at a time."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sojourn.dispatch import intervals
from sojourn.fleet import Network
from sojourn.fleet.laws import ServiceLaw
from sojourn.simulation.streams import BLOCK, AliasTable, alias_table, generators, substreams
from sojourn.types import FloatArray


class Completion(NamedTuple):
    client: int
    dispatched: int
    time: float


def simulate_events(
    network: Network,
    *,
    rounds: int,
    laws: tuple[ServiceLaw, ...],
    policy: str,
    first: list[int],
    seed: int,
    work: float = 1.0,
    paired: bool = False,
    max_staleness: int = 10,
    enough: int = 2,
    again: bool = False,
) -> list[Completion]:
    """Any law, any policy: a list of completions to come, ordered by (time, start of service).

    ``first`` are the clients of the first tasks (ignored by ``synchronous``, which draws a cohort).
    ``max_staleness`` belongs to ``restart``, ``enough`` (its knob ``first``) and ``again`` to
    ``first-of``.
    """
    _, service, dispatch, choosing = generators(seed, 4)
    n, m = network.size, network.concurrency
    if policy in ("never-queue", "restart", "first-of"):
        m = min(n, m)
    block = max(BLOCK, m)
    means = 1.0 / network.fleet.expand(network.fleet.service_rates)
    law_of = np.repeat(
        network.parents if len(laws) > 1 else 0 * network.parents, network.fleet.counts
    )
    if paired:
        own = substreams(seed, 1, n)
        streams = [_numbers(partial(laws[law_of[i]].sample, own[i]), 32) for i in range(n)]
        units = streams.__getitem__
    elif len(laws) > 1:
        each = substreams(seed, 1, len(laws))
        by_law = [
            _numbers(partial(law.sample, r), block) for law, r in zip(laws, each, strict=True)
        ]
        units = lambda client: by_law[law_of[client]]  # noqa: E731
    else:
        all_units = _numbers(partial(laws[0].sample, service), block)
        units = lambda client: all_units  # noqa: E731
    uniforms = _numbers(choosing.random, block)
    targets = _targets(network, policy, dispatch)
    interval = network.fleet.expand(intervals(network.fleet, network.concurrency))
    given = [0] * n
    queues: list[deque[int]] = [deque() for _ in range(n)]
    future: list[tuple[float, int, int]] = []
    begun = itertools.count()
    idle = [i for i in range(n) if i not in set(first)]
    order = list(range(n))
    done: list[Completion] = []

    def duration(client: int) -> float:
        return next(units(client)) * (work * means[client])

    def serve(client: int, now: float) -> None:
        heapq.heappush(future, (now + duration(client), next(begun), client))

    def send(client: int, now: float) -> None:
        queues[client].append(len(done))
        given[client] += 1
        if len(queues[client]) == 1:
            serve(client, now)

    def stop(client: int) -> None:
        queues[client].clear()
        future[:] = [entry for entry in future if entry[2] != client]
        heapq.heapify(future)

    def send_furthest_behind(now: float) -> None:
        send(_furthest_behind(queues, given, interval), now)

    def send_cohort(now: float) -> None:
        for j in range(m):
            chosen = j + int(next(uniforms) * (n - j))
            order[j], order[chosen] = order[chosen], order[j]
            send(order[j], now)

    if policy == "synchronous":
        send_cohort(0.0)
    else:
        if policy == "shuffled":
            first = [next(targets) for _ in range(m)]
        for client in first:
            send(client, 0.0)
    while len(done) < rounds:
        now, _, client = heapq.heappop(future)
        done.append(Completion(client, queues[client].popleft(), now))
        if queues[client]:
            serve(client, now)
        if policy in ("routed", "shuffled"):
            send(next(targets), now)
        elif policy == "never-queue":
            send_furthest_behind(now)
        elif policy == "restart":
            by_start = sorted(future, key=lambda entry: entry[1])
            old = [i for _, _, i in by_start if len(done) - queues[i][0] >= max_staleness]
            for i in old:
                stop(i)
                given[i] -= 1
                send(i, now)
            send_furthest_behind(now)
        elif policy == "first-of":
            if len(done) % enough == 0:
                for i in range(n):
                    stop(i)
                cohort = range(n) if m == n else choosing.permutation(n)[:m].tolist()
                for i in cohort:
                    send(i, now)
            elif again:
                send(client, now)
        elif policy == "idle":
            idle.append(client)
            chosen = int(next(uniforms) * len(idle))
            idle[chosen], idle[-1] = idle[-1], idle[chosen]
            send(idle.pop(), now)
        elif not future:
            send_cohort(now)
    return done


def simulate_memoryless(
    network: Network, *, rounds: int, policy: str, first: list[int], seed: int
) -> list[Completion]:
    """Exponential service, routed or never-queue: the finisher drawn among the busy clients by rate."""
    _, service, dispatch, picking = generators(seed, 4)
    rates = network.fleet.expand(network.fleet.service_rates)
    exponents = np.frexp(rates)[1]
    groups = sorted(set(exponents.tolist()))
    bounds = [rates[exponents == group].max() for group in groups]
    busy: list[list[int]] = [[] for _ in groups]
    group_of = [groups.index(e) for e in exponents.tolist()]
    picks, gaps = _numbers(picking.random, BLOCK), _numbers(service.standard_exponential, BLOCK)
    targets = _targets(network, "routed", dispatch)
    interval = network.fleet.expand(intervals(network.fleet, network.concurrency))
    given = [0] * network.size
    queues: list[deque[int]] = [deque() for _ in range(network.size)]
    done: list[Completion] = []
    now = 0.0

    def send(client: int) -> None:
        queues[client].append(len(done))
        given[client] += 1
        if len(queues[client]) == 1:
            busy[group_of[client]].append(client)

    for client in first:
        send(client)
    while len(done) < rounds:
        weights = [len(members) * bound for members, bound in zip(busy, bounds, strict=True)]
        edges = np.cumsum(weights)
        drawn = next(picks) * edges[-1]
        now += next(gaps) / edges[-1]
        g = min(int(np.searchsorted(edges, drawn, side="right")), len(groups) - 1)
        scaled = (drawn - (edges[g - 1] if g else 0.0)) / bounds[g]
        place = int(scaled)
        client = busy[g][place]
        if (scaled - place) * bounds[g] >= rates[client]:
            continue
        done.append(Completion(client, queues[client].popleft(), now))
        if not queues[client]:
            busy[g][place] = busy[g][-1]
            busy[g].pop()
        if policy == "never-queue":
            send(_furthest_behind(queues, given, interval))
        else:
            send(next(targets))
    return done


def _furthest_behind(queues: list[deque[int]], given: list[int], interval: FloatArray) -> int:
    waiting = [i for i in range(len(queues)) if not queues[i]]
    return min(waiting, key=lambda i: ((given[i] + 0.5) * interval[i], i))


def _numbers(draw: Callable[[int], Any], block: int) -> Iterator[float]:
    while True:
        yield from draw(block).tolist()


def _targets(network: Network, policy: str, random: np.random.Generator) -> Iterator[int]:
    uniforms = _numbers(random.random, BLOCK)
    if policy == "shuffled":
        order = list(range(network.size))
        while True:
            for j in range(network.size):
                chosen = j + int(next(uniforms) * (network.size - j))
                order[j], order[chosen] = order[chosen], order[j]
                yield order[j]
    table = alias_table(network)
    while True:
        yield _routed(table, next(uniforms))


def _routed(table: AliasTable, uniform: float) -> int:
    scaled = uniform * table.keep.size
    cell = int(scaled)
    rest, edge = scaled - cell, table.keep[cell]
    if rest < edge:
        chosen, part = cell, rest / edge
    else:
        chosen, part = int(table.other[cell]), (rest - edge) / (1.0 - edge)
    return int(table.first[chosen]) + min(
        int(part * table.members[chosen]), int(table.members[chosen]) - 1
    )

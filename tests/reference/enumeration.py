"""The closed network by listing its states, in rational arithmetic."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Enumerated:
    throughput: Fraction
    mean: list[Fraction]
    mean_full: list[Fraction]
    second: list[list[Fraction]]


def states(clients: int, tasks: int) -> Iterator[tuple[int, ...]]:
    """Every way to place ``tasks`` tasks at ``clients`` clients."""
    if clients == 1:
        yield (tasks,)
        return
    for first in range(tasks + 1):
        for rest in states(clients - 1, tasks - first):
            yield (first, *rest)


def distribution(
    loads: list[Fraction], tasks: int
) -> tuple[Fraction, dict[tuple[int, ...], Fraction]]:
    """Equation (4): the normalising constant and the probability of each state."""
    weights = {}
    for state in states(len(loads), tasks):
        weight = Fraction(1)
        for load, number in zip(loads, state, strict=True):
            weight *= load**number
        weights[state] = weight
    z = sum(weights.values(), Fraction(0))
    return z, {state: weight / z for state, weight in weights.items()}


def enumerate_network(rates: list[float], routing: list[float], concurrency: int) -> Enumerated:
    """All stationary quantities by summing over states."""
    loads = [Fraction(p) / Fraction(mu) for p, mu in zip(routing, rates, strict=True)]
    n = len(loads)
    z, law = distribution(loads, concurrency - 1)
    z_full, law_full = distribution(loads, concurrency)
    return Enumerated(
        throughput=z / z_full,
        mean=[sum(q * x[i] for x, q in law.items()) for i in range(n)],
        mean_full=[sum(q * x[i] for x, q in law_full.items()) for i in range(n)],
        second=[[sum(q * x[i] * x[j] for x, q in law.items()) for j in range(n)] for i in range(n)],
    )

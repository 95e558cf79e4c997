"""Where descents begin: closed-form routings, pace-setters split off their class, similar clients grouped."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sojourn._support.checks import check_positive
from sojourn.fleet import ROUTINGS, Fleet, Network, named_routing
from sojourn.types import FloatArray, IntArray

PACE_SETTERS: tuple[int, ...] = (1, 2, 3)
"""How many clients are split off together."""
PACE_SETTER_MASS = (0.25, 0.6)
"""How much probability they get together."""
LARGE_FLEET = 1000
"""From so many clients on, pace-setters may hold far less and still many times an even share."""
LARGE_FLEET_MASS = (0.01, 0.25)
LARGE_FLEET_PACE_SETTERS = (1, 2)
SAME_PROBABILITY = 1e-5
"""Relative difference below which clients of one class are said to have the same probability."""
MOST_PLACES = 6
"""At how many places, evenly spread over the order of speed, pace-setters are tried."""


@dataclass(frozen=True, eq=False)
class Start:
    """A routing to descend from, on a fleet whose classes may be parts of those of ``whole``.

    ``parents`` gives for each class of ``fleet`` the class of ``whole`` it belongs to, parts that
    are split off standing last; ``merged`` puts them beside their class. ``group`` maps classes of
    ``whole`` to the number of their clients that set the pace, around ``place`` in the order of
    speed.
    """

    name: str
    whole: Fleet
    fleet: Fleet
    parents: IntArray
    routing: FloatArray
    group: dict[int, int] = field(default_factory=dict)
    place: int = -1

    @classmethod
    def whole_fleet(cls, name: str, fleet: Fleet, routing: FloatArray) -> "Start":
        """A start at which nobody is split off."""
        return cls(name, fleet, fleet, np.arange(fleet.classes), routing)

    def network(self, like: Network) -> Network:
        """The network to descend from, with the tasks and the server of ``like``."""
        return Network(self.fleet, self.routing, like.concurrency, server_rate=like.server_rate)

    @property
    def number(self) -> int:
        """How many clients set the pace."""
        return sum(self.group.values())

    @property
    def setters(self) -> IntArray:
        """The classes of ``fleet`` that set the pace: a part of their class, or all of it."""
        last = [int(np.flatnonzero(self.parents == k)[-1]) for k in self.group]
        return np.array(last, dtype=np.int64)

    def mass(self, ended: Network) -> float:
        """How much probability the pace-setters hold in a network that a descent ended in."""
        return float(ended.fleet.counts[self.setters] @ ended.routing[self.setters])

    def merged(self, ended: Network) -> Network:
        """A network that a descent ended in, its clients numbered as in ``whole``.

        Parts of a class stand beside each other; those with the same probability are one again.
        """
        p, counts, parents = ended.routing.copy(), ended.fleet.counts.copy(), self.parents
        names = None if ended.fleet.names is None else list(ended.fleet.names)
        firsts = np.unique(parents, return_index=True)[1]
        kept = np.ones(parents.size, dtype=np.bool_)
        for part in np.setdiff1d(np.arange(parents.size), firsts):
            first = firsts[parents[part]]
            if abs(p[part] - p[first]) <= SAME_PROBABILITY * p[first]:
                together = counts[part] + counts[first]
                p[first] = (counts[part] * p[part] + counts[first] * p[first]) / together
                counts[first], kept[part] = together, False
                if names is not None:
                    names[first] = _names(self.whole)[parents[part]]
        order = np.argsort(parents, kind="stable")
        order = order[kept[order]]
        if self.whole.names is None and order.size == self.whole.classes:
            names = None
        fleet = ended.fleet.select(
            order, counts[order], None if names is None else [names[k] for k in order]
        )
        return Network(
            fleet,
            p[order],
            ended.concurrency,
            parents=parents[order],
            server_rate=ended.server_rate,
        )


def closed_form_starts(fleet: Fleet) -> Iterator[Start]:
    """Uniform, balanced and square-root routing of the fleet as it is."""
    for name in ROUTINGS:
        yield Start.whole_fleet(name, fleet, named_routing(fleet, name))


def pace_setter_starts(fleet: Fleet, routing: FloatArray) -> Iterator[Start]:
    """One or a few clients of like speed at high probability, the others as in ``routing``.

    The bounds have minima where a few clients set the pace and hold most of the tasks; which
    clients, and how many, no descent from a symmetric point can find.
    """
    masses, numbers = PACE_SETTER_MASS, PACE_SETTERS
    if fleet.size >= LARGE_FLEET:
        masses, numbers = LARGE_FLEET_MASS, LARGE_FLEET_PACE_SETTERS
    places = np.linspace(0, fleet.classes - 1, MOST_PLACES).round().astype(int)
    for place in np.unique(places):
        for number in numbers:
            for mass in masses:
                yield from pace_setters(fleet, routing, int(place), number, mass)


def neighbouring_pace_setters(
    routing: FloatArray, best: Start, mass: float, step: int, tried: set[tuple[int, int]]
) -> Iterator[Start]:
    """One client more or fewer than the pace-setters of ``best``, and those ``step`` places away.

    ``tried`` holds places and numbers that need no second descent, and gains those that are given.
    """
    fleet = best.whole
    for shift, more in ((0, 1), (0, -1), (-step, 0), (step, 0)):
        place, number = best.place + shift, best.number + more
        if 0 <= place < fleet.classes and number >= 1 and (place, number) not in tried:
            tried.add((place, number))
            yield from pace_setters(fleet, routing, place, number, mass)


def pace_setters(
    fleet: Fleet, routing: FloatArray, place: int, number: int, mass: float
) -> Iterator[Start]:
    """``number`` clients around ``place`` in the order of speed share ``mass``; nothing if all do."""
    if number >= fleet.size:
        return
    group = _nearest_in_speed(fleet, place, number)
    split = [k for k, taken in group.items() if taken < fleet.counts[k]]
    counts, p = fleet.counts.copy(), routing.copy()
    for k, taken in group.items():
        counts[k] -= taken
    p *= (1.0 - mass) / (counts @ p)
    for k in group:
        if counts[k] == 0:
            counts[k], p[k] = group[k], mass / number
    parents = np.concatenate([np.arange(fleet.classes), np.array(split, dtype=np.int64)])
    names = None
    if fleet.names is not None or split:
        own = _names(fleet)
        names = [own[k] for k in parents]
        for part, k in enumerate(split, start=fleet.classes):
            names[part] = f"{fleet.label(k)}, {group[k]} of {fleet.counts[k]}"
            names[k] = f"{fleet.label(k)}, the others"
    yield Start(
        name=f"{number} pace-setter{'s' if number > 1 else ''} at {mass:g}: "
        + " and ".join(fleet.label(k) for k in group),
        whole=fleet,
        fleet=fleet.select(
            parents,
            np.concatenate([counts, np.array([group[k] for k in split], dtype=np.int64)]),
            names,
        ),
        parents=parents,
        routing=np.append(p, [mass / number] * len(split)),
        group=group,
        place=place,
    )


def _names(fleet: Fleet) -> list[str]:
    """The names of the classes as they were given, or what tables call them if none were."""
    if fleet.names is not None:
        return list(fleet.names)
    return [fleet.label(k) for k in range(fleet.classes)]


def _nearest_in_speed(fleet: Fleet, place: int, number: int) -> dict[int, int]:
    """``number`` clients of the class at ``place`` in the order of speed, then of its neighbours."""
    order = np.argsort(fleet.service_rates, kind="stable")
    group: dict[int, int] = {}
    low, high, left = place, place + 1, number
    while left:
        down = low >= 0 and (high >= fleet.classes or place - low <= high - place - 1)
        k = int(order[low] if down else order[high])
        low, high = (low - 1, high) if down else (low, high + 1)
        group[k] = min(left, int(fleet.counts[k]))
        left -= group[k]
    return group


@dataclass(frozen=True, eq=False)
class Grouping:
    """A fleet of groups, and the group of every class of the fleet it was made from.

    Every service rate is within the relative ``tolerance`` of its group's.
    """

    original: Fleet
    fleet: Fleet
    group: IntArray
    tolerance: float

    def to_original(self, values: FloatArray) -> FloatArray:
        """Values of the clients of ``fleet`` as values of the clients of ``original``.

        The members of a group take its clients' values in their order.
        """
        order = np.argsort(np.repeat(self.group, self.original.counts), kind="stable")
        mapped = np.empty(self.original.size)
        mapped[order] = values
        return mapped


def group_clients(fleet: Fleet, *, tolerance: float = 0.01) -> Grouping:
    r"""Clients whose speeds differ by less than ``tolerance``, relatively, as classes.

    Speeds are cut into equal steps of :math:`\log(1 + \text{tolerance})`; a group's rate is the one
    that keeps its clients' total service time, the harmonic mean. Clients with another law, other
    links, powers or weights (cut into the same steps, zero by itself) are in another group; a group
    has the mean of these.

    >>> grouping = group_clients(Fleet([1.0, 1.001, 5.0]), tolerance=0.01)
    >>> grouping.fleet
    Fleet(3 clients in 2 classes, rates 1 to 5)
    """
    width = np.log1p(check_positive("tolerance", tolerance))
    logs = np.log(fleet.service_rates)
    steps = [np.floor((logs - logs.min()) / width)]
    steps += [_steps(values, width) for values in fleet.columns.values()]
    if fleet.law is not None:
        steps.append(np.unique(fleet.law, return_inverse=True)[1].astype(np.float64))
    _, group = np.unique(np.array(steps), axis=1, return_inverse=True)
    counts = np.bincount(group, weights=fleet.counts).round().astype(np.int64)
    rates = counts / np.bincount(group, weights=fleet.counts / fleet.service_rates)
    columns: dict[str, Any] = {
        name: np.bincount(group, weights=fleet.counts * values) / counts
        for name, values in fleet.columns.items()
    }
    _, first = np.unique(group, return_index=True)
    law = None if fleet.law is None else [fleet.law[k] for k in first.tolist()]
    return Grouping(
        fleet, Fleet(rates, counts, law=law, **columns), group.astype(np.int64), tolerance
    )


def _steps(values: FloatArray, width: float) -> FloatArray:
    """Numbers from zero up by step of their logarithm; zeros have one of their own."""
    steps = np.full(values.size, -1.0)
    positive = values > 0.0
    if positive.any():
        logs = np.log(values[positive])
        steps[positive] = np.floor((logs - logs.min()) / width)
    return steps

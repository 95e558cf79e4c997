"""Where descents begin: closed-form routings, and pace-setters split off their class."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sojourn.network import ROUTINGS, Fleet, Network, named_routing
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
    are split off standing last; ``merged`` puts them beside their class. ``group`` maps classes of ``whole`` to the number of their clients that set the pace, around ``place`` in
    the order of speed.
    """

    name: str
    whole: Fleet
    fleet: Fleet
    parents: IntArray
    routing: FloatArray
    group: dict[int, int] = field(default_factory=dict)
    place: int = -1

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
                    names[first] = self.whole.label(int(parents[part]))
        order = np.argsort(parents, kind="stable")
        order = order[kept[order]]
        if self.whole.names is None and order.size == self.whole.classes:
            names = None
        fleet = ended.fleet.select(
            order, counts[order], None if names is None else [names[k] for k in order]
        )
        return Network(fleet, p[order], ended.concurrency, parents=parents[order])


def closed_form_starts(fleet: Fleet) -> Iterator[Start]:
    """Uniform, balanced and square-root routing of the fleet as it is."""
    for name in ROUTINGS:
        yield Start(name, fleet, fleet, np.arange(fleet.classes), named_routing(fleet, name))


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
        names = [fleet.label(int(k)) for k in parents]
        for part, k in enumerate(split, start=fleet.classes):
            names[part] += f", {group[k]} of {fleet.counts[k]}"
            names[k] += ", the others"
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

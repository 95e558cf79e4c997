"""A large fleet in outline: neighbours in speed as one class, to search on before the fleet itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sojourn.network import Fleet, Network
from sojourn.optimize.starts import Start, pace_setters
from sojourn.types import FloatArray, IntArray

MANY_CLASSES = 200
"""From so many classes on, starts are compared on an outline of the fleet."""
OUTLINE_CLASSES = 50
"""Classes of the outline, about."""


@dataclass(frozen=True, eq=False)
class Outline:
    """Runs of classes in the order of speed, each as one class of ``fleet``.

    Run ``j`` holds the places ``edges[j]`` to ``edges[j + 1] - 1`` of the order; the slowest and
    the fastest class are runs of their own, since they are often the best pace-setters.
    """

    whole: Fleet
    fleet: Fleet
    edges: IntArray

    def starts(self, start: Start, ended: Network) -> Iterator[Start]:
        """Where to descend from on the whole fleet, given a descent on the outline from ``start``.

        Probabilities are interpolated between the runs' speeds; pace-setters are taken from the
        middle of their run.
        """
        routing = without_setters(start, ended, self.whole)
        if not start.group:
            every = np.arange(self.whole.classes)
            name = f"{start.name}, by way of {self.fleet.classes} classes"
            yield Start(name, self.whole, self.whole, every, routing)
            return
        middle = int(self.edges[start.place] + self.edges[start.place + 1] - 1) // 2
        yield from pace_setters(self.whole, routing, middle, start.number, start.mass(ended))


def without_setters(start: Start, ended: Network, fleet: Fleet) -> FloatArray:
    """A routing of ``fleet`` like that of all but the pace-setters, by weight and interpolated between speeds."""
    others = np.setdiff1d(np.arange(start.parents.size), start.setters)
    speeds = ended.fleet.service_rates[others]
    p = (ended.routing / ended.fleet.relative_weights)[others]
    order = np.argsort(speeds, kind="stable")
    logs = np.interp(np.log(fleet.service_rates), np.log(speeds[order]), np.log(p[order]))
    weights = np.exp(logs - logs.max()) * fleet.relative_weights
    return np.asarray(weights / (fleet.counts @ weights), dtype=np.float64)


def outline(fleet: Fleet) -> Outline:
    """The fleet as some ``OUTLINE_CLASSES`` runs of equally many classes of like speed.

    A run's rate keeps its clients' total service time: the harmonic mean. Links and powers are means.
    """
    order = np.argsort(fleet.service_rates, kind="stable")
    inner = np.linspace(1, fleet.classes - 1, OUTLINE_CLASSES - 1).round().astype(np.int64)
    edges = np.concatenate([[0], inner, [fleet.classes]])
    counts = np.add.reduceat(fleet.counts[order], edges[:-1])
    times = np.add.reduceat((fleet.counts / fleet.service_rates)[order], edges[:-1])
    columns: dict[str, Any] = {
        name: np.add.reduceat((fleet.counts * values)[order], edges[:-1]) / counts
        for name, values in fleet.columns.items()
    }
    return Outline(fleet, Fleet(counts / times, counts, **columns), edges)

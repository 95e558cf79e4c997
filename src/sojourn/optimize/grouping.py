"""Similar clients as one class, for fleets with many distinct speeds."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sojourn.checks import check_positive
from sojourn.network import Fleet
from sojourn.types import FloatArray, IntArray


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
    that keeps its clients' total service time, the harmonic mean. Clients with another law, other links, powers or
    weights (cut into the same steps, zero by itself) are in another group; a group has the mean of these.

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

"""Similar clients as one class, for fleets with many distinct speeds."""

from dataclasses import dataclass

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
    that keeps its clients' total service time, the harmonic mean.

    >>> grouping = group_clients(Fleet([1.0, 1.001, 5.0]), tolerance=0.01)
    >>> grouping.fleet
    Fleet(3 clients in 2 classes, rates 1 to 5)
    """
    width = np.log1p(check_positive("tolerance", tolerance))
    logs = np.log(fleet.service_rates)
    steps = np.floor((logs - logs.min()) / width).astype(np.int64)
    _, group = np.unique(steps, return_inverse=True)
    counts = np.bincount(group, weights=fleet.counts).round().astype(np.int64)
    rates = counts / np.bincount(group, weights=fleet.counts / fleet.service_rates)
    return Grouping(fleet, Fleet(rates, counts), group.astype(np.int64), tolerance)

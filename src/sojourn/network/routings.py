"""The closed-form routings."""

import numpy as np

from sojourn.errors import UnknownName
from sojourn.network.fleet import Fleet
from sojourn.types import FloatArray


def uniform_routing(fleet: Fleet) -> FloatArray:
    """The same probability for every client: ``1/n``.

    >>> uniform_routing(Fleet([1.0, 4.0])).tolist()
    [0.5, 0.5]
    """
    return np.full(fleet.classes, 1.0 / fleet.size)


def balanced_routing(fleet: Fleet) -> FloatArray:
    r"""Proportional to speed, :math:`p_i = \mu_i/|\mu|`: every client is equally loaded.

    Speed counts the time that a client is away.

    Paper: section 3.2 ("simple routing strategies").

    >>> balanced_routing(Fleet([1.0, 4.0])).tolist()
    [0.2, 0.8]
    """
    return _proportional_to(fleet, fleet.effective_rates)


def square_root_routing(fleet: Fleet) -> FloatArray:
    r"""Proportional to :math:`\sqrt{\mu_i}`, which minimises :math:`S_1/\lambda` at ``m = 1``
    where all clients count the same.

    Not in the paper; a strong baseline when time matters and constants are unknown.

    >>> square_root_routing(Fleet([1.0, 4.0])).round(6).tolist()
    [0.333333, 0.666667]
    """
    return _proportional_to(fleet, np.sqrt(fleet.effective_rates))


ROUTINGS = {
    "uniform": uniform_routing,
    "balanced": balanced_routing,
    "square-root": square_root_routing,
}


def named_routing(fleet: Fleet, name: str) -> FloatArray:
    """The closed-form routing of ``fleet`` called ``name``: uniform, balanced or square-root."""
    if name not in ROUTINGS:
        raise UnknownName("routing", name, ROUTINGS)
    return ROUTINGS[name](fleet)


def _proportional_to(fleet: Fleet, weights: FloatArray) -> FloatArray:
    scaled = weights / weights.max()
    return np.asarray(scaled / (fleet.counts @ scaled), dtype=np.float64)

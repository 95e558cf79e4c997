"""Taking the numbers that several claims have in common from their files."""

from sojourn.bounds import LearningConstants
from sojourn.config import Table
from sojourn.errors import InvalidFile


def take_constants(table: Table) -> LearningConstants:
    """The constants A (per round), L, sigma and M of a claim.

    The paper gives A/T: with ``rounds=0`` in the bounds that is ``initial_gap``.
    """
    return LearningConstants(
        initial_gap=table.take("initial-gap", float),
        smoothness=table.take("smoothness", float),
        gradient_noise=table.take("gradient-noise", float),
        heterogeneity=table.take("heterogeneity", float),
    )


def take_numbers(table: Table, key: str) -> list[float]:
    """A list of numbers under ``key``."""
    values = table.take(key, list)
    if not values or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        raise InvalidFile(f"{table.where}: '{key}' must be a list of numbers; it is {values!r}")
    return [float(value) for value in values]

"""Taking the numbers that several claims have in common from their files."""

from sojourn._support.configuration import Table
from sojourn.errors import InvalidFile


def take_numbers(table: Table, key: str) -> list[float]:
    """A list of numbers under ``key``."""
    values = table.take(key, list)
    if not values or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        raise InvalidFile(f"{table.where}: '{key}' must be a list of numbers; it is {values!r}")
    return [float(value) for value in values]

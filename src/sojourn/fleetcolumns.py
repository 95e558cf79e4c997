"""What a fleet may tell of its clients beside speeds: links, powers, comings and goings, weights."""

import numpy as np
from numpy.typing import ArrayLike

from sojourn.checks import as_floats
from sojourn.errors import InvalidInput
from sojourn.types import FloatArray, IntArray

OPTIONAL_COLUMNS = (
    "downlink",
    "uplink",
    "power_compute",
    "power_uplink",
    "power_downlink",
    "power_idle",
    "mean_up",
    "mean_down",
    "weight",
)
LARGEST_ENTRY = 1e30
"""Times, powers and weights up to which nothing overflows."""
LEAST_WEIGHT = 1e-30
"""A client that counts for nothing is left out."""


def checked_column(name: str, values: ArrayLike | None, classes: int) -> FloatArray | None:
    """A read-only copy of numbers from the least allowed up, one per class, or ``None``.

    >>> checked_column("downlink", [0.5, 0], classes=2)
    array([0.5, 0. ])
    """
    if values is None:
        return None
    column = as_floats(name, values)
    if column.shape != (classes,):
        raise InvalidInput(
            f"{name} must have one entry per class: the fleet has {classes} classes, and "
            f"{name} has shape {column.shape}"
        )
    wrong = outside(name, column)
    if wrong.size:
        i = int(wrong[0])
        raise InvalidInput(f"{limits(name)}; entry {i + 1} is {column[i]:g}")
    column.setflags(write=False)
    return column


def check_availability(mean_up: FloatArray | None, mean_down: FloatArray | None) -> None:
    """Raise unless both are given or neither, and whoever goes down comes up for some time."""
    if mean_down is None and mean_up is None:
        return
    if mean_down is None or mean_up is None:
        missing = "mean_down" if mean_down is None else "mean_up"
        raise InvalidInput(f"mean_up and mean_down go together; {missing} is missing")
    never = np.flatnonzero((mean_up == 0.0) & (mean_down > 0.0))
    if never.size:
        raise InvalidInput(
            f"mean_up must be above 0 for clients that go down; entry {int(never[0]) + 1} is 0. "
            "Leave out clients that are never there."
        )


def outside(name: str, values: FloatArray) -> IntArray:
    """Where a column is below the least that it may be, too large or not numbers."""
    return np.flatnonzero(~((values >= _least(name)) & (values <= LARGEST_ENTRY)))


def limits(name: str) -> str:
    """What is asked of a column, in words.

    >>> limits("weight")
    'weight must lie between 1e-30 and 1e+30'
    """
    return f"{name} must lie between {_least(name):g} and {LARGEST_ENTRY:g}"


def _least(name: str) -> float:
    return LEAST_WEIGHT if name == "weight" else 0.0

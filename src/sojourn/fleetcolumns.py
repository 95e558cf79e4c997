"""What a fleet may tell of its clients beside their speeds: times on links, powers, comings and goings."""

import numpy as np
from numpy.typing import ArrayLike

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
)
LARGEST_ENTRY = 1e30
"""Times and powers up to which nothing overflows."""


def checked_column(name: str, values: ArrayLike | None, classes: int) -> FloatArray | None:
    """A read-only copy of numbers from zero up, one per class, or ``None``.

    >>> checked_column("downlink", [0.5, 0], classes=2)
    array([0.5, 0. ])
    """
    if values is None:
        return None
    try:
        column = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be numbers; {values!r} is not") from error
    if column.shape != (classes,):
        raise InvalidInput(
            f"{name} must have one entry per class: the fleet has {classes} classes, and "
            f"{name} has shape {column.shape}"
        )
    wrong = outside(column)
    if wrong.size:
        i = int(wrong[0])
        raise InvalidInput(
            f"{name} must lie between 0 and {LARGEST_ENTRY:g}; entry {i + 1} is {column[i]:g}"
        )
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


def outside(values: FloatArray) -> IntArray:
    """Where times or powers are negative, too large or not numbers."""
    return np.flatnonzero(~((values >= 0) & (values <= LARGEST_ENTRY)))

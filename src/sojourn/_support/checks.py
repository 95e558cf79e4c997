"""Numbers that people give, checked in one place."""

import math
import numbers
import reprlib
import sys
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sojourn.errors import InvalidInput
from sojourn.types import FloatArray

SMALLEST, LARGEST = 1e-30, 1e30
"""Sizes of what users give, between which the bounds neither overflow nor vanish."""


def check_whole(name: str, value: Any, *, least: int = 1) -> int:
    """``value`` as an int of at least ``least``, or ``InvalidInput``.

    >>> check_whole("buffer_size", 3)
    3
    """
    if type(value) is int and value >= least:
        return value
    good = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not good or int(value) < least:
        raise InvalidInput(
            f"{name} must be a whole number of at least {least}; it is {in_short(value)}"
        )
    return int(value)


def as_floats(name: str, values: ArrayLike) -> FloatArray:
    """``values`` as a new array of floats, of whatever shape, or ``InvalidInput``.

    >>> as_floats("rates", [1, 2.5])
    array([1. , 2.5])
    """
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError as error:
        raise InvalidInput(f"{name} must be finite; one has hundreds of digits") from error
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be numbers; {in_short(values)} is not") from error


def in_short(given: Any) -> str:
    """Some of it: lists may be long, and whole numbers of thousands of digits cannot be written at all."""
    try:
        return reprlib.repr(given)
    except ValueError:
        return "a number of thousands of digits"


def check_seed(seed: Any) -> int:
    """``seed`` as an int of at least 0, or ``InvalidInput``."""
    return check_whole("seed", seed, least=0)


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float = math.inf,
) -> float:
    """``value`` as a finite float, above or at least a bound and at most ``most``.

    >>> check_number("debias", 0.5, least=0.0, most=1.0)
    0.5
    """
    good = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        number = float(value) if good else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidInput(f"{name} must be a finite number; it is {in_short(value)}")
    low = above is not None and not number > above
    low = low or (least is not None and not number >= least)
    if low or number > most:
        bounds = [f"above {above:g}"] if above is not None else []
        bounds += [f"at least {least:g}"] if least is not None else []
        bounds += [f"at most {most:g}"] if most < math.inf else []
        raise InvalidInput(f"{name} must be {' and '.join(bounds)}; it is {number:g}")
    return number


def check_per_client(name: str, given: object, clients: int) -> None:
    """Raise unless ``given`` is one number for all clients, or one for each of them."""
    if isinstance(given, tuple) and len(given) != clients:
        raise InvalidInput(
            f"{name} must be one number, or one for each of the {clients} clients; there are {len(given)}"
        )


def check_positive(name: str, value: float) -> float:
    """``value`` as a positive finite float, or ``InvalidInput``."""
    if type(value) is float and 0.0 < value < math.inf:
        return value
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise InvalidInput(f"{name} must be positive and finite; it is {in_short(value)}")
    return number


def check_scale(name: str, value: float) -> float:
    """``value`` as a positive float of a size at which no bound overflows, or ``InvalidInput``."""
    number = check_positive(name, value)
    if not SMALLEST <= number <= LARGEST:
        raise InvalidInput(
            f"{name} must lie between {SMALLEST:g} and {LARGEST:g}; it is {value!r}. Choose other units."
        )
    return number


def check_rounds(rounds: float) -> None:
    """Raise unless ``rounds`` is a number of rounds that nothing overflows at."""
    if not 0 <= rounds <= sys.float_info.max:
        raise InvalidInput(f"rounds must be zero or positive, and finite; it is {in_short(rounds)}")

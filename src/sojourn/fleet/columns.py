"""The columns of a fleet: each is declared once, with its limits, as a field of `Fleet`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Generic, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sojourn._support.checks import as_floats
from sojourn.errors import InvalidInput
from sojourn.types import FloatArray, IntArray

if TYPE_CHECKING:
    from sojourn.fleet.fleet import Fleet

Given = TypeVar("Given")
Held = TypeVar("Held")
SLOWEST, FASTEST = 1e-30, 1e30
"""Service rates between which nothing overflows."""
MOST_CLIENTS = 2**53
"""Up to here numbers of clients are exact in floating point."""
LARGEST_ENTRY = 1e30
"""Times, powers and weights up to which nothing overflows."""
SIMILAR = 0.84
"""Similarity (`difflib`) from which a column of the user's is taken for a misspelt one of ours."""


class WrongEntry(InvalidInput):
    """An entry of a column breaks its ``rule``; a reader of files names the line instead."""

    def __init__(self, column: str, rule: str, entry: int, value: float, advice: str = "") -> None:
        self.given = column, rule, entry, value, advice
        self.column, self.rule, self.entry, self.value = column, rule, entry, value
        end = f". {advice}" if advice else ""
        super().__init__(f"{column} {rule}; entry {entry + 1} is {value:g}{end}")

    def __reduce__(self) -> tuple[type["WrongEntry"], tuple[str, str, int, float, str]]:
        """Errors come back from other processes, pickled."""
        return WrongEntry, self.given


def check_entries(
    column: str, values: FloatArray, good: NDArray[np.bool_], rule: str, advice: str = ""
) -> None:
    """Raise `WrongEntry` for the first of ``values`` that is not ``good``."""
    if not good.all():
        entry = int(np.argmin(good))
        raise WrongEntry(column, rule, entry, float(values[entry]), advice)


class Column(ABC, Generic[Given, Held]):
    """A field of `Fleet`: what is given is checked and copied once, then read-only.

    A fleet reads its fields in order, so that ``fleet.classes`` is known after the service rates.
    What it holds is an attribute like any other: planners read a dozen of them for each of
    thousands of networks.
    """

    required = False

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, fleet: None, owner: type) -> None: ...
    @overload
    def __get__(self, fleet: "Fleet", owner: type) -> Held: ...
    def __get__(self, fleet: "Fleet | None", owner: type) -> Held | None:
        if self.required:  # a field without a default
            raise AttributeError(self.name)
        return None

    if TYPE_CHECKING:  # what the field takes

        def __set__(self, fleet: "Fleet", given: Given) -> None: ...

    def read(self, fleet: "Fleet") -> None:
        """Replace what was given by what is held."""
        vars(fleet)[self.name] = self.checked(fleet, vars(fleet)[self.name])

    @abstractmethod
    def checked(self, fleet: "Fleet", given: Given) -> Held:
        """What is held of what is given, or ``InvalidInput``."""


class ServiceRates(Column[ArrayLike, FloatArray]):
    """The speeds of the classes, from ``SLOWEST`` to ``FASTEST``."""

    required = True

    def checked(self, fleet: "Fleet", given: ArrayLike) -> FloatArray:
        rates = positive_vector(self.name, given)
        if rates.min() < SLOWEST or rates.max() > FASTEST:
            raise InvalidInput(
                f"service_rates must lie between {SLOWEST:g} and {FASTEST:g}; they go from "
                f"{rates.min():g} to {rates.max():g}. Choose another time unit, or leave out "
                "clients that never finish."
            )
        rates.setflags(write=False)
        return rates


class Counts(Column[ArrayLike | None, IntArray]):
    """The numbers of clients of the classes, by default one each."""

    def checked(self, fleet: "Fleet", given: ArrayLike | None) -> IntArray:
        classes = fleet.service_rates.size
        numbers = as_floats(self.name, np.ones(classes) if given is None else given)
        if numbers.ndim != 1:
            raise InvalidInput("counts must be a list of whole numbers, one per class")
        good = np.isfinite(numbers) & (numbers >= 1) & (numbers % 1 == 0)
        check_entries(self.name, numbers, good, "must be whole numbers of at least 1")
        if numbers.sum() > MOST_CLIENTS:
            raise InvalidInput(
                f"a fleet has at most {MOST_CLIENTS} clients; the counts sum to {numbers.sum():g}"
            )
        if numbers.size != classes:
            raise InvalidInput(
                f"counts must have one entry per class: {classes} service rates were given, and "
                f"{numbers.size} counts"
            )
        counts = numbers.astype(np.int64)
        counts.setflags(write=False)
        return counts


class Numbers(Column[ArrayLike | None, FloatArray | None]):
    """An optional number per class, from ``least`` to ``LARGEST_ENTRY``."""

    def __init__(self, least: float = 0.0) -> None:
        self.least = least

    def checked(self, fleet: "Fleet", given: ArrayLike | None) -> FloatArray | None:
        if given is None:
            return None
        values = as_floats(self.name, given)
        if values.shape != (fleet.classes,):
            raise InvalidInput(
                f"{self.name} must have one entry per class: the fleet has {fleet.classes} "
                f"classes, and {self.name} has shape {values.shape}"
            )
        good = (values >= self.least) & (values <= LARGEST_ENTRY)
        rule = f"must lie between {self.least:g} and {LARGEST_ENTRY:g}"
        check_entries(self.name, values, good, rule)
        values.setflags(write=False)
        return values


class Text(Column[Sequence[str] | None, tuple[str, ...] | None]):
    """An optional text per class."""

    def checked(self, fleet: "Fleet", given: Sequence[str] | None) -> tuple[str, ...] | None:
        return None if given is None else _one_per_class(self.name, given, fleet)


class Extra(Column[Mapping[str, Sequence[str]] | None, Mapping[str, tuple[str, ...]]]):
    """Columns of the user's own."""

    def checked(
        self, fleet: "Fleet", given: Mapping[str, Sequence[str]] | None
    ) -> Mapping[str, tuple[str, ...]]:
        columns = (given or {}).items()
        return {name: _one_per_class(name, entries, fleet) for name, entries in columns}


def _one_per_class(name: str, entries: Sequence[str], fleet: "Fleet") -> tuple[str, ...]:
    if len(entries) != fleet.classes:
        raise InvalidInput(
            f"{name} must have one entry per class: {fleet.classes} service rates were given, and "
            f"{len(entries)} entries of {name}"
        )
    return tuple(map(str, entries))


def positive_vector(name: str, values: ArrayLike, advice: str = "") -> FloatArray:
    """``values`` as a vector of positive, finite numbers, one per class."""
    vector = as_floats(name, values)
    if vector.ndim != 1 or vector.size == 0:
        raise InvalidInput(f"{name} must be a non-empty list of numbers, one per class")
    good = np.isfinite(vector) & (vector > 0)
    check_entries(name, vector, good, "must be positive and finite", advice)
    return vector


def is_misspelt(column: str, header: Sequence[str], known: Sequence[str]) -> bool:
    """Whether a column that means nothing here was meant to be a ``known`` one that is missing.

    It is spelt much like it, has two of its letters exchanged or one behind the first replaced, or
    has it for a part, such as ``downlink_s``. A name may be that of anything.

    >>> known = ["service_rate", "count", "weight"]
    >>> is_misspelt("counts", ["counts"], known), is_misspelt("Service Rate", ["Service Rate"], known)
    (True, True)
    >>> is_misspelt("country", ["country"], known), is_misspelt("lat", ["lat"], known)
    (False, False)
    >>> is_misspelt("cuont", ["cuont"], known), is_misspelt("height", ["height"], known)
    (True, False)
    >>> is_misspelt("uplink_rate", ["uplink_rate"], ["uplink", "name"])
    True
    >>> is_misspelt("site_name", ["site_name"], ["uplink", "name"])
    False
    """
    plain = "_".join(column.lower().replace("-", " ").split())
    missing = [name for name in known if name not in header]
    if any(
        SequenceMatcher(None, plain, name).ratio() >= SIMILAR or _has_slip(plain, name)
        for name in missing
    ):
        return True
    return any(f"_{name}_" in f"_{plain}_" for name in missing if name != "name")


def _has_slip(given: str, name: str) -> bool:
    """Whether a word of five letters or more has two letters exchanged, or one behind the first replaced."""
    if len(given) != len(name) or len(name) < 5 or given[0] != name[0]:
        return False
    differing = [k for k, (a, b) in enumerate(zip(given, name, strict=True)) if a != b]
    return len(differing) == 1 or (
        len(differing) == 2 and sorted(given) == sorted(name) and differing[1] - differing[0] == 1
    )

"""Who the clients are, and how fast."""

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from sojourn.checks import as_floats
from sojourn.devices import DEVICES
from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.figure import Figure, Series, View
from sojourn.files import replacing
from sojourn.fleetcolumns import OPTIONAL_COLUMNS, check_availability, checked_column
from sojourn.fleetfile import read_columns
from sojourn.notebook import bar, table_html
from sojourn.resources import check_memory_for
from sojourn.types import FloatArray, IntArray

SLOWEST, FASTEST = 1e-30, 1e30
"""Service rates between which nothing overflows."""
MOST_CLIENTS = 2**53
"""Up to here numbers of clients are exact in floating point."""
MANY_CLIENTS = 10**7
"""More are counted only where memory for a number each is there."""


@dataclass(frozen=True, eq=False)
class Fleet:
    r"""Clients and their speeds, as classes of identical clients.

    ``service_rates`` is :math:`\mu`, in tasks per unit of time, shape ``(k,)``; ``counts`` says how
    many clients each class has (one each by default), so :math:`n` = ``size`` = ``counts.sum()``.
    ``names`` (optional) names the classes. Clients are numbered class by class.

    ``downlink`` and ``uplink`` (optional) are the mean times that a task takes to a client and its
    update back; the powers (optional) are what a client draws while it computes, sends, receives
    and does not compute, for ``energy_per_round``. All have one entry per class, zero or more.
    ``law`` (optional) is the law of each class's service times in words, such as
    ``"lognormal(sigma=0.5)"``, for analyses and simulations that are given none. ``mean_up`` and
    ``mean_down`` (optional, together) are how long a client is there and then away, on average, both
    exponential; 0 down means always there. What it works on waits meanwhile. ``weight`` (optional) is
    how much the loss of a client counts, on any scale, such as its number of samples; without it all
    count the same. ``extra`` (optional) is text of one's own by column, an entry per class, which is
    carried along and changes nothing.

    >>> fleet = Fleet([0.01, 0.1, 1.0], counts=[10, 10, 10])
    >>> fleet.size, fleet.total_rate
    (30, 11.1)
    """

    service_rates: FloatArray
    counts: IntArray
    names: tuple[str, ...] | None = None
    downlink: FloatArray | None = None
    uplink: FloatArray | None = None
    power_compute: FloatArray | None = None
    power_uplink: FloatArray | None = None
    power_downlink: FloatArray | None = None
    power_idle: FloatArray | None = None
    law: tuple[str, ...] | None = None
    mean_up: FloatArray | None = None
    mean_down: FloatArray | None = None
    weight: FloatArray | None = None
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __init__(
        self,
        service_rates: ArrayLike,
        counts: ArrayLike | None = None,
        names: Sequence[str] | None = None,
        *,
        downlink: ArrayLike | None = None,
        uplink: ArrayLike | None = None,
        power_compute: ArrayLike | None = None,
        power_uplink: ArrayLike | None = None,
        power_downlink: ArrayLike | None = None,
        power_idle: ArrayLike | None = None,
        law: Sequence[str] | None = None,
        mean_up: ArrayLike | None = None,
        mean_down: ArrayLike | None = None,
        weight: ArrayLike | None = None,
        extra: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        rates = positive_vector("service_rates", service_rates)
        if rates.min() < SLOWEST or rates.max() > FASTEST:
            raise InvalidInput(
                f"service_rates must lie between {SLOWEST:g} and {FASTEST:g}; they go from "
                f"{rates.min():g} to {rates.max():g}. Choose another unit of time, or leave out "
                "clients that never finish."
            )
        if counts is None:
            whole = np.ones(rates.size, dtype=np.int64)
        else:
            whole = _whole_counts(counts)
            if whole.size != rates.size:
                raise InvalidInput(
                    f"counts must have one entry per class: {rates.size} service rates "
                    f"were given, and {whole.size} counts"
                )
        texts = {"names": names, "law": law, **(extra or {})}
        for what, entries in texts.items():
            if entries is not None and len(entries) != rates.size:
                raise InvalidInput(
                    f"{what} must have one entry per class: {rates.size} service rates were given, "
                    f"and {len(entries)} entries of {what}"
                )
        object.__setattr__(self, "law", None if law is None else tuple(map(str, law)))
        own = {name: tuple(map(str, entries)) for name, entries in (extra or {}).items()}
        object.__setattr__(self, "extra", own)
        rates.setflags(write=False)
        whole.setflags(write=False)
        object.__setattr__(self, "service_rates", rates)
        object.__setattr__(self, "counts", whole)
        object.__setattr__(self, "names", None if names is None else tuple(map(str, names)))
        powers = (power_compute, power_uplink, power_downlink, power_idle)
        columns = (downlink, uplink, *powers, mean_up, mean_down, weight)
        for name, values in zip(OPTIONAL_COLUMNS, columns, strict=True):
            object.__setattr__(self, name, checked_column(name, values, rates.size))
        check_availability(self.mean_up, self.mean_down)

    @cached_property
    def size(self) -> int:
        """The number of clients, :math:`n`."""
        return int(self.counts.sum())

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.counts.size)

    @property
    def total_rate(self) -> float:
        r"""The speed of the fleet when nobody waits, :math:`|\mu| = \sum_i \mu_i`."""
        return float(self.counts @ self.service_rates)

    @property
    def comes_and_goes(self) -> bool:
        """Whether a client is away at times."""
        return self.mean_down is not None and bool(self.mean_down.any())

    @property
    def availability(self) -> FloatArray:
        """The share of the time that a client of each class is there, shape ``(k,)``.

        >>> Fleet([1.0, 1.0], mean_up=[8.0, 0.0], mean_down=[16.0, 0.0]).availability.round(4).tolist()
        [0.3333, 1.0]
        """
        if self.mean_up is None or self.mean_down is None:
            return np.ones(self.classes)
        there = np.where(self.mean_down > 0.0, self.mean_up, 1.0)
        return np.asarray(there / (there + self.mean_down))

    @property
    def effective_rates(self) -> FloatArray:
        r"""Tasks per unit of time of a client that always has one, :math:`a_i \mu_i`, away or not."""
        if not self.comes_and_goes:
            return self.service_rates
        return self.availability * self.service_rates

    @property
    def relative_weights(self) -> FloatArray:
        r"""How much a client of each class counts, :math:`\omega_i = n w_i`, shape ``(k,)``.

        The loss is :math:`\sum_i w_i f_i`, of weights that sum to 1; :math:`\omega` is 1 where all
        count the same, and over the clients always on average.

        >>> Fleet([1.0, 2.0], counts=[3, 1], weight=[100, 300]).relative_weights.round(4).tolist()
        [0.6667, 2.0]
        """
        if self.weight is None or bool(np.all(self.weight == self.weight[0])):
            return np.ones(self.classes)
        scaled = self.weight / self.weight.max()
        return np.asarray(scaled * (self.size / (self.counts @ scaled)))

    @property
    def columns(self) -> dict[str, FloatArray]:
        """The optional columns that it has: times on links, powers, availability, weight."""
        present = {name: getattr(self, name) for name in OPTIONAL_COLUMNS}
        return {name: values for name, values in present.items() if values is not None}

    def select(
        self,
        classes: ArrayLike,
        counts: ArrayLike | None = None,
        names: Sequence[str] | None = None,
    ) -> "Fleet":
        """The fleet of the given classes, with all their columns; ``counts`` replaces the sizes.

        A class may be named twice, to split it. Names are those given.

        >>> fleet = Fleet([1.0, 2.0], counts=[3, 1], downlink=[0.5, 0.0])
        >>> fleet.select([0, 0, 1], counts=[1, 2, 1]).columns["downlink"].tolist()
        [0.5, 0.5, 0.0]
        """
        index = np.asarray(classes, dtype=np.int64)
        return Fleet(
            self.service_rates[index],
            self.counts[index] if counts is None else counts,
            names,
            law=None if self.law is None else [self.law[k] for k in index.tolist()],
            extra={name: [own[k] for k in index.tolist()] for name, own in self.extra.items()},
            **{name: values[index] for name, values in self.columns.items()},
        )

    def with_rates(self, service_rates: ArrayLike) -> "Fleet":
        """The same clients at other speeds, with their names and all their columns.

        >>> Fleet([1.0, 2.0], uplink=[3.0, 4.0]).with_rates([5.0, 6.0]).columns["uplink"].tolist()
        [3.0, 4.0]
        """
        return Fleet(
            service_rates, self.counts, self.names, law=self.law, extra=self.extra, **self.columns
        )

    def label(self, index: int) -> str:
        """What to call class ``index`` in a table."""
        name = "" if self.names is None else self.names[index]
        return name or f"class {index + 1}"

    def expand(self, values: ArrayLike) -> FloatArray:
        """A value per class as a value per client.

        >>> Fleet([1.0, 2.0], counts=[2, 1]).expand([5.0, 7.0]).tolist()
        [5.0, 5.0, 7.0]
        """
        if self.size > MANY_CLIENTS:
            number = f"a number for each of {self.size:,} clients"
            check_memory_for(number, 16.0 * self.size, "Ask about fewer clients.")
        return np.repeat(np.asarray(values, dtype=np.float64), self.counts)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Fleet)
            and np.array_equal(self.service_rates, other.service_rates)
            and np.array_equal(self.counts, other.counts)
            and self.names == other.names
            and self.law == other.law
            and self.columns.keys() == other.columns.keys()
            and all(np.array_equal(v, other.columns[k]) for k, v in self.columns.items())
        )

    def in_words(self) -> str:
        """How many clients there are, of how many kinds and how fast."""
        slowest, fastest = self.service_rates.min(), self.service_rates.max()
        kinds = f"{self.classes} class{'es' if self.classes > 1 else ''}"
        return f"{self.size} clients in {kinds}, rates {slowest:.4g} to {fastest:.4g}"

    def __repr__(self) -> str:
        return f"Fleet({self.in_words()})"

    def plot(self) -> Figure:
        """The part that each class has of the clients, and of the fleet's speed."""
        speed = self.counts * self.service_rates
        parts = {"clients": self.counts / self.size, "speed": speed / speed.sum()}
        place = np.arange(self.classes)
        series = tuple(Series(name, place, own, kind="bars") for name, own in parts.items())
        names = tuple(self.label(k) for k in range(self.classes))
        most = int(speed.argmax())
        alt = (
            f"{repr(self)[6:-1]}; {self.label(most)} is {self.counts[most] / self.size:.1%} of the "
            f"clients and {parts['speed'][most]:.1%} of the speed"
        )
        view = View("clients", "part of the fleet", series, percent=True, categories=names)
        return Figure("fleet", "Who the clients are, and how fast", f"{alt}.", (view,))

    def _repr_html_(self) -> str:
        speed = self.counts * self.service_rates
        rows = [
            (self.label(k), str(self.counts[k]), f"{self.service_rates[k]:.4g}", bar(float(share)))
            for k, share in enumerate(speed / speed.sum())
        ]
        columns = ("class", "clients", "tasks per unit of time", "part of the fleet's speed")
        return table_html(repr(self), columns, rows)

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> "Fleet":
        """Read columns ``service_rate`` and, optionally, ``count``, ``name``, ``law``, links and more.

        Other columns are kept as ``extra``. A misspelt column, an empty file or a value that is not a
        number raises ``InvalidFile`` with the line it stands on.
        """
        read = read_columns(path)
        try:
            return cls(
                read.rates,
                read.counts,
                read.names,
                law=read.law,
                extra=read.extra,
                **read.optional,
            )
        except InvalidInput as error:
            raise InvalidFile(f"{path}: {error}") from error

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the fleet so that ``from_csv`` reads it back exactly."""
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as f:
            writer = csv.writer(f)
            named = self.names is not None
            columns = self.columns
            head = ["service_rate", "count", *(["name"] if named else []), *columns]
            writer.writerow([*head, *(["law"] if self.law is not None else []), *self.extra])
            for k in range(self.classes):
                row = [repr(float(self.service_rates[k])), int(self.counts[k])]
                optional = [repr(float(values[k])) for values in columns.values()]
                optional += [] if self.law is None else [self.law[k]]
                optional += [entries[k] for entries in self.extra.values()]
                writer.writerow([*row, *([self.label(k)] if named else []), *optional])


def built_in_fleet(name: str) -> Fleet:
    """A fleet of the paper by name, to try things on without a file.

    ``three-clusters`` (section 4.3: ten clients each at 0.01, 0.1 and 1), ``twenty`` (section 3.3:
    :math:`\\mu_i = e^{i/100}`) and ``fifty`` (section 4.2: the same law, 50 clients). And real
    devices, from published figures (`sojourn.devices`): ``flash-phones``, ``jetson`` and
    ``ai-benchmark-phones``.

    >>> built_in_fleet("three-clusters")
    Fleet(30 clients in 3 classes, rates 0.01 to 1)
    """
    if name not in BUILT_IN_FLEETS:
        raise UnknownName("built-in fleet", name, BUILT_IN_FLEETS)
    return BUILT_IN_FLEETS[name]


def positive_vector(name: str, values: ArrayLike, advice: str = "") -> FloatArray:
    """``values`` as a vector of positive, finite numbers, one per class."""
    vector = as_floats(name, values)
    if vector.ndim != 1 or vector.size == 0:
        raise InvalidInput(f"{name} must be a non-empty list of numbers, one per class")
    good = np.isfinite(vector) & (vector > 0)
    if not good.all():
        i = int(np.argmin(good))
        text = f"{name} must be positive and finite; entry {i + 1} is {vector[i]:g}."
        raise InvalidInput(f"{text} {advice}".strip())
    return vector


def _whole_counts(counts: ArrayLike) -> IntArray:
    numbers = as_floats("counts", counts)
    if numbers.ndim != 1:
        raise InvalidInput("counts must be a list of whole numbers, one per class")
    wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 1) & (numbers % 1 == 0)))
    if wrong.size:
        i = int(wrong[0])
        raise InvalidInput(
            f"counts must be whole numbers of at least 1; entry {i + 1} is {numbers[i]:g}"
        )
    if numbers.sum() > MOST_CLIENTS:
        raise InvalidInput(
            f"a fleet has at most {MOST_CLIENTS} clients; the counts sum to {numbers.sum():g}"
        )
    return numbers.astype(np.int64)


BUILT_IN_FLEETS = {
    "three-clusters": Fleet(
        [0.01, 0.1, 1.0], counts=[10, 10, 10], names=["slow", "medium", "fast"]
    ),
    "twenty": Fleet(np.exp(np.arange(1, 21) / 100)),
    "fifty": Fleet(np.exp(np.arange(1, 51) / 100)),
    **{name: Fleet(rates, counts, names) for name, (rates, counts, names) in DEVICES.items()},
}

"""Who the clients are, and how fast."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sojourn._support.csv_table import read_csv, write_csv
from sojourn._support.memory import check_memory_for
from sojourn._support.numbers import number
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.figures.figure import Figure, Series, View
from sojourn.figures.notebook import bar, table_html
from sojourn.fleet.columns import (
    Column,
    Counts,
    Extra,
    Numbers,
    ServiceRates,
    Text,
    WrongEntry,
    is_misspelt,
)
from sojourn.types import FloatArray

MANY_CLIENTS = 10**7
"""More are expanded only where there is memory for a number each."""
LEAST_WEIGHT = 1e-30
"""A client that counts for nothing is left out."""


@dataclass(frozen=True, eq=False)
class Fleet:
    r"""Clients and their speeds, as classes of identical clients.

    ``service_rates`` is :math:`\mu`, in tasks per time unit, shape ``(k,)``; ``counts`` says how
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

    service_rates: ServiceRates = ServiceRates()
    counts: Counts = Counts()
    names: Text = Text()
    _: KW_ONLY
    downlink: Numbers = Numbers()
    uplink: Numbers = Numbers()
    power_compute: Numbers = Numbers()
    power_uplink: Numbers = Numbers()
    power_downlink: Numbers = Numbers()
    power_idle: Numbers = Numbers()
    law: Text = Text()
    mean_up: Numbers = Numbers()
    mean_down: Numbers = Numbers()
    weight: Numbers = Numbers(least=LEAST_WEIGHT)
    extra: Extra = Extra()

    def __post_init__(self) -> None:
        for column in COLUMN_FIELDS:
            column.read(self)
        if (self.mean_up is None) != (self.mean_down is None):
            missing = "mean_down" if self.mean_down is None else "mean_up"
            raise InvalidInput(f"mean_up and mean_down go together; {missing} is missing")
        if self.mean_up is not None and self.mean_down is not None:
            never = np.flatnonzero((self.mean_up == 0.0) & (self.mean_down > 0.0))
            if never.size:
                raise InvalidInput(
                    "mean_up must be above 0 for clients that go down; entry "
                    f"{int(never[0]) + 1} is 0. Leave out clients that are never there."
                )

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
    def is_intermittent(self) -> bool:
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
        r"""Tasks per time unit of a client that always has one, :math:`a_i \mu_i`, away or not."""
        if not self.is_intermittent:
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

    @cached_property
    def link_times(self) -> FloatArray | None:
        """Mean time on both links of a client, shape ``(k,)``; ``None`` if no client has any.

        >>> Fleet([1.0, 2.0], downlink=[0.5, 0.0], uplink=[1.0, 0.0]).link_times.tolist()
        [1.5, 0.0]
        """
        times = [column for column in (self.downlink, self.uplink) if column is not None]
        if not any(column.any() for column in times):
            return None
        return np.asarray(np.sum(times, axis=0), dtype=np.float64)

    @property
    def columns(self) -> dict[str, FloatArray]:
        """The optional columns that it has: times on links, powers, availability, weight."""
        present = {name: getattr(self, name) for name in NUMBER_COLUMNS}
        return {name: values for name, values in present.items() if values is not None}

    def column(self, name: str) -> FloatArray:
        """An optional column of numbers, shape ``(k,)``; zeros if the fleet has none of that name."""
        values = getattr(self, name)
        return np.zeros(self.classes) if values is None else values

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
        return replace(self, service_rates=service_rates)

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
        return isinstance(other, Fleet) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @property
    def _content(self) -> tuple[object, ...]:
        """All that makes two fleets the same; columns of one's own change nothing."""
        numbers = {"service_rates": self.service_rates, "counts": self.counts, **self.columns}
        # Adding zero turns -0.0, whose bytes differ, into 0.0.
        content = tuple((name, (values + 0).tobytes()) for name, values in numbers.items())
        return (content, self.names, self.law)

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
            (self.label(k), f"{self.counts[k]:,}", number(self.service_rates[k]), bar(float(share)))
            for k, share in enumerate(speed / speed.sum())
        ]
        columns = ("class", "clients", "tasks per time unit", "share of the speed")
        return table_html(repr(self), columns, rows)

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> "Fleet":
        """Read columns ``service_rate`` and, optionally, ``count``, ``name``, ``law``, links and more.

        Other columns become ``extra``. A misspelt column, an empty file or a value that is not a
        number raises ``InvalidFile`` with its line.
        """
        table = read_csv(
            path,
            COLUMNS,
            required=["service_rate"],
            advice="It is the number of tasks that one such client finishes per time unit; `sojourn fleet "
            "estimate` finds it from a log of tasks.",
            may_add=lambda column, header: not is_misspelt(column, header, COLUMNS),
        )
        if not len(table):
            raise InvalidFile(f"{path}: no clients: there is no line below the column names")
        texts = table.columns
        for row, law in enumerate(texts.get("law", [])):
            if not law:
                raise InvalidFile(f"{table.where(row)}: the law is missing, such as exponential")
        try:
            return cls(
                table.numbers("service_rate"),
                table.numbers("count") if "count" in texts else None,
                texts.get("name"),
                law=texts.get("law"),
                extra={name: entries for name, entries in texts.items() if name not in COLUMNS},
                **{name: table.numbers(name) for name in NUMBER_COLUMNS if name in texts},
            )
        except WrongEntry as error:
            column = {"service_rates": "service_rate", "counts": "count"}.get(error.column)
            raise InvalidFile(
                f"{table.where(error.entry)}: {column or error.column} {error.rule}; "
                f"it is {error.value:g}"
            ) from error
        except InvalidFile:
            raise
        except InvalidInput as error:
            raise InvalidFile(f"{path}: {error}") from error

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the fleet so that ``from_csv`` reads it back exactly."""
        columns: dict[str, Iterable[object]] = {
            "service_rate": self.service_rates.tolist(),
            "count": self.counts.tolist(),
            "name": self.names or (),
            **{name: values.tolist() for name, values in self.columns.items()},
            "law": self.law or (),
            **self.extra,
        }
        columns = {name: values for name, values in columns.items() if values}
        write_csv(path, columns, zip(*columns.values(), strict=True))


COLUMN_FIELDS: tuple[Column[Any, Any], ...] = tuple(
    field for field in vars(Fleet).values() if isinstance(field, Column)
)
NUMBER_COLUMNS = tuple(field.name for field in COLUMN_FIELDS if isinstance(field, Numbers))
"""The optional columns that hold numbers."""
COLUMNS = ("service_rate", "count", "name", "law", *NUMBER_COLUMNS)
"""What a CSV file may say of a fleet, beside columns of one's own."""

"""Who the clients are (`Fleet`), how tasks reach them (`Network`), and the closed-form routings."""

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sojourn.checks import check_number
from sojourn.config import Table
from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.files import replacing
from sojourn.fleetcolumns import OPTIONAL_COLUMNS, checked_column
from sojourn.fleetfile import read_columns
from sojourn.types import FloatArray, IntArray

ROUTING_SUM_TOLERANCE = 1e-9
SLOWEST, FASTEST = 1e-30, 1e30
"""Service rates between which nothing overflows."""
MOST_CLIENTS = 2**53
"""Up to here numbers of clients are exact in floating point."""
MOST_TASKS = 2**40
"""The largest concurrency."""


@dataclass(frozen=True, eq=False)
class Fleet:
    r"""Clients and their speeds, as classes of identical clients.

    ``service_rates`` is :math:`\mu`, in tasks per unit of time, shape ``(k,)``; ``counts`` says how
    many clients each class has (one each by default), so :math:`n` = ``size`` = ``counts.sum()``.
    ``names`` (optional) names the classes. Clients are numbered class by class.

    ``downlink`` and ``uplink`` (optional) are the mean times that a task takes to a client and its
    update back; the powers (optional) are what a client draws while it computes, sends, receives
    and does not compute, for ``energy_per_round``. All have one entry per class, zero or more.

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
    ) -> None:
        rates = _positive_vector("service_rates", service_rates)
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
        if names is not None and len(names) != rates.size:
            raise InvalidInput(
                f"names must have one entry per class: {rates.size} service rates were given, "
                f"and {len(names)} names"
            )
        rates.setflags(write=False)
        whole.setflags(write=False)
        object.__setattr__(self, "service_rates", rates)
        object.__setattr__(self, "counts", whole)
        object.__setattr__(self, "names", None if names is None else tuple(map(str, names)))
        columns = (downlink, uplink, power_compute, power_uplink, power_downlink, power_idle)
        for name, values in zip(OPTIONAL_COLUMNS, columns, strict=True):
            object.__setattr__(self, name, checked_column(name, values, rates.size))

    @property
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
    def columns(self) -> dict[str, FloatArray]:
        """The optional columns that the fleet has: times on links and powers, by name."""
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
            **{name: values[index] for name, values in self.columns.items()},
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
        return np.repeat(np.asarray(values, dtype=np.float64), self.counts)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Fleet)
            and np.array_equal(self.service_rates, other.service_rates)
            and np.array_equal(self.counts, other.counts)
            and self.names == other.names
            and self.columns.keys() == other.columns.keys()
            and all(np.array_equal(v, other.columns[k]) for k, v in self.columns.items())
        )

    def __repr__(self) -> str:
        slowest, fastest = self.service_rates.min(), self.service_rates.max()
        kinds = f"{self.classes} class{'es' if self.classes > 1 else ''}"
        return f"Fleet({self.size} clients in {kinds}, rates {slowest:.4g} to {fastest:.4g})"

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> "Fleet":
        """Read columns ``service_rate`` and, optionally, ``count``, ``name``, links and powers.

        Any other column, an empty file or a value that is not a number raises ``InvalidFile``
        with the line it stands on.
        """
        rates, counts, names, optional = read_columns(path)
        try:
            return cls(rates, counts, names, **optional)
        except InvalidInput as error:
            raise InvalidFile(f"{path}: {error}") from error

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the fleet so that ``from_csv`` reads it back exactly."""
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as f:
            writer = csv.writer(f)
            named = self.names is not None
            columns = self.columns
            writer.writerow(["service_rate", "count", *(["name"] if named else []), *columns])
            for k in range(self.classes):
                row = [repr(float(self.service_rates[k])), int(self.counts[k])]
                optional = [repr(float(values[k])) for values in columns.values()]
                writer.writerow([*row, *([self.label(k)] if named else []), *optional])


@dataclass(frozen=True, eq=False)
class Network:
    r"""A fleet, the routing of tasks to its clients, and the number of tasks in flight.

    ``routing`` is :math:`p_i`, the probability that a new task goes to *each client* of a class,
    shape ``(k,)``, so that ``sum(counts * routing) == 1``; ``concurrency`` is :math:`m`.
    ``server_rate`` is :math:`\mu_s`, the updates per unit of time that the server can make, one
    after the other; ``None`` means that it takes no time.

    A routing may tell clients of one class apart: ``fleet`` then lists the parts of that class one
    after another, and ``parents``, shape ``(k,)``, gives for each class of ``fleet`` the class of
    the whole fleet that it belongs to (by default its own number). So clients keep the numbers that
    they have in the whole fleet.

    >>> Network(Fleet([1.0, 2.0], counts=[2, 1]), routing=[0.25, 0.5], concurrency=3)
    Network(3 clients in 2 classes, concurrency 3)
    >>> singled_out = Fleet([1.0, 1.0, 2.0], counts=[1, 1, 1])
    >>> Network(singled_out, [0.2, 0.3, 0.5], 3, parents=[0, 0, 1]).whole_fleet()
    Fleet(3 clients in 2 classes, rates 1 to 2)
    """

    fleet: Fleet
    routing: FloatArray
    concurrency: int
    parents: IntArray
    server_rate: float | None = None

    def __init__(
        self,
        fleet: Fleet,
        routing: ArrayLike,
        concurrency: int,
        *,
        parents: ArrayLike | None = None,
        server_rate: float | None = None,
    ) -> None:
        p = _positive_vector(
            "routing", routing, advice="Leave out clients that should get no task."
        )
        if p.size != fleet.classes:
            raise InvalidInput(
                f"routing must have one entry per class of the fleet: it has {p.size}, "
                f"the fleet has {fleet.classes}"
            )
        total = float(fleet.counts @ p)
        if not abs(total - 1.0) <= ROUTING_SUM_TOLERANCE:
            raise InvalidInput(
                f"routing must sum to 1 over the {fleet.size} clients; it sums to {total:.10g}. "
                "It is the probability of each single client: a class counts as often as it has "
                "clients."
            )
        p.setflags(write=False)
        object.__setattr__(self, "fleet", fleet)
        object.__setattr__(self, "routing", p)
        object.__setattr__(self, "concurrency", check_concurrency(concurrency))
        object.__setattr__(self, "parents", _checked_parents(fleet, parents))
        if server_rate is not None:
            server_rate = check_number("server_rate", server_rate, least=SLOWEST, most=FASTEST)
        object.__setattr__(self, "server_rate", server_rate)

    @property
    def size(self) -> int:
        """The number of clients, :math:`n`."""
        return self.fleet.size

    @property
    def loads(self) -> FloatArray:
        r""":math:`\rho_i = p_i / \mu_i`, the work that a routed task brings to a client."""
        return self.routing / self.fleet.service_rates

    @property
    def client_routing(self) -> FloatArray:
        """The routing probability of every client, shape ``(n,)``."""
        return self.fleet.expand(self.routing)

    @property
    def is_split(self) -> bool:
        """Whether the routing tells clients of one class of the whole fleet apart."""
        return int(self.parents[-1]) + 1 < self.fleet.classes

    def whole_fleet(self, names: Sequence[str] | None = None) -> Fleet:
        """The fleet with the parts of each class as one class again, and these names."""
        firsts = np.unique(self.parents, return_index=True)[1]
        counts = np.add.reduceat(self.fleet.counts, firsts)
        if names is None and not self.is_split:
            names = self.fleet.names
        return self.fleet.select(firsts, counts, names)

    def to_table(self) -> dict[str, Any]:
        """Plain values for TOML and JSON: ``concurrency``, and one of ``classes`` per class.

        >>> network = Network(Fleet([1.0, 4.0], counts=[3, 1]), [0.2, 0.4], 5)
        >>> network.to_table()["classes"][1]
        {'count': 1, 'service-rate': 4.0, 'routing': 0.4}
        >>> Network.from_table(network.to_table()) == network
        True
        """
        fleet, rows = self.fleet, []
        for k in range(fleet.classes):
            row: dict[str, Any] = {} if fleet.names is None else {"name": fleet.names[k]}
            row["count"] = int(fleet.counts[k])
            row["service-rate"] = float(fleet.service_rates[k])
            row["routing"] = float(self.routing[k])
            for name, values in fleet.columns.items():
                row[name.replace("_", "-")] = float(values[k])
            if self.is_split:
                row["fleet-class"] = int(self.parents[k]) + 1
            rows.append(row)
        server = {} if self.server_rate is None else {"server-rate": self.server_rate}
        return {"concurrency": self.concurrency, **server, "classes": rows}

    @classmethod
    def from_table(cls, table: Table | Mapping[str, Any], where: str = "network") -> "Network":
        """The network that ``to_table`` wrote; what is missing or impossible raises ``InvalidFile``.

        Of a ``Table`` only the keys of the network are taken; other keys are left to the caller.
        """
        given = table if isinstance(table, Table) else Table(table, where)
        concurrency = given.take("concurrency", int)
        server_rate = given.take("server-rate", float, default=None)
        rows = given.tables("classes")
        if given is not table:
            given.close()
        columns = [_read_class(row, place) for place, row in enumerate(rows)]
        if not columns:
            raise InvalidFile(
                f"{given.where}: 'classes' is empty: there must be a class of clients"
            )
        names, counts, rates, routing, parents, optional = zip(*columns, strict=True)
        if len({tuple(given_columns) for given_columns in optional}) > 1:
            raise InvalidFile(f"{given.where}: 'classes' must all have the same links and powers")
        try:
            fleet = Fleet(
                rates,
                counts,
                None if None in names else names,
                **{name: [row[name] for row in optional] for name in optional[0]},
            )
            return cls(fleet, routing, concurrency, parents=parents, server_rate=server_rate)
        except InvalidInput as error:
            raise InvalidFile(f"{given.where}: {error}") from error

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Network)
            and self.fleet == other.fleet
            and np.array_equal(self.routing, other.routing)
            and self.concurrency == other.concurrency
            and np.array_equal(self.parents, other.parents)
            and self.server_rate == other.server_rate
        )

    def __repr__(self) -> str:
        kinds = f"{self.fleet.classes} class{'es' if self.fleet.classes > 1 else ''}"
        return f"Network({self.size} clients in {kinds}, concurrency {self.concurrency})"


def uniform_routing(fleet: Fleet) -> FloatArray:
    """The same probability for every client: ``1/n``.

    >>> uniform_routing(Fleet([1.0, 4.0])).tolist()
    [0.5, 0.5]
    """
    return np.full(fleet.classes, 1.0 / fleet.size)


def balanced_routing(fleet: Fleet) -> FloatArray:
    r"""Proportional to speed, :math:`p_i = \mu_i/|\mu|`: every client is equally loaded.

    Paper: section 3.2 ("simple routing strategies").

    >>> balanced_routing(Fleet([1.0, 4.0])).tolist()
    [0.2, 0.8]
    """
    return _proportional_to(fleet, fleet.service_rates)


def square_root_routing(fleet: Fleet) -> FloatArray:
    r"""Proportional to :math:`\sqrt{\mu_i}`, which minimises :math:`S_1/\lambda` at ``m = 1``.

    Not in the paper; a strong baseline when time matters and constants are unknown.

    >>> square_root_routing(Fleet([1.0, 4.0])).round(6).tolist()
    [0.333333, 0.666667]
    """
    return _proportional_to(fleet, np.sqrt(fleet.service_rates))


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


def built_in_fleet(name: str) -> Fleet:
    """A fleet of the paper by name, to try things on without a file.

    ``three-clusters`` (section 4.3: ten clients each at 0.01, 0.1 and 1), ``twenty`` (section 3.3:
    :math:`\\mu_i = e^{i/100}`) and ``fifty`` (section 4.2: the same law, 50 clients).

    >>> built_in_fleet("three-clusters")
    Fleet(30 clients in 3 classes, rates 0.01 to 1)
    """
    if name not in BUILT_IN_FLEETS:
        raise UnknownName("built-in fleet", name, BUILT_IN_FLEETS)
    return BUILT_IN_FLEETS[name]


def check_concurrency(value: int) -> int:
    """``value`` as an int of at least 1, or ``InvalidInput``."""
    number = np.asarray(value)
    if number.ndim != 0 or number.dtype.kind not in "iuf" or not float(number).is_integer():
        raise InvalidInput(f"concurrency must be a whole number of tasks; it is {value!r}")
    if number < 1:
        raise InvalidInput(f"concurrency must be at least 1 task in flight; it is {value!r}")
    if number > MOST_TASKS:
        raise InvalidInput(f"concurrency must be at most {MOST_TASKS}; it is {value!r}")
    return int(number)


def _checked_parents(fleet: Fleet, parents: ArrayLike | None) -> IntArray:
    if parents is None:
        of = np.arange(fleet.classes)
    else:
        try:
            of = np.array(parents, dtype=np.int64)
        except (OverflowError, TypeError, ValueError):
            of = np.full(fleet.classes, -1)
        if of.shape != (fleet.classes,):
            raise InvalidInput(
                f"parents must have one entry per class of the fleet: it has shape {of.shape}, the "
                f"fleet has {fleet.classes} classes"
            )
        if of[0] != 0 or not np.isin(np.diff(of), (0, 1)).all():
            raise InvalidInput(
                "parents (fleet-class in a file, from 1 on) must number the fleet's classes without "
                f"a gap, the parts of a class one after another; it is {parents!r:.100}"
            )
        rates = fleet.service_rates
        uneven = np.flatnonzero((np.diff(of) == 0) & (rates[1:] != rates[:-1]))
        if uneven.size:
            k = int(uneven[0])
            raise InvalidInput(
                f"{fleet.label(k)} and {fleet.label(k + 1)} are parts of one class and must have one "
                f"service rate (fleet-class, service-rate in a file); they have {rates[k]:g} and "
                f"{rates[k + 1]:g}"
            )
        for name, values in fleet.columns.items():
            if ((np.diff(of) == 0) & (values[1:] != values[:-1])).any():
                raise InvalidInput(f"the parts of one class of the fleet must have one {name}")
    of.setflags(write=False)
    return of


def _read_class(
    row: Table, place: int
) -> tuple[str | None, int, float, float, int, dict[str, float]]:
    name = row.take("name", str, default=None)
    count = row.take("count", int)
    rate, routing = row.take("service-rate", float), row.take("routing", float)
    parent = row.take("fleet-class", int, default=place + 1) - 1
    keys = {
        name: row.take(name.replace("_", "-"), float, default=None) for name in OPTIONAL_COLUMNS
    }
    row.close()
    optional = {name: value for name, value in keys.items() if value is not None}
    return name, count, rate, routing, parent, optional


def _proportional_to(fleet: Fleet, weights: FloatArray) -> FloatArray:
    scaled = weights / weights.max()
    return np.asarray(scaled / (fleet.counts @ scaled), dtype=np.float64)


def _positive_vector(name: str, values: ArrayLike, advice: str = "") -> FloatArray:
    try:
        vector = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be numbers; {values!r} is not") from error
    if vector.ndim != 1 or vector.size == 0:
        raise InvalidInput(f"{name} must be a non-empty list of numbers, one per class")
    wrong = np.flatnonzero(~(np.isfinite(vector) & (vector > 0)))
    if wrong.size:
        i = int(wrong[0])
        text = f"{name} must be positive and finite; entry {i + 1} is {vector[i]:g}."
        raise InvalidInput(f"{text} {advice}".strip())
    return vector


def _whole_counts(counts: ArrayLike) -> IntArray:
    try:
        numbers = np.array(counts, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"counts must be whole numbers; {counts!r} is not") from error
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
}

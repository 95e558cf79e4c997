"""Who the clients are (`Fleet`), how tasks reach them (`Network`), and the closed-form routings."""

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.files import replacing
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

    >>> fleet = Fleet([0.01, 0.1, 1.0], counts=[10, 10, 10])
    >>> fleet.size, fleet.total_rate
    (30, 11.1)
    """

    service_rates: FloatArray
    counts: IntArray
    names: tuple[str, ...] | None = None

    def __init__(
        self,
        service_rates: ArrayLike,
        counts: ArrayLike | None = None,
        names: Sequence[str] | None = None,
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
        )

    def __repr__(self) -> str:
        slowest, fastest = self.service_rates.min(), self.service_rates.max()
        kinds = f"{self.classes} class{'es' if self.classes > 1 else ''}"
        return f"Fleet({self.size} clients in {kinds}, rates {slowest:.4g} to {fastest:.4g})"

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> "Fleet":
        """Read columns ``service_rate`` and, optionally, ``count`` and ``name``.

        Any other column, an empty file or a value that is not a number raises ``InvalidFile``
        with the line it stands on.
        """
        try:
            with Path(path).open(newline="", encoding="utf-8-sig") as file:
                rows = list(csv.reader(file))
        except OSError as error:
            raise InvalidFile(f"{path}: cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise InvalidFile(f"{path}: not a text file in UTF-8") from error
        except csv.Error as error:
            raise InvalidFile(f"{path}: not a CSV file ({error})") from error
        return _fleet_from_rows(cls, rows, str(path))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the fleet so that ``from_csv`` reads it back exactly."""
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as f:
            writer = csv.writer(f)
            named = self.names is not None
            writer.writerow(["service_rate", "count", *(["name"] if named else [])])
            for k in range(self.classes):
                row = [repr(float(self.service_rates[k])), int(self.counts[k])]
                writer.writerow([*row, *([self.label(k)] if named else [])])


@dataclass(frozen=True, eq=False)
class Network:
    r"""A fleet, the routing of tasks to its clients, and the number of tasks in flight.

    ``routing`` is :math:`p_i`, the probability that a new task goes to *each client* of a class,
    shape ``(k,)``, so that ``sum(counts * routing) == 1``; ``concurrency`` is :math:`m`.

    >>> Network(Fleet([1.0, 2.0], counts=[2, 1]), routing=[0.25, 0.5], concurrency=3)
    Network(3 clients in 2 classes, concurrency 3)
    """

    fleet: Fleet
    routing: FloatArray
    concurrency: int

    def __init__(self, fleet: Fleet, routing: ArrayLike, concurrency: int) -> None:
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

    def to_table(self) -> dict[str, Any]:
        """The network in plain values, as every file holds it; `from_table` reads it back."""
        fleet = self.fleet
        rows: list[dict[str, Any]] = []
        for k in range(fleet.classes):
            row: dict[str, Any] = {} if fleet.names is None else {"name": fleet.names[k]}
            row["count"] = int(fleet.counts[k])
            row["service-rate"] = float(fleet.service_rates[k])
            row["routing"] = float(self.routing[k])
            rows.append(row)
        return {"concurrency": self.concurrency, "classes": rows}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Network":
        """The network that `to_table` wrote down."""
        try:
            rows = table["classes"]
            names = [row["name"] for row in rows] if rows and "name" in rows[0] else None
            counts = [row["count"] for row in rows]
            fleet = Fleet([row["service-rate"] for row in rows], counts, names)
            return cls(fleet, [row["routing"] for row in rows], table["concurrency"])
        except (KeyError, TypeError) as error:
            raise InvalidFile(f"a network is not as Sojourn writes it: {error!r}") from error

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Network)
            and self.fleet == other.fleet
            and np.array_equal(self.routing, other.routing)
            and self.concurrency == other.concurrency
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


def named_routing(name: str, fleet: Fleet) -> FloatArray:
    """The closed-form routing called ``name``: uniform, balanced or square-root."""
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


_COLUMNS = ("service_rate", "count", "name")


def _fleet_from_rows(cls: type[Fleet], rows: list[list[str]], where: str) -> Fleet:
    if not rows or not any(field.strip() for field in rows[0]):
        raise InvalidFile(f"{where}: empty. The first line must name the columns: service_rate")
    header = [field.strip() for field in rows[0]]
    for column in header:
        if column not in _COLUMNS:
            raise InvalidFile(f"{where}: {UnknownName('column', column, _COLUMNS)}")
    if len(set(header)) != len(header):
        raise InvalidFile(f"{where}: a column stands twice in the first line")
    if "service_rate" not in header:
        raise InvalidFile(f"{where}: there is no column service_rate in the first line")
    columns: dict[str, list[str]] = {name: [] for name in header}
    lines: list[int] = []
    for line, row in enumerate(rows[1:], start=2):
        if not any(field.strip() for field in row):
            continue
        if len(row) != len(header):
            raise InvalidFile(
                f"{where}, line {line}: {len(row)} fields where the first line has {len(header)}"
            )
        lines.append(line)
        for name, field in zip(header, row, strict=True):
            columns[name].append(field.strip())
    if not lines:
        raise InvalidFile(f"{where}: no clients: there is no line below the column names")
    rates = _numbers(columns["service_rate"], lines, "service_rate", where)
    counts = _numbers(columns["count"], lines, "count", where) if "count" in columns else None
    for values, name in ((rates, "service_rate"), (counts, "count")):
        if values is None:
            continue
        good = np.isfinite(values) & (values > 0)
        if name == "count":
            good &= values % 1 == 0
        if not good.all():
            i = int(np.flatnonzero(~good)[0])
            kind = "positive and finite" if name == "service_rate" else "whole and at least 1"
            raise InvalidFile(
                f"{where}, line {lines[i]}: {name} must be {kind}; it is {values[i]:g}"
            )
    try:
        return cls(rates, counts, columns.get("name"))
    except InvalidInput as error:
        raise InvalidFile(f"{where}: {error}") from error


def _numbers(fields: list[str], lines: list[int], name: str, where: str) -> FloatArray:
    try:
        return np.array(fields, dtype=np.float64)
    except ValueError:
        for line, field in zip(lines, fields, strict=True):
            try:
                float(field)
            except ValueError:
                raise InvalidFile(
                    f"{where}, line {line}: {name} must be a number; it is '{field}'"
                ) from None
        raise


BUILT_IN_FLEETS = {
    "three-clusters": Fleet(
        [0.01, 0.1, 1.0], counts=[10, 10, 10], names=["slow", "medium", "fast"]
    ),
    "twenty": Fleet(np.exp(np.arange(1, 21) / 100)),
    "fifty": Fleet(np.exp(np.arange(1, 51) / 100)),
}

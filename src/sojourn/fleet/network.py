"""How tasks reach the clients: the closed network of queues, and the closed-form routings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from sojourn._support.checks import check_number, in_short
from sojourn._support.configuration import Table
from sojourn._support.numbers import number
from sojourn.errors import InvalidFile, InvalidInput, UnknownName, reading
from sojourn.figures.notebook import bar, table_html
from sojourn.fleet.columns import FASTEST, SLOWEST, positive_vector
from sojourn.fleet.fleet import NUMBER_COLUMNS, Fleet
from sojourn.types import FloatArray, IntArray

NetworkTable = TypedDict(
    "NetworkTable",
    {"concurrency": int, "server-rate": NotRequired[float], "classes": list[dict[str, object]]},
)
"""A network as plain values."""
ROUTING_SUM_TOLERANCE = 1e-9
MOST_TASKS = 2**40
"""The largest concurrency."""


@dataclass(frozen=True, eq=False)
class Network:
    r"""A fleet, the routing of tasks to its clients, and the number of tasks in flight.

    ``routing`` is :math:`p_i`, the probability that a new task goes to *each client* of a class,
    shape ``(k,)``, so that ``sum(counts * routing) == 1``; ``concurrency`` is :math:`m`.
    ``server_rate`` is :math:`\mu_s`, the updates per time unit that the server can make, one
    after the other; ``None`` means that it takes no time.

    Clients of one class may have different probabilities: ``fleet`` then lists the parts of that
    class one after another, and ``parents``, shape ``(k,)``, gives for each class of ``fleet`` the
    class of the whole fleet that it belongs to (by default its own number). So clients keep the
    numbers that they have in the whole fleet.

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
        p = positive_vector("routing", routing, advice="Leave out clients that should get no task.")
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
        r""":math:`\rho_i = p_i / \mu_i`, the work that a routed task brings to a client.

        Of intermittent clients it is :math:`p_i/(a_i \mu_i)`, with the time that the work waits.
        """
        return self.routing / self.fleet.effective_rates

    @property
    def client_routing(self) -> FloatArray:
        """The routing probability of every client, shape ``(n,)``."""
        return self.fleet.expand(self.routing)

    @property
    def has_delays(self) -> bool:
        """Whether a task spends time anywhere but with its client: on links or at the server."""
        return self.server_rate is not None or self.fleet.link_times is not None

    @property
    def is_split(self) -> bool:
        """Whether clients of one class of the whole fleet have different probabilities."""
        return self.whole_classes < self.fleet.classes

    @property
    def whole_classes(self) -> int:
        """The number of classes of the whole fleet."""
        return int(self.parents[-1]) + 1

    def whole_fleet(self, names: Sequence[str] | None = None) -> Fleet:
        """The fleet with the parts of each class as one class again, and these names."""
        if names is None and not self.is_split:
            return self.fleet
        firsts = np.unique(self.parents, return_index=True)[1]
        counts = np.add.reduceat(self.fleet.counts, firsts)
        return self.fleet.select(firsts, counts, names)

    def to_table(self) -> "NetworkTable":
        """Plain values for TOML and JSON: ``concurrency``, and one of ``classes`` per class.

        >>> network = Network(Fleet([1.0, 4.0], counts=[3, 1]), [0.2, 0.4], 5)
        >>> network.to_table()["classes"][1]
        {'count': 1, 'service-rate': 4.0, 'routing': 0.4}
        >>> Network.from_table(network.to_table()) == network
        True
        """
        fleet, rows = self.fleet, []
        for k in range(fleet.classes):
            row: dict[str, object] = {} if fleet.names is None else {"name": fleet.names[k]}
            row["count"] = int(fleet.counts[k])
            row["service-rate"] = float(fleet.service_rates[k])
            row["routing"] = float(self.routing[k])
            for name, values in fleet.columns.items():
                row[name.replace("_", "-")] = float(values[k])
            if fleet.law is not None:
                row["law"] = fleet.law[k]
            if self.is_split:
                row["fleet-class"] = int(self.parents[k]) + 1
            rows.append(row)
        if self.server_rate is None:
            return {"concurrency": self.concurrency, "classes": rows}
        return {
            "concurrency": self.concurrency,
            "server-rate": self.server_rate,
            "classes": rows,
        }

    @classmethod
    def from_table(cls, table: Table | Mapping[str, object], where: str = "network") -> "Network":
        """The network that ``to_table`` wrote; what is missing or impossible raises ``InvalidFile``.

        Of a ``Table`` only the keys of the network are taken; other keys are left to the caller.
        """
        given = table if isinstance(table, Table) else Table(table, where)
        concurrency = given.take("concurrency", int)
        server_rate = given.take("server-rate", float, default=None)
        rows = given.tables("classes")
        if given is not table:
            given.close()
        if not rows:
            raise InvalidFile(
                f"{given.where}: 'classes' is empty: there must be a class of clients"
            )
        classes = [_read_class(row, place) for place, row in enumerate(rows)]
        columns: dict[str, Any] = {key: [values[key] for values in classes] for key in classes[0]}
        for key, without in {"name": "", "law": "exponential"}.items():
            # A class that says nothing is exponential by itself, whatever the others say.
            if any(value is not None for value in columns[key]):
                columns[key] = [without if value is None else value for value in columns[key]]
            else:
                columns[key] = None
        given_columns = {
            tuple(name for name in NUMBER_COLUMNS if c[name] is not None) for c in classes
        }
        if len(given_columns) > 1:
            raise InvalidFile(f"{given.where}: 'classes' must all have the same columns")
        with reading(given.where):
            fleet = Fleet(
                columns["service-rate"],
                columns["count"],
                columns["name"],
                law=columns["law"],
                **{name: columns[name] for name in given_columns.pop()},
            )
            return cls(
                fleet,
                columns["routing"],
                concurrency,
                parents=columns["fleet-class"],
                server_rate=server_rate,
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Network) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @property
    def _content(self) -> tuple[object, ...]:
        arrays = (self.routing.tobytes(), self.parents.tobytes())
        return (self.fleet, *arrays, self.concurrency, self.server_rate)

    def __repr__(self) -> str:
        kinds = f"{self.fleet.classes} class{'es' if self.fleet.classes > 1 else ''}"
        return f"Network({self.size} clients in {kinds}, concurrency {self.concurrency})"

    def _repr_html_(self) -> str:
        fleet = self.fleet
        rows = [
            (
                fleet.label(k),
                f"{fleet.counts[k]:,}",
                number(float(fleet.service_rates[k])),
                number(float(self.routing[k])),
                bar(float(fleet.counts[k] * self.routing[k])),
            )
            for k in range(fleet.classes)
        ]
        columns = ("class", "clients", "tasks per time unit", "probability each", "share of tasks")
        return table_html(repr(self), columns, rows)


def check_concurrency(value: int) -> int:
    """``value`` as an int of at least 1, or ``InvalidInput``."""
    if type(value) is int and 1 <= value <= MOST_TASKS:
        return value
    number = np.asarray(value)
    if number.ndim != 0 or number.dtype.kind not in "iuf" or not float(number).is_integer():
        raise InvalidInput(f"concurrency must be a whole number of tasks; it is {in_short(value)}")
    if number < 1:
        raise InvalidInput(
            f"concurrency must be at least 1 task in flight; it is {in_short(value)}"
        )
    if number > MOST_TASKS:
        raise InvalidInput(f"concurrency must be at most {MOST_TASKS}; it is {in_short(value)}")
    return int(number)


@lru_cache(maxsize=8)
def _own_parents(classes: int) -> IntArray:
    """Every class its own parent; planners make thousands of networks of one fleet."""
    of = np.arange(classes)
    of.setflags(write=False)
    return of


def _checked_parents(fleet: Fleet, parents: ArrayLike | None) -> IntArray:
    if parents is None:
        return _own_parents(fleet.classes)
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


def _read_class(row: Table, place: int) -> dict[str, Any]:
    values = {
        "name": row.take("name", str, default=None),
        "law": row.take("law", str, default=None),
        "count": row.take("count", int),
        "service-rate": row.take("service-rate", float),
        "routing": row.take("routing", float),
        "fleet-class": row.take("fleet-class", int, default=place + 1) - 1,
    }
    for name in NUMBER_COLUMNS:
        values[name] = row.take(name.replace("_", "-"), float, default=None)
    row.close()
    return values


def uniform_routing(fleet: Fleet) -> FloatArray:
    """The same probability for every client: ``1/n``.

    >>> uniform_routing(Fleet([1.0, 4.0])).tolist()
    [0.5, 0.5]
    """
    return np.full(fleet.classes, 1.0 / fleet.size)


def balanced_routing(fleet: Fleet) -> FloatArray:
    r"""Proportional to speed, :math:`p_i = \mu_i/|\mu|`: every client is equally loaded.

    Speed counts the time that a client is away.

    Paper: section 3.2 ("simple routing strategies").

    >>> balanced_routing(Fleet([1.0, 4.0])).tolist()
    [0.2, 0.8]
    """
    return _proportional_to(fleet, fleet.effective_rates)


def square_root_routing(fleet: Fleet) -> FloatArray:
    r"""Proportional to :math:`\sqrt{\mu_i}`, which minimises :math:`S_1/\lambda` at ``m = 1``
    where all clients count the same.

    Not in the paper; a strong baseline when time matters and constants are unknown.

    >>> square_root_routing(Fleet([1.0, 4.0])).round(6).tolist()
    [0.333333, 0.666667]
    """
    return _proportional_to(fleet, np.sqrt(fleet.effective_rates))


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


def _proportional_to(fleet: Fleet, weights: FloatArray) -> FloatArray:
    scaled = weights / weights.max()
    return np.asarray(scaled / (fleet.counts @ scaled), dtype=np.float64)

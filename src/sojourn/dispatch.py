r"""Dispatch policies: who gets the next task.

A policy is a small frozen value. What it decides by, it sees through a `View` of the clients; its
memory during one run is a `Chooser`. The same choosers serve the simulator's plain event loop and
the server of a deployment; the compiled kernel has forms of its own for the policies built in here,
which the tests hold against the plain loop.

===============  =================================================================================
policy           the next task goes to
===============  =================================================================================
``routed``       a client drawn from the routing, busy or not (the paper)
``never-queue``  the idle client that is furthest behind its target rate; nobody ever waits
``idle``         a client drawn uniformly among the idle ones
``shuffled``     clients in a fresh random order every n dispatches
``synchronous``  a cohort of m distinct clients, drawn when the last of the cohort before is done
===============  =================================================================================
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from sojourn.errors import InvalidInput
from sojourn.extensions import from_table, to_table
from sojourn.floor import duty_cycles
from sojourn.jackson import Analysis, analyze, link_times
from sojourn.jackson.steady_state import Engine
from sojourn.network import Fleet, Network
from sojourn.neverqueue import never_queue
from sojourn.types import FloatArray


class View(Protocol):
    """What a policy sees of the clients when it chooses; clients are numbered from 0 to n - 1."""

    @property
    def living(self) -> Sequence[int]:
        """The clients that may get a task, in rising order."""

    @property
    def concurrency(self) -> int:
        """How many tasks are in flight when all are, m."""

    @property
    def routing(self) -> FloatArray:
        """The routing probability of every client, shape ``(n,)``."""

    @property
    def rates(self) -> FloatArray:
        """The service rate of every client, known or estimated, in tasks per unit of time, ``(n,)``."""

    @property
    def now(self) -> float:
        """The time."""

    @property
    def under_way(self) -> int:
        """How many tasks are with clients now."""

    def tasks(self, client: int) -> int:
        """How many tasks a client has, in service or waiting."""


class Chooser:
    """The memory of a policy during one run; the base class remembers nothing."""

    def changed(self, view: View) -> None:
        """The living clients, the routing or the rates are no longer what they were."""

    def choose(self, view: View, finisher: int | None) -> int | None:
        """The client of the next task; ``None`` if it has to wait for a completion.

        ``finisher`` is the client whose completion makes the task due, if it is one's.
        """
        raise InvalidInput("this policy chooses nobody: its chooser has no 'choose'")

    def sent(self, client: int) -> None:
        """A task has gone to ``client``, chosen or, at the start, dealt."""

    def record(self) -> dict[str, Any]:
        """The memory as JSON values, for a checkpoint."""
        return {}

    def restore(self, record: Mapping[str, Any]) -> None:
        """Take up what `record` gave."""


class Policy:
    """Who gets the next task. Subclasses are frozen dataclasses whose fields are their knobs.

    ``routes`` says whether the routing decides, ``one_task_each`` whether a client never holds two
    tasks, so that more tasks than clients make no sense; ``deployable`` whether it can be followed
    one task at a time, with clients that come and go.
    """

    name: ClassVar[str]
    routes: ClassVar[bool] = False
    one_task_each: ClassVar[bool] = False
    deployable: ClassVar[bool] = True

    def chooser(self, random: np.random.Generator) -> Chooser:
        """The memory for one run, which draws from ``random``."""
        raise InvalidInput(f"the policy '{self.name}' has no chooser")

    def in_flight(self, network: Network) -> int:
        """How many tasks are in flight under this policy: m, unless it keeps some back."""
        return network.concurrency

    def shares(self, network: Network) -> FloatArray | None:
        """Every client's share of the completions in the long run, ``(n,)``; ``None``: unknown."""
        return None

    def analysis(self, network: Network, *, engine: Engine = "auto") -> Analysis | None:
        """The steady state in theory; ``None`` if there is no theory."""
        return None

    def check(self, network: Network, start: str) -> None:
        """Raise unless the policy can drive ``network`` from ``start``."""
        n, m = network.size, network.concurrency
        if self.one_task_each and self.in_flight(network) > n:
            raise InvalidInput(
                f"the policy '{self.name}' gives a client one task at a time, so concurrency must be "
                f"at most the number of clients, {n}; it is {m}"
            )
        if start == "stationary" and not self.routes:
            raise InvalidInput(
                f"the stationary start is known for the policy 'routed' only; for '{self.name}' "
                "start from 'spread' and leave out a warm-up"
            )


@dataclass(frozen=True)
class Routed(Policy):
    """To a client drawn from the routing, busy or not: the closed Jackson network of the paper."""

    name: ClassVar[str] = "routed"
    routes: ClassVar[bool] = True

    def chooser(self, random: np.random.Generator) -> Chooser:
        return _Drawn(random)

    def shares(self, network: Network) -> FloatArray:
        return network.client_routing

    def analysis(self, network: Network, *, engine: Engine = "auto") -> Analysis:
        return analyze(network, engine=engine)


@dataclass(frozen=True)
class NeverQueue(Policy):
    r"""To the idle client that is furthest behind its target rate, so that no task ever waits.

    Client i should be busy a fraction :math:`d_i` of the time (`sojourn.floor.duty_cycles`), that is
    complete :math:`r_i = d_i \mu_i` tasks per unit of time. If :math:`d_i = 1` it goes on as soon as
    it finishes. Otherwise its k-th task (from 0) is due at :math:`(k + 1/2)/r_i`, and among the idle
    clients the one with the earliest due task gets the next. With m >= n whoever finishes goes on at
    once. Whatever the law of the service times, the rates in the long run are :math:`r_i`: a client
    that fell behind in proportion to time would be first whenever it is idle, hence always busy and
    not behind.
    """

    name: ClassVar[str] = "never-queue"
    one_task_each: ClassVar[bool] = True

    def chooser(self, random: np.random.Generator) -> Chooser:
        return _FurthestBehind()

    def in_flight(self, network: Network) -> int:
        return min(network.concurrency, network.size)

    def shares(self, network: Network) -> FloatArray:
        return network.fleet.expand(never_queue(network).shares)

    def analysis(self, network: Network, *, engine: Engine = "auto") -> Analysis | None:
        stations = network.server_rate is not None or link_times(network.fleet) is not None
        return None if stations else never_queue(network)


@dataclass(frozen=True)
class Idle(Policy):
    """To a client drawn uniformly among the idle ones; needs m <= n."""

    name: ClassVar[str] = "idle"
    one_task_each: ClassVar[bool] = True

    def chooser(self, random: np.random.Generator) -> Chooser:
        return _AnyIdle(random)


@dataclass(frozen=True)
class Shuffled(Policy):
    """To clients in a fresh random order every n dispatches, busy or not."""

    name: ClassVar[str] = "shuffled"

    def chooser(self, random: np.random.Generator) -> Chooser:
        return _InTurn(random)

    def shares(self, network: Network) -> FloatArray:
        return np.full(network.size, 1.0 / network.size)


@dataclass(frozen=True)
class Synchronous(Policy):
    """To a cohort of m distinct clients, drawn when the last of the cohort before has finished."""

    name: ClassVar[str] = "synchronous"
    one_task_each: ClassVar[bool] = True
    deployable: ClassVar[bool] = False

    def chooser(self, random: np.random.Generator) -> Chooser:
        return _Cohort(random)

    def shares(self, network: Network) -> FloatArray:
        return np.full(network.size, 1.0 / network.size)

    def check(self, network: Network, start: str) -> None:
        super().check(network, start)
        if start == "given":
            raise InvalidInput("the policy 'synchronous' draws its first cohort; leave out start")


def intervals(fleet: Fleet, concurrency: int) -> FloatArray:
    """Time between due tasks of a client of each class under `NeverQueue`; 0 if it never rests.

    A client that should be busy all the time and had to keep to due times would rest whenever it
    happened to be ahead, and fall behind by the square root of time.

    >>> intervals(Fleet([0.01, 1.0], counts=[1, 2]), 2).tolist()
    [0.0, 2.0]
    """
    cycles = duty_cycles(fleet, concurrency)
    return np.where(cycles < 1.0, 1.0 / (cycles * fleet.service_rates), 0.0)


POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (Routed, NeverQueue, Idle, Shuffled, Synchronous)
}
"""Every policy by the name that configuration calls it."""


def as_policy(
    given: "str | Mapping[str, Any] | Policy", where: str = "policy", folder: Path | None = None
) -> Policy:
    """A policy as it is, or of its name (``module:name`` for one's own), or from its table.

    >>> as_policy("never-queue")
    NeverQueue()
    """
    if not isinstance(given, str | Mapping):
        policy: Any = given
    else:
        policy = from_table(given, POLICIES, "policy", where=where, folder=folder)
    if not isinstance(policy, Policy):
        raise InvalidInput(
            f"{where}: a policy must be an instance of sojourn.dispatch.Policy; it is {policy!r}"
        )
    return policy


def policy_to_table(policy: Policy) -> "str | dict[str, Any]":
    """What `as_policy` reads back: the name alone where there are no knobs.

    >>> policy_to_table(NeverQueue())
    'never-queue'
    """
    table = to_table(policy, POLICIES)
    return str(table["name"]) if len(table) == 1 else table


class _Drawn(Chooser):
    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._living: list[int] = []
        self._cumulative: list[float] = []

    def changed(self, view: View) -> None:
        self._living = list(view.living)
        self._cumulative = np.cumsum(view.routing[self._living]).tolist()

    def choose(self, view: View, finisher: int | None) -> int | None:
        if not self._living:
            return None
        drawn = self._random.random() * self._cumulative[-1]
        return self._living[min(bisect_right(self._cumulative, drawn), len(self._living) - 1)]


class _AnyIdle(Chooser):
    def __init__(self, random: np.random.Generator) -> None:
        self._random = random

    def choose(self, view: View, finisher: int | None) -> int | None:
        idle = [client for client in view.living if not view.tasks(client)]
        return idle[int(self._random.integers(len(idle)))] if idle else None


class _InTurn(Chooser):
    """Clients that are gone keep their turn, in case they come back before the order ends."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._order: list[int] = []

    def choose(self, view: View, finisher: int | None) -> int | None:
        living = set(view.living)
        if not living:
            return None
        for place in reversed(range(len(self._order))):
            if self._order[place] in living:
                return self._order.pop(place)
        self._order = self._random.permutation(sorted(living)).tolist()
        return self._order.pop()

    def record(self) -> dict[str, Any]:
        return {"order": self._order}

    def restore(self, record: Mapping[str, Any]) -> None:
        self._order = list(record["order"])


class _Cohort(Chooser):
    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._waiting: list[int] = []

    def choose(self, view: View, finisher: int | None) -> int | None:
        if not self._waiting and view.under_way == 0:
            size = min(view.concurrency, len(view.living))
            self._waiting = self._random.permutation(list(view.living))[:size].tolist()
        return self._waiting.pop() if self._waiting else None

    def record(self) -> dict[str, Any]:
        return {"waiting": self._waiting}

    def restore(self, record: Mapping[str, Any]) -> None:
        self._waiting = list(record["waiting"])


LARGEST_DEBT = 1.0
"""Tasks that a client may be ahead or behind when rates change; what it was before is forgotten."""


class _FurthestBehind(Chooser):
    """Due times, counted from the last change of the living clients or of the rates."""

    def __init__(self) -> None:
        self._since = 0.0
        self._intervals: dict[int, float] = {}
        self._sent: dict[int, int] = {}
        self._ahead: dict[int, float] = {}

    def changed(self, view: View) -> None:
        ahead = {}
        for client, interval in self._intervals.items():
            if interval == 0.0:
                continue
            behind = (view.now - self._since) / interval - self._sent[client]
            behind -= self._ahead[client]
            ahead[client] = -min(LARGEST_DEBT, max(-LARGEST_DEBT, behind))
        living = list(view.living)
        apart = intervals(Fleet(view.rates[living]), view.concurrency) if living else np.zeros(0)
        self._intervals = dict(zip(living, apart.tolist(), strict=True))
        self._ahead = {client: ahead.get(client, 0.0) for client in living}
        self._sent = dict.fromkeys(living, 0)
        self._since = view.now

    def choose(self, view: View, finisher: int | None) -> int | None:
        idle = [client for client in view.living if not view.tasks(client)]
        if not idle:
            return None
        return min(idle, key=lambda client: (self._due(client), client))

    def sent(self, client: int) -> None:
        self._sent[client] += 1

    def _due(self, client: int) -> float:
        number = self._sent[client] + 0.5 + self._ahead[client]
        return self._since + number * self._intervals[client]

    def record(self) -> dict[str, Any]:
        clients = sorted(self._intervals)
        return {
            "since": self._since,
            "clients": clients,
            "intervals": [self._intervals[c] for c in clients],
            "sent": [self._sent[c] for c in clients],
            "ahead": [self._ahead[c] for c in clients],
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        self._since = float(record["since"])
        clients = record["clients"]
        self._intervals = dict(zip(clients, record["intervals"], strict=True))
        self._sent = dict(zip(clients, record["sent"], strict=True))
        self._ahead = dict(zip(clients, record["ahead"], strict=True))

"""The policies: those that let a task be until it completes, then those that end some before."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from sojourn._support.checks import check_number, check_per_client, check_whole
from sojourn._support.extensions import from_table, per_client, real, to_table, whole
from sojourn.dispatch.policy import Chooser, Policy, View
from sojourn.errors import InvalidInput
from sojourn.fleet import Fleet, Network
from sojourn.theory.floor import duty_cycles, round_trip_rates
from sojourn.types import FloatArray

if TYPE_CHECKING:  # a server that chooses clients needs no theory, which is slow to import
    from sojourn.theory.jackson import Analysis


@dataclass(frozen=True)
class Routed(Policy):
    """To a client drawn from the routing, busy or not: the closed Jackson network of the paper."""

    name: ClassVar[str] = "routed"
    routes: ClassVar[bool] = True

    def chooser(self, random: np.random.Generator) -> Chooser:
        return _Drawn(random)

    def shares(self, network: Network) -> FloatArray:
        return network.client_routing

    def analysis(self, network: Network) -> "Analysis":
        from sojourn.theory.jackson import analyze

        return analyze(network)


@dataclass(frozen=True)
class NeverQueue(Policy):
    r"""To the idle client that is furthest behind its target rate, so that no task ever waits.

    Client i should be busy a fraction :math:`d_i` of the time (`sojourn.theory.floor.duty_cycles`),
    that is complete :math:`r_i = d_i \mu_i` tasks per time unit. If :math:`d_i = 1` it goes on as
    soon as it finishes. Otherwise its k-th task (from 0) is due at :math:`(k + 1/2)/r_i`, and among
    the idle clients the one with the earliest due task gets the next. With m >= n whoever finishes
    goes on at once. Whatever the law of the service times, the rates in the long run are
    :math:`r_i`: a client that fell behind in proportion to time would be first whenever it is idle,
    hence always busy and not behind. With links a client is busy from when a task is sent to it
    until the update is back, and :math:`1/\mu_i` includes the links and the time that work waits
    for a client; a server that takes time makes the rates unknown. Of intermittent clients only
    those that are present get a task, as a server sees who is connected; if nobody idle is, the
    task goes to the one who returns first.

    With ``patience`` :math:`a`, a task that has not completed after a mean task times of its client
    begins anew there, with the present weights: for times with heavy tails, if a fresh start draws a
    fresh time (`sojourn.theory.floor.best_patience`). In virtual time only.
    """

    name: ClassVar[str] = "never-queue"
    one_task_each: ClassVar[bool] = True
    patience: float | None = real(None, above=0.0)

    @property
    def deployable(self) -> bool:  # type: ignore[override]
        """Tasks cannot be called back from real clients."""
        return self.patience is None

    def chooser(self, random: np.random.Generator) -> Chooser:
        return FurthestBehind(math.inf if self.patience is None else self.patience)

    def in_flight(self, network: Network) -> int:
        return min(network.concurrency, network.size)

    def shares(self, network: Network) -> FloatArray | None:
        found = self.analysis(network)
        return None if found is None else network.fleet.expand(found.shares)

    def analysis(self, network: Network) -> "Analysis | None":
        from sojourn.theory.never_queue import never_queue

        if network.server_rate is not None or (self.patience is not None and network.has_delays):
            return None
        return never_queue(network, patience=self.patience)


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
    r"""To a cohort of m distinct clients, drawn when the cohort before is over.

    A cohort is over when its last client has finished; with ``over_selection`` :math:`o`, when
    :math:`\lceil m/(1+o) \rceil` of its clients have, so that m clients are asked for the results of fewer
    (Bonawitz et al., 2019); with a ``deadline``, at the latest that long after it began. The tasks of
    the others end without a result, and these clients may be in the next cohort. A round in which
    nobody meets the deadline changes nothing.
    """

    name: ClassVar[str] = "synchronous"
    one_task_each: ClassVar[bool] = True
    deployable: ClassVar[bool] = False
    over_selection: float | None = real(None, above=0.0)
    deadline: float | None = real(None, above=0.0)

    @property
    def drops_stragglers(self) -> bool:
        """Whether a cohort may be over before all its clients have finished."""
        return self.over_selection is not None or self.deadline is not None

    def chooser(self, random: np.random.Generator) -> Chooser:
        return _Cohort(random, self.over_selection or 0.0, self.deadline)

    def shares(self, network: Network) -> FloatArray | None:
        return None if self.drops_stragglers else np.full(network.size, 1.0 / network.size)

    def check(self, network: Network, start: str) -> None:
        super().check(network, start)
        if start == "given":
            raise InvalidInput("the policy 'synchronous' draws its first cohort; leave out start")


def intervals(fleet: Fleet, concurrency: int, work: ArrayLike = 1.0) -> FloatArray:
    """Time between due tasks of a client of each class under `NeverQueue`; 0 if it never rests.

    ``work`` is that of a task, one number or one per class (`sojourn.theory.floor`).

    A client that should be busy all the time and had to keep to due times would rest whenever it
    happened to be ahead, and fall behind by the square root of time.

    >>> intervals(Fleet([0.01, 1.0], counts=[1, 2]), 2).tolist()
    [0.0, 2.0]
    """
    cycles = duty_cycles(fleet, concurrency, work)
    return np.where(cycles < 1.0, 1.0 / (cycles * round_trip_rates(fleet, work)), 0.0)


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

    def record(self) -> dict[str, object]:
        return {"order": self._order}

    def restore(self, record: Mapping[str, Any]) -> None:
        self._order = list(record["order"])


class _Cohort(Chooser):
    def __init__(
        self,
        random: np.random.Generator,
        over_selection: float = 0.0,
        deadline: float | None = None,
    ) -> None:
        self._random = random
        self._waiting: list[int] = []
        self._over_selection = over_selection
        self._deadline = math.inf if deadline is None else deadline
        self._results = 0

    def cuts(self, view: View, finisher: int) -> Sequence[int]:
        self._results += 1
        if self._results < math.ceil(view.concurrency / (1.0 + self._over_selection)):
            return ()
        return [client for client in range(len(view.rates)) if view.tasks(client)]

    def deadline(self, client: int) -> float:
        return self._deadline

    def choose(self, view: View, finisher: int | None) -> int | None:
        if not self._waiting and view.under_way == 0:
            size = min(view.concurrency, len(view.living))
            self._waiting = self._random.permutation(list(view.living))[:size].tolist()
            self._results = 0
        return self._waiting.pop() if self._waiting else None


LARGEST_DEBT = 1.0
"""Tasks that a client may be ahead or behind when rates change; what it was before is forgotten."""


class FurthestBehind(Chooser):
    """Due times, counted from the last change of the living clients or of the rates."""

    def __init__(self, patience: float = math.inf) -> None:
        self._patience = patience
        self._limits: dict[int, float] = {}
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
        apart = np.zeros(0)
        if living:
            fleet = Fleet(view.rates[living], weight=view.client_weights[living])
            apart = intervals(fleet, view.concurrency)
        self._intervals = dict(zip(living, apart.tolist(), strict=True))
        self._ahead = {client: ahead.get(client, 0.0) for client in living}
        self._sent = dict.fromkeys(living, 0)
        self._since = view.now
        if self._patience < math.inf:
            self._limits = dict(enumerate((self._patience / view.rates).tolist()))

    def patience(self, client: int) -> float:
        return self._limits.get(client, math.inf)

    def choose(self, view: View, finisher: int | None) -> int | None:
        idle = [client for client in view.living if not view.tasks(client)]
        if not idle:
            return None
        return min(idle, key=lambda client: (self._due(client), client))

    def sent(self, client: int) -> None:
        self._sent[client] = self._sent.get(client, 0) + 1

    def _due(self, client: int) -> float:
        number = self._sent[client] + 0.5 + self._ahead[client]
        return self._since + number * self._intervals[client]

    def record(self) -> dict[str, object]:
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


Each = float | tuple[float, ...]
"""One number for all clients, or one for each."""


@dataclass(frozen=True)
class Restart(Policy):
    r"""As `NeverQueue`, but a running task begins anew as soon as it is R rounds stale.

    When a task of client i was sent R rounds ago (``max_staleness``; completions since, of anybody)
    and has not completed, its work is lost and the client starts over with the present weights. So
    every arrival has a relative delay below R: with the rule ``async-sgd`` or ``ringmaster``, which
    make a version of each, this is Ringmaster ASGD with stops of calculations (arXiv 2501.16168).
    Where times are memoryless a restart does not change how long a client still takes: with m >= n
    client i completes :math:`\mu_i` tasks per time unit, all of them fresh. A client whose tasks
    always take longer than R rounds is never heard.
    """

    name: ClassVar[str] = "restart"
    one_task_each: ClassVar[bool] = True
    deployable: ClassVar[bool] = False
    max_staleness: int = whole(10)

    def chooser(self, random: np.random.Generator) -> Chooser:
        return _Freshened(self.max_staleness)

    def in_flight(self, network: Network) -> int:
        return min(network.concurrency, network.size)


@dataclass(frozen=True)
class FirstOf(Policy):
    """A cohort of min(m, n) clients starts together; its first results end it for everybody.

    After ``first`` results the tasks still running are stopped and the next cohort starts at once:
    all clients if m >= n, others drawn at random each time. A client that is done waits, so that its
    result counts once: with the rule ``m-synchronous`` and the same ``first`` this is m-synchronous
    SGD that cancels the rest (arXiv 2602.03802). With ``again`` it goes on at the same weights and
    may give several of the results: with the rule ``rennala`` and ``batch-size`` equal to ``first``,
    Rennala SGD with stops (arXiv 2305.12387).
    """

    name: ClassVar[str] = "first-of"
    one_task_each: ClassVar[bool] = True
    deployable: ClassVar[bool] = False
    first: int = whole(2)
    again: bool = False

    def chooser(self, random: np.random.Generator) -> Chooser:
        return _Earliest(self.first, self.again, random)

    def in_flight(self, network: Network) -> int:
        return min(network.concurrency, network.size)

    def check(self, network: Network, start: str) -> None:
        super().check(network, start)
        cohort = self.in_flight(network)
        if self.first > cohort and not self.again:
            raise InvalidInput(
                f"the policy '{self.name}' waits for the first {self.first} results of {cohort} "
                "clients: give a smaller 'first' or more tasks, or set 'again' to let a client give "
                "several"
            )


class _Freshened(Chooser):
    """Chooses as `NeverQueue`; a restart is not a task more for the client."""

    def __init__(self, max_staleness: int) -> None:
        self._limit = max_staleness
        self._inner = FurthestBehind()
        self._rounds = 0
        self._running: dict[int, int] = {}
        self._sent: deque[tuple[int, int]] = deque()
        self._stopped: deque[int] = deque()
        self._restarting: int | None = None

    def changed(self, view: View) -> None:
        self._inner.changed(view)
        # Tasks of clients that left may be lost.
        self._running = {c: since for c, since in self._running.items() if view.tasks(c)}

    def stops(self, view: View, finisher: int) -> Sequence[int]:
        self._rounds += 1
        self._running.pop(finisher, None)
        while self._sent and self._rounds - self._sent[0][1] >= self._limit:
            client, since = self._sent.popleft()
            if self._running.get(client) == since:
                self._stopped.append(client)
        return tuple(self._stopped)

    def choose(self, view: View, finisher: int | None) -> int | None:
        if not self._stopped:
            return self._inner.choose(view, finisher)
        self._restarting = self._stopped.popleft()
        return self._restarting

    def sent(self, client: int) -> None:
        if client != self._restarting:
            self._inner.sent(client)
        self._restarting = None
        self._running[client] = self._rounds
        self._sent.append((client, self._rounds))


class _Earliest(Chooser):
    def __init__(self, first: int, again: bool, random: np.random.Generator) -> None:
        self._first, self._again, self._random = first, again, random
        self._results = 0
        self._waiting: deque[int] = deque()
        self._started = False

    def changed(self, view: View) -> None:
        if self._started and not view.under_way:  # the tasks of the whole cohort were lost
            self._begin(view)

    def sent(self, client: int) -> None:
        self._started = True

    def stops(self, view: View, finisher: int) -> Sequence[int]:
        self._results += 1
        if self._results < self._first:
            return ()
        self._begin(view)
        return [client for client in range(len(view.rates)) if view.tasks(client)]

    def _begin(self, view: View) -> None:
        self._results = 0
        cohort = list(view.living)
        if view.concurrency < len(cohort):
            cohort = self._random.permutation(cohort)[: view.concurrency].tolist()
        self._waiting = deque(cohort)

    def choose(self, view: View, finisher: int | None) -> int | None:
        if self._waiting:
            return self._waiting.popleft()
        return finisher if self._again else None


@dataclass(frozen=True)
class Attempts(Policy):
    """Client i makes ``attempts`` :math:`B_i` one after another; when all are over, all begin anew.

    At most m clients are at it at once. With ``patience`` an attempt is cut short after so many of
    the client's mean task times: then it is over, without a result. ``sending`` is a time that a
    client takes after its last attempt of the round. Each is one number for all clients, or a list
    with one for each; who has zero attempts is left out. With the rule ``mindflayer`` this is
    MindFlayer SGD (arXiv 2410.04285), with ``shadowheart`` Shadowheart SGD (arXiv 2402.04785).
    """

    name: ClassVar[str] = "attempts"
    one_task_each: ClassVar[bool] = True
    deployable: ClassVar[bool] = False
    attempts: int | tuple[int, ...] = per_client(1, partial(check_whole, least=0))
    patience: float | tuple[float, ...] | None = per_client(None, partial(check_number, above=0.0))
    sending: float | tuple[float, ...] = per_client(0.0, partial(check_number, least=0.0))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not np.any(self.attempts):
            raise InvalidInput("attempts must not all be 0: somebody has to make one")

    def chooser(self, random: np.random.Generator) -> Chooser:
        return _Quotas(self)

    def in_flight(self, network: Network) -> int:
        return min(network.concurrency, sum(count > 0 for count in self.quotas(network.size)))

    def first_clients(self, network: Network) -> Sequence[int]:
        able = [i for i, count in enumerate(self.quotas(network.size)) if count]
        return able[: self.in_flight(network)]

    def quotas(self, clients: int) -> list[int]:
        """The attempts of every client in a round."""
        return [int(count) for count in _each(self.attempts, clients)]

    def check(self, network: Network, start: str) -> None:
        super().check(network, start)
        for name in ("attempts", "patience", "sending"):
            whose = f"{name} of the policy '{self.name}'"
            check_per_client(whose, getattr(self, name), network.size)
        if start == "given":
            raise InvalidInput(f"the policy '{self.name}' deals the first tasks; leave out start")


def _each(given: Each, clients: int) -> tuple[float, ...]:
    return given if isinstance(given, tuple) else (given,) * clients


class _Quotas(Chooser):
    def __init__(self, policy: Attempts) -> None:
        self._policy = policy
        self._quota: list[int] = []
        self._left: list[int] = []
        self._limit: list[float] = []
        self._sending: tuple[float, ...] = ()
        self._waiting: deque[int] = deque()
        self._open = 0

    def changed(self, view: View) -> None:
        policy, n = self._policy, len(view.rates)
        patience = math.inf if policy.patience is None else policy.patience
        means = (1.0 / view.rates).tolist()
        self._limit = [p * mean for p, mean in zip(_each(patience, n), means, strict=True)]
        self._sending = _each(policy.sending, n)
        first = not self._quota
        if first:
            self._quota = policy.quotas(n)
        if first or not view.under_way:  # the last tasks of a round were lost: it begins anew
            self._begin()

    def holds(self, client: int, time: float) -> tuple[float, bool]:
        limit = self._limit[client]
        afterwards = self._sending[client] if self._left[client] == 1 else 0.0
        return min(time, limit) + afterwards, time > limit

    def stops(self, view: View, finisher: int) -> Sequence[int]:
        self._open -= 1
        if self._open == 0:
            self._begin()
        return ()

    def choose(self, view: View, finisher: int | None) -> int | None:
        if finisher is not None and self._left[finisher] and not view.tasks(finisher):
            return finisher
        while self._waiting and self._left[self._waiting[0]] < self._quota[self._waiting[0]]:
            self._waiting.popleft()
        return self._waiting[0] if self._waiting else None

    def sent(self, client: int) -> None:
        self._left[client] -= 1

    def _begin(self) -> None:
        self._left = list(self._quota)
        self._waiting = deque(client for client, count in enumerate(self._quota) if count)
        self._open = sum(self._quota)


POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (Routed, NeverQueue, Idle, Shuffled, Synchronous, Restart, FirstOf, Attempts)
}
"""Every policy by the name that configuration calls it."""


def as_policy(
    given: str | Mapping[str, object] | Policy, where: str = "policy", folder: Path | None = None
) -> Policy:
    """A policy as it is, or of its name (``module:name`` for one's own), or from its table.

    >>> as_policy("never-queue"), as_policy({"name": "restart", "max-staleness": 5})
    (NeverQueue(patience=None), Restart(max_staleness=5))
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


def policy_to_table(policy: Policy) -> str | dict[str, object]:
    """What `as_policy` reads back: the name alone where there are no parameters.

    >>> policy_to_table(NeverQueue())
    'never-queue'
    """
    table = to_table(policy, POLICIES)
    return str(table["name"]) if len(table) == 1 else table

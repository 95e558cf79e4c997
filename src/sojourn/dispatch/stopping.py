"""Policies that end tasks which have not completed: for simulation, as Flower cannot do it."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sojourn._support.checks import check_number, check_whole
from sojourn._support.extensions import whole
from sojourn.dispatch.policies import FurthestBehind
from sojourn.dispatch.policy import Chooser, Policy, View
from sojourn.errors import InvalidInput
from sojourn.fleet import Network

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
    with one for each; who has zero attempts is left out. With the rule ``mindflayer`` this is MindFlayer
    SGD (arXiv 2410.04285), with ``shadowheart`` Shadowheart SGD (arXiv 2402.04785).
    """

    name: ClassVar[str] = "attempts"
    one_task_each: ClassVar[bool] = True
    deployable: ClassVar[bool] = False
    attempts: int | tuple[int, ...] = 1
    patience: float | tuple[float, ...] | None = None
    sending: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = self.attempts if isinstance(self.attempts, Sequence) else (self.attempts,)
        if not sum([check_whole("attempts", count, least=0) for count in wanted]):
            raise InvalidInput("attempts must not all be 0: somebody has to make one")
        for name in ("attempts", "patience", "sending"):
            given = getattr(self, name)
            if isinstance(given, Sequence):
                object.__setattr__(self, name, tuple(given))
        patience = () if self.patience is None else _listed(self.patience)
        for longest in patience:
            check_number("patience", longest, above=0.0)
        for time in _listed(self.sending):
            check_number("sending", time, least=0.0)

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
            given = getattr(self, name)
            if isinstance(given, tuple) and len(given) != network.size:
                raise InvalidInput(
                    f"{name} of the policy '{self.name}' must be one number, or one for each of the "
                    f"{network.size} clients; there are {len(given)}"
                )
        if start == "given":
            raise InvalidInput(f"the policy '{self.name}' deals the first tasks; leave out start")


def _listed(given: Each) -> tuple[float, ...]:
    return given if isinstance(given, tuple) else (given,)


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

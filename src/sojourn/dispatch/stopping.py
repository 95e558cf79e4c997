"""Policies that stop tasks which have not completed: for simulation, as Flower cannot do it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sojourn.checks import check_whole
from sojourn.dispatch.policies import FurthestBehind
from sojourn.dispatch.policy import Chooser, Policy, View
from sojourn.errors import InvalidInput
from sojourn.network import Network


@dataclass(frozen=True)
class Restart(Policy):
    r"""As `NeverQueue`, but a running task begins anew as soon as it is R rounds stale.

    When a task of client i was sent R rounds ago (``max_staleness``; completions since, of anybody)
    and has not completed, its work is lost and the client starts over with the present weights. So
    every arrival has a relative delay below R: with the rule ``async-sgd`` or ``ringmaster``, which
    make a version of each, this is Ringmaster ASGD with stops of calculations (arXiv 2501.16168).
    Where times are memoryless a restart does not change how long a client still takes: with m >= n
    client i completes :math:`\mu_i` tasks per unit of time, all of them fresh. A client whose tasks
    always take longer than R rounds is never heard.
    """

    name: ClassVar[str] = "restart"
    one_task_each: ClassVar[bool] = True
    deployable: ClassVar[bool] = False
    max_staleness: int = 10

    def __post_init__(self) -> None:
        check_whole("max_staleness", self.max_staleness)

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
    first: int = 2
    again: bool = False

    def __post_init__(self) -> None:
        check_whole("first", self.first)

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

    def stops(self, view: View, finisher: int) -> Sequence[int]:
        self._rounds += 1
        del self._running[finisher]
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

    def stops(self, view: View, finisher: int) -> Sequence[int]:
        self._results += 1
        if self._results < self._first:
            return ()
        self._results = 0
        cohort = list(view.living)
        if view.concurrency < len(cohort):
            cohort = self._random.permutation(cohort)[: view.concurrency].tolist()
        self._waiting.extend(cohort)
        return [client for client in view.living if view.tasks(client)]

    def choose(self, view: View, finisher: int | None) -> int | None:
        if self._waiting:
            return self._waiting.popleft()
        return finisher if self._again else None

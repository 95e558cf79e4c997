"""The policy of rounds in which every client makes a number of attempts."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sojourn.checks import check_number, check_whole
from sojourn.dispatch.policy import Chooser, Policy, View
from sojourn.errors import InvalidInput
from sojourn.network import Network

Each = float | tuple[float, ...]
"""One number for all clients, or one for each."""


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
        if not self._quota:
            self._quota = policy.quotas(n)
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

"""What a policy is: what it sees, what it remembers, what it decides."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from sojourn._support.extensions import Checked
from sojourn.errors import InvalidInput
from sojourn.fleet import Network
from sojourn.types import FloatArray

if TYPE_CHECKING:
    from sojourn.theory.jackson import Analysis


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
        """The service rate of every client, known or estimated, in tasks per time unit, ``(n,)``."""

    @property
    def client_weights(self) -> FloatArray:
        """How much every client counts, 1 on average (``Fleet.relative_weights``), shape ``(n,)``."""

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

    def stops(self, view: View, finisher: int) -> Sequence[int]:
        """The clients whose running task is to be stopped now that ``finisher`` has completed one.

        Asked once per completion, before `choose`. What a stopped task had done is lost and never
        completes; the task is the server's again and waits for `choose`, which restarts the client
        if it names the same one: with the present weights, and all the work to do again.
        """
        return ()

    def cuts(self, view: View, finisher: int) -> Sequence[int]:
        """The clients whose task ends now, without a result, because of the result of ``finisher``.

        Asked once per result, in virtual time only. Each of these tasks makes a round without a result.
        """
        return ()

    def deadline(self, client: int) -> float:
        """After what time a task of ``client`` ends without a result, wherever it is.

        Asked when it is sent, in virtual time only.
        """
        return math.inf

    def choose(self, view: View, finisher: int | None) -> int | None:
        """The client of the next task; ``None`` if it has to wait for a completion.

        ``finisher`` is the client whose completion makes the task due, if it is one's.
        """
        raise InvalidInput("this policy chooses nobody: its chooser has no 'choose'")

    def holds(self, client: int, time: float) -> tuple[float, bool]:
        """How long a task occupies ``client`` that takes it ``time``, and whether it is cut short.

        A task that is cut short has no result. Asked when service begins, in virtual time only.
        """
        return time, False

    def patience(self, client: int) -> float:
        """After what time of service a task of ``client`` begins anew there, with the present weights.

        What it had done is lost, and a fresh time is drawn. Asked when service begins, in virtual
        time only.
        """
        return math.inf

    def sent(self, client: int) -> None:
        """A task has gone to ``client``, chosen or, at the start, dealt."""

    def record(self) -> dict[str, object]:
        """The memory as JSON values, for a checkpoint."""
        return {}

    def restore(self, record: Mapping[str, Any]) -> None:
        """Take up what `record` gave."""


class Policy(Checked):
    """Who gets the next task. Subclasses are frozen dataclasses whose fields are their parameters.

    ``routes`` says whether the routing decides, ``one_task_each`` whether a client never holds two
    tasks, so that more tasks than clients make no sense; ``deployable`` whether it can be followed
    one task at a time, with clients that join and leave and tasks that cannot be called back.
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

    def first_clients(self, network: Network) -> Sequence[int] | None:
        """The clients of the first tasks; ``None``: as the start says."""
        return None

    def shares(self, network: Network) -> FloatArray | None:
        """Every client's share of the completions in the long run, ``(n,)``; ``None``: unknown."""
        return None

    def analysis(self, network: Network) -> "Analysis | None":
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


def not_deployable(policy: Policy) -> str | None:
    """Why a real server cannot follow ``policy``; ``None`` if it can.

    >>> from sojourn.dispatch import Routed
    >>> not_deployable(Routed())
    """
    chooser = policy.chooser(np.random.default_rng(0)) if policy.deployable else None
    if chooser is None or type(chooser).stops is not Chooser.stops:
        return (
            f"the policy '{policy.name}' waits for whole cohorts or stops tasks, which the dispatcher "
            "does not do. Choose a rule or a policy that sends one task at a time and lets it "
            "complete, such as 'never-queue'."
        )
    return None

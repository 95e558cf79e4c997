"""What the dispatcher knows about each client."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sojourn.deploy.rates import RateEstimate
from sojourn.deploy.tasks import Task
from sojourn.errors import InvalidInput
from sojourn.types import FloatArray

Status = Literal["away", "alive", "overdue", "aside", "quarantined"]

FIRST_RETRY_SECONDS = 30.0
LONGEST_RETRY_SECONDS = 600.0

UNKNOWN_RATE = 0.1
"""Tasks a second, where nobody has said better; it is soon overruled."""

KNOWN_WEIGHT, UNKNOWN_WEIGHT = 1.0, 0.1


@dataclass(slots=True)
class Client:
    """A client's queue, its messages, and how far it is trusted.

    ``queue`` holds tasks routed to it and not yet sent; ``out`` the numbers of the tasks sent and
    not answered, oldest first, *including* those since taken away from it: it is still working on
    them, and may answer late; ``taken`` holds the round that each of those is about. The oldest has
    been running since ``started``.

    *away* clients never joined or have left; *overdue* ones missed a deadline and come back when
    they answer anything; those *aside* failed too often in a row and are asked again later;
    *quarantined* ones get nothing until their operator lets them out.
    """

    number: int
    name: str
    estimate: RateEstimate
    status: Status = "away"
    queue: deque[Task] = field(default_factory=deque)
    out: deque[int] = field(default_factory=deque)
    taken: dict[int, int] = field(default_factory=dict)
    started: float | None = None
    ordinal: int = 0
    failures: int = 0
    used: int = 0
    refused: int = 0
    retry_at: float = 0.0
    retry_seconds: float = FIRST_RETRY_SECONDS

    @property
    def alive(self) -> bool:
        """Whether tasks may be routed to it."""
        return self.status == "alive"

    def running(self, now: float) -> float:
        """How long the task it is working on has been running."""
        return 0.0 if self.started is None else max(0.0, now - self.started)

    def sent(self, number: int, now: float) -> None:
        """Task ``number`` is on its way."""
        if not self.out:
            self.started = now
        self.out.append(number)

    def answered(self, number: int, now: float) -> float | None:
        """Task ``number`` is off its hands; the seconds it worked on it, if that is known."""
        in_order = bool(self.out) and self.out[0] == number
        seconds = self.running(now) if in_order and self.started is not None else None
        self.out.remove(number)
        self.taken.pop(number, None)
        if in_order:
            self.started = now if self.out else None
        return seconds

    def learn(self, seconds: float) -> str | None:
        """Take in how long a task took; what is to be said if its speed has changed."""
        before = self.estimate.mean_seconds
        if not self.estimate.observe(seconds):
            return None
        after = self.estimate.mean_seconds
        return f"a task takes {after:.3g} s, where it took {before:.3g} s"

    def disconnected(self) -> list[int]:
        """Whatever was sent will not be answered; the numbers of those tasks, oldest first."""
        numbers = list(self.out)
        self.out.clear()
        self.taken.clear()
        self.started = None
        return numbers

    def retry_later(self, now: float) -> None:
        """Ask again after a while, twice as long each time."""
        self.retry_at = now + self.retry_seconds
        self.retry_seconds = min(2.0 * self.retry_seconds, LONGEST_RETRY_SECONDS)


def new_clients(
    count: int, service_rates: Sequence[float] | FloatArray | None, names: Sequence[str] | None
) -> list[Client]:
    """Clients that have not joined; ``service_rates``, if known, is where estimation starts."""
    known = service_rates is not None
    rates = np.asarray(service_rates) if known else np.full(count, UNKNOWN_RATE)
    weight = KNOWN_WEIGHT if known else UNKNOWN_WEIGHT
    labels = [f"client {i}" for i in range(count)] if names is None else list(names)
    if rates.shape != (count,) or len(labels) != count:
        raise InvalidInput(f"routing is over {count} clients; service rates or names are not")
    return [
        Client(i, labels[i], RateEstimate.prior(float(rates[i]), weight=weight))
        for i in range(count)
    ]

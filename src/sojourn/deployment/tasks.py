"""What the dispatcher deals in: tasks, the clients that have them, and the weights they carry."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np

from sojourn.deployment.speeds import RateEstimate
from sojourn.errors import InvalidInput
from sojourn.types import FloatArray, Vector

Status = Literal["away", "alive", "overdue", "aside", "quarantined"]

EventKind = Literal[
    "joined",
    "left",
    "overdue",
    "aside",
    "returned",
    "failed",
    "refused",
    "late",
    "routing",
    "quarantined",
    "note",
]

FIRST_RETRY_SECONDS = 30.0
LONGEST_RETRY_SECONDS = 600.0

UNKNOWN_RATE = 0.1
"""Tasks a second, where nobody has said better; it is soon overruled."""

KNOWN_WEIGHT, UNKNOWN_WEIGHT = 1.0, 0.1
"""Tasks that the first rate of a client weighs: a guess gives way to the first task that is seen."""


@dataclass(frozen=True, slots=True)
class Task:
    """One request to one client, with everything as it was when it was routed.

    ``version`` is the model version whose weights it carries, ``dispatched`` the number of rounds
    completed by then, ``probability`` the routing probability p of the client and ``clients`` the
    number n of clients that p was over; its update is divided by ``divisor``. ``ordinal`` counts
    the tasks routed to this client.
    """

    number: int
    client: int
    ordinal: int
    version: int
    dispatched: int
    probability: float
    clients: int
    divisor: float


@dataclass(frozen=True, slots=True)
class Use:
    """An update that came to the rule: which task's, how stale it was, how long the client took.

    ``index`` counts applied updates from 0; it is ``None`` if the rule dropped this one, or a screen
    held it back. ``staleness`` is in model versions; ``service_seconds`` is ``None`` if replies came
    out of order and the beginning of the work is not known. ``scale`` is what a screen multiplied
    the update with.
    """

    task: Task
    index: int | None
    staleness: int
    service_seconds: float | None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something a person may want to read in the log."""

    kind: EventKind
    client: int | None
    detail: str


@dataclass(slots=True)
class Actions:
    """What an event asks of the transport: tasks to send, clients to ask whether they live."""

    send: list[Task] = field(default_factory=list)
    probe: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    used: Use | None = None
    dropped: Use | None = None


@dataclass(slots=True)
class Counts:
    """Where every task that was ever routed has gone.

    ``routed == used + dropped + refused + lost + withdrawn + (tasks in flight)`` at all times.
    ``used`` updates went into the model; ``dropped`` ones were not wanted by the rule, being too
    stale for it, say; ``refused`` ones were answers that were no good; ``lost`` tasks were taken
    from a client that failed, left or was overdue, replaced by another, and not answered since;
    ``withdrawn`` ones were taken from such a client before they were sent to it, so that no work
    was lost. ``late`` counts replies to tasks no longer in flight: of one that was taken from its
    client the first counts as used, dropped or refused as well, and the task is not lost any more.
    ``unknown`` counts replies that name a task that was never sent, or another client's. Neither
    changes the tasks in flight.
    """

    routed: int = 0
    used: int = 0
    dropped: int = 0
    refused: int = 0
    lost: int = 0
    withdrawn: int = 0
    late: int = 0
    unknown: int = 0

    @property
    def completed(self) -> int:
        """Rounds: the tasks whose updates came to the rule, whether it used them or not."""
        return self.used + self.dropped

    def to_dict(self) -> dict[str, int]:
        """Plain numbers, for a checkpoint."""
        return asdict(self)


@dataclass(slots=True)
class Client:
    """A client's queue, its messages, and how far it is trusted.

    ``queue`` holds tasks routed to it and not yet sent; ``out`` the numbers of the tasks sent and
    not answered, oldest first, *including* those since taken away from it: it is still working on
    them, and may answer late; ``taken`` holds those tasks, each with the weights it was sent with.
    The oldest has been running since ``started``. ``gradients`` counts the local steps of its answers.

    A client that is not ``listed`` is a place for a device that the fleet does not name; it is
    ``vacant`` until one takes it. The client was last seen to leave at ``left_at``.

    *away* clients never joined or have left; *overdue* ones missed a deadline and come back when
    they answer anything; those *aside* failed too often in a row and are asked again later;
    *quarantined* ones get nothing until the operator releases them.
    """

    number: int
    name: str
    estimate: RateEstimate
    listed: bool = True
    vacant: bool = False
    left_at: float = math.inf
    status: Status = "away"
    queue: deque[Task] = field(default_factory=deque)
    out: deque[int] = field(default_factory=deque)
    taken: dict[int, Task] = field(default_factory=dict)
    started: float | None = None
    ordinal: int = 0
    failures: int = 0
    used: int = 0
    refused: int = 0
    answers: int = 0
    gradients: int = 0
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

    def retry_later(self, now: float) -> None:
        """Ask again after a while, twice as long each time."""
        self.retry_at = now + self.retry_seconds
        self.retry_seconds = min(2.0 * self.retry_seconds, LONGEST_RETRY_SECONDS)


def new_clients(
    count: int,
    service_rates: Sequence[float] | FloatArray | None,
    names: Sequence[str] | None,
    *,
    listed: int,
) -> list[Client]:
    """Clients that have not joined; ``service_rates``, if known, is where estimation starts.

    Those after the first ``listed`` are places for devices that the fleet does not name.
    """
    known = service_rates is not None
    rates = np.asarray(service_rates) if known else np.full(count, UNKNOWN_RATE)
    weight = KNOWN_WEIGHT if known else UNKNOWN_WEIGHT
    labels = [f"client {i}" for i in range(count)] if names is None else list(names)
    if rates.shape != (count,) or len(labels) != count:
        raise InvalidInput(f"routing is over {count} clients; service rates or names are not")
    return [
        Client(
            i,
            labels[i],
            RateEstimate.prior(float(rates[i]), weight=weight),
            listed=i < listed,
            vacant=i >= listed,
        )
        for i in range(count)
    ]


class Versions:
    """Weights by version number, each held exactly as long as a task in flight needs it.

    >>> import numpy as np
    >>> versions = Versions()
    >>> versions.retain(0, np.ones(2)), versions.retain(0, np.ones(2))
    (None, None)
    >>> versions.release(0), versions[0].tolist(), versions.release(0), len(versions)
    (None, [1.0, 1.0], None, 0)
    """

    def __init__(self) -> None:
        self._weights: dict[int, Vector] = {}
        self._uses: dict[int, int] = {}

    def retain(self, version: int, weights: Vector) -> None:
        """Another task needs ``weights``, which are those of ``version``."""
        self._weights.setdefault(version, weights)
        self._uses[version] = self._uses.get(version, 0) + 1

    def release(self, version: int) -> None:
        """A task that needed ``version`` is over."""
        self._uses[version] -= 1
        if not self._uses[version]:
            del self._uses[version], self._weights[version]

    def __getitem__(self, version: int) -> Vector:
        return self._weights[version]

    def __len__(self) -> int:
        return len(self._weights)

    def uses(self) -> dict[int, int]:
        """How many tasks need each version."""
        return dict(self._uses)

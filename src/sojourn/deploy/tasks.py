"""What goes into and out of the dispatcher: tasks, what to do next, and the counts."""

from dataclasses import asdict, dataclass, field
from typing import Literal

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
]


@dataclass(frozen=True, slots=True)
class Task:
    """One request to one client, with everything as it was when it was routed.

    ``version`` is the model version whose weights it carries, ``dispatched`` the number of rounds
    completed by then, ``probability`` the routing probability p of the client and ``clients`` the
    number n of clients that p was over; its update is divided by ``divisor``. ``ordinal`` counts the tasks routed to this client.
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
    """An update that was applied: which task's, how stale it was, how long the client took.

    ``index`` counts applied updates from 0; ``staleness`` is in model versions; ``service_seconds``
    is ``None`` if replies came out of order and the beginning of the work is not known. ``scale``
    is what a screen multiplied it with.
    """

    task: Task
    index: int
    staleness: int
    service_seconds: float | None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Drop:
    """An update that the rule dropped, or a screen held back; the fields are those of `Use`."""

    task: Task
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
    dropped: Drop | None = None


@dataclass(slots=True)
class Counts:
    """Where every task that was ever routed has gone.

    ``routed == used + dropped + refused + lost + (tasks in flight)`` at all times. ``used`` updates
    went into the model; ``dropped`` ones were not wanted by the rule, being too stale for it, say;
    ``refused`` ones were answers that were no good; ``lost`` tasks were taken from a client that
    failed, left or was overdue, and routed anew. ``late`` counts replies to tasks no
    longer in flight (lost, or answered before) and ``unknown`` replies that name a task that was
    never sent, or another client's: neither changes the tasks in flight.
    """

    routed: int = 0
    used: int = 0
    dropped: int = 0
    refused: int = 0
    lost: int = 0
    late: int = 0
    unknown: int = 0

    @property
    def completed(self) -> int:
        """Rounds: the tasks whose updates came to the rule, whether it used them or not."""
        return self.used + self.dropped

    def to_dict(self) -> dict[str, int]:
        """Plain numbers, for a checkpoint."""
        return asdict(self)

"""How a server reaches its clients: a protocol, and the values that cross it.

A transport connects *nodes*, which join and leave. Which client a node is, the node says itself when it
is asked. Messages have names; whatever is received says which message it answers.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.deployment.tasks import EventKind, Task
from sojourn.rules import Rule, local_learning_rate, rule_to_table
from sojourn.rules.state import client_part, steps_of
from sojourn.types import Vector

Wire: TypeAlias = Literal["full", "bfloat16"]
"""How numbers travel: as they are, or in half the bytes of single precision."""


def to_bfloat16(values: Vector) -> NDArray[np.uint16]:
    """The upper halves of single precision numbers, rounded to nearest, ties to even.

    >>> from_bfloat16(to_bfloat16(np.array([1.0, 3.14159, -0.001]))).tolist()
    [1.0, 3.140625, -0.00099945068359375]
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded.astype(np.uint16))


def from_bfloat16(halves: NDArray[np.uint16]) -> Vector:
    """Those numbers in single precision."""
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


@dataclass(frozen=True, slots=True)
class Request:
    """What client number ``client`` is asked: which batch, and whether for a gradient or local steps.

    With ``local_epochs`` the client takes as many steps as so many passes over its samples need, in
    place of ``local_steps``. ``rule`` is the rule's table as JSON, where the rule has a part of its own
    at the client (`sojourn.rules.state.ClientPart`).
    ``wire`` says how weights and update travel.
    """

    number: int
    client: int
    ordinal: int
    clients: int
    seed: int
    sends: str
    local_steps: int
    local_learning_rate: float
    proximal: float
    local_epochs: float = 0.0
    rule: str = ""
    wire: Wire = "full"

    @classmethod
    def of(
        cls,
        task: Task,
        rule: Rule,
        *,
        clients: int,
        seed: int,
        learning_rate: float,
        local_epochs: float | None = None,
        wire: Wire = "full",
    ) -> "Request":
        """The request for ``task`` under ``rule``."""
        return cls(
            number=task.number,
            client=task.client,
            ordinal=task.ordinal,
            clients=clients,
            seed=seed,
            sends=rule.sends,
            local_steps=steps_of(rule, task.client),
            local_learning_rate=local_learning_rate(rule, learning_rate),
            proximal=rule.proximal,
            local_epochs=local_epochs or 0.0,
            rule=json.dumps(rule_to_table(rule)) if client_part(rule) else "",
            wire=wire,
        )


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """Asks the client at ``node`` for an update of ``weights``; of no use after ``seconds``."""

    node: int
    seconds: float
    request: Request
    weights: Vector


@dataclass(frozen=True, slots=True)
class Question:
    """Asks ``node`` which client it is; of no use after ``seconds``."""

    node: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply to a task; nothing about it is trusted.

    ``claimed`` is the task that it names itself and ``update`` what it brings, or why that cannot be
    read. ``seconds`` is how long the client says that it worked on it. What is missing is ``None``.
    """

    message: str
    node: int
    update: Vector | str
    claimed: int | None = None
    loss: float | None = None
    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """A node says which client it is: by number, or by the name that the fleet gives it.

    ``None`` if what it says cannot be read. ``version`` is that of Sojourn there; ``None`` if it
    does not say.
    """

    message: str
    node: int
    client: int | str | None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A message will not be answered; ``gone`` if its node is not there any more."""

    message: str
    node: int
    reason: str
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about the transport itself that a person may want to read in the log."""

    kind: EventKind
    detail: str


Outgoing: TypeAlias = TaskMessage | Question
Received: TypeAlias = Answer | Identity | Failure | Notice


class Transport(Protocol):
    """Connects the server to its nodes. None of its methods raises for what a client does."""

    def nodes(self) -> Collection[int]:
        """The nodes that are connected now."""

    def send(self, messages: Sequence[Outgoing]) -> Sequence[str]:
        """Send messages together; their names, in the same order.

        A message that cannot be delivered is answered by a `Failure`.
        """

    def receive(self, waiting: Collection[str], like: Vector) -> Iterator[Received]:
        """What has come for messages that the server is ``waiting`` for, and what nobody waits for.

        Does not block. An update has as many numbers as ``like``, and of the same type; the values of
        ``like`` mean nothing. The server may send, or stop waiting, between two that are received.
        """

    def wait(self, most: float, expected: float) -> None:
        """Wait until something may have come, at most ``most`` seconds.

        The next reply is ``expected`` after so many seconds; a transport that hears of replies by
        asking asks the less often the longer that is.
        """

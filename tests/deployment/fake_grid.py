"""Flower's grid without processes: client apps run in place, on a virtual clock."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Tamper = Callable[[Message, Message], Message]


@dataclass
class Node:
    """A client's node: serves messages first in first out, each in ``seconds``.

    With ``random`` the times are exponential, of mean ``seconds``.
    """

    client: int
    app: ClientApp
    seconds: float
    tamper: Tamper | None = None
    fails: bool = False
    cannot_start: bool = False
    repeats: bool = False
    hangs: bool = False
    busy_until: float = 0.0
    random: np.random.Generator | None = None
    served: list[str] = field(default_factory=list)

    def service_seconds(self) -> float:
        """How long the next task takes."""
        if self.random is None:
            return self.seconds
        return float(self.random.exponential(self.seconds))


class FakeGrid(Grid):
    """Delivers messages to nodes; ``now`` advances when the server sleeps."""

    def __init__(self) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.now = 0.0
        self.nodes: dict[int, Node] = {}
        self.pending: dict[str, tuple[int, Message, float]] = {}
        self.pushed = self.questions = 0
        self.echoes: list[Message] = []
        self.at: list[tuple[float, Callable[[], None]]] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        while self.at and self.at[0][0] <= self.now:
            self.at.pop(0)[1]()

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], **kwargs: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        taken = []
        for message in messages:
            node_id = message.metadata.dst_node_id
            if node_id not in self.nodes:
                taken.append("")
                continue
            node = self.nodes[node_id]
            self.pushed += 1
            name = f"message-{self.pushed}"
            message.metadata.__dict__["_message_id"] = name
            training = message.metadata.message_type == "train"
            self.questions += not training
            takes = node.service_seconds() if training else 0.1
            node.busy_until = max(self.now, node.busy_until) + takes
            self.pending[name] = node_id, message, node.busy_until
            taken.append(name)
        return taken

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies, self.echoes = self.echoes, []
        for name in message_ids:
            node_id, message, due = self.pending[name]
            if node_id not in self.nodes:
                replies.append(Message(Error(5, "node unavailable"), reply_to=message))
                del self.pending[name]
            elif due <= self.now and not self.nodes[node_id].hangs:
                reply = self._serve(self.nodes[node_id], node_id, message)
                copies = 2 if self.nodes[node_id].repeats else 1
                replies += [reply] * copies
                self.echoes += [reply] * (copies - 1)
                del self.pending[name]
        return replies

    @staticmethod
    def _serve(node: Node, node_id: int, message: Message) -> Message:
        training = message.metadata.message_type == "train"
        if node.cannot_start or (training and node.fails):
            return Message(Error(2, "the client raised an exception"), reply_to=message)
        context = Context(1, node_id, {"partition-id": node.client}, RecordDict(), {})
        reply = node.app(message, context)
        node.served.append(message.metadata.group_id)
        return node.tamper(message, reply) if training and node.tamper else reply

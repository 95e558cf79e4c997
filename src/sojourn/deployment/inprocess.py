"""Clients as threads of the server's own process: a transport for tests and rehearsals.

Each client works on its tasks one after the other, first in first out, as a real one does. Nothing is
encoded or started, so that hundreds of updates a second come through; what a task computes and how
its failures are treated is the same as on Flower.
"""

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from sojourn.deployment.client import (
    Learnable,
    ProblemFunction,
    build,
    compute,
    folder_of,
    takes_client,
)
from sojourn.deployment.transport import (
    Answer,
    Failure,
    Identity,
    Outgoing,
    Question,
    Received,
    Request,
    TaskMessage,
    Wire,
    from_bfloat16,
    to_bfloat16,
)
from sojourn.types import Vector
from sojourn.version import __version__

Pace = Callable[[], float]
"""How many seconds a client sleeps in its next task, beside its computation."""


@dataclass(eq=False)
class _Node:
    """A thread, the messages that it has not taken yet, and whether it is still connected."""

    number: int
    client: int
    inbox: "queue.SimpleQueue[tuple[str, Outgoing] | None]" = field(
        default_factory=queue.SimpleQueue
    )
    gone: threading.Event = field(default_factory=threading.Event)
    problem: Learnable | None = None
    state: dict[str, NDArray[Any]] = field(default_factory=dict)


class InProcessTransport:
    """Threads that compute; ``paces[i]`` makes client i slower.

    ``problem`` is the user's function, called once if it does not ask which client it is for, and
    once for each client otherwise. Clients `join` and `leave` while the server runs. Use it as a
    context manager: on leaving, the threads end with the task that they are at.
    """

    def __init__(
        self,
        problem: ProblemFunction,
        paces: Sequence[Pace],
        *,
        config: Mapping[str, object] | None = None,
    ) -> None:
        self._problem, self._config = problem, dict(config or {})
        self._paces = paces
        self._folder = folder_of(problem)
        self._names, self._numbers = itertools.count(1), itertools.count(1)
        self._nodes: dict[int, _Node] = {}
        self._received: deque[Received] = deque()
        self._something = threading.Condition()
        self._shared: Learnable | None = None
        self._computing = threading.Lock()
        for client in range(len(paces)):
            self.join(client)

    def join(self, client: int) -> int:
        """Connect a node for ``client``; its number."""
        node = _Node(next(self._numbers), client)
        self._nodes[node.number] = node
        threading.Thread(target=self._work, args=(node,), daemon=True).start()
        return node.number

    def leave(self, number: int) -> None:
        """Disconnect a node at once: what it is at, and what it has not begun, is lost."""
        node = self._nodes.pop(number)
        node.gone.set()
        node.inbox.put(None)

    def nodes(self) -> Collection[int]:
        """The nodes whose threads run."""
        return list(self._nodes)

    def send(self, messages: Sequence[Outgoing]) -> Sequence[str]:
        """Put messages into the inboxes of their nodes."""
        names = [str(next(self._names)) for _ in messages]
        for name, message in zip(names, messages, strict=True):
            if message.node in self._nodes:
                self._nodes[message.node].inbox.put((name, message))
            else:
                self._put(Failure(name, message.node, "the node is not connected", gone=True))
        return names

    def receive(self, waiting: Collection[str], like: Vector) -> Iterator[Received]:
        """What has come, in the order in which it was finished."""
        while self._received:
            yield self._received.popleft()

    def wait(self, most: float, expected: float) -> None:
        """Until something has come, however soon that is."""
        with self._something:
            if not self._received:
                self._something.wait(most)

    def close(self) -> None:
        """Disconnect all nodes."""
        for number in list(self._nodes):
            self.leave(number)

    def __enter__(self) -> "InProcessTransport":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _put(self, received: Received) -> None:
        with self._something:
            self._received.append(received)
            self._something.notify()

    def _work(self, node: _Node) -> None:
        """Answer messages until there are no more; none is held while waiting for the next."""
        while (taken := node.inbox.get()) is not None:
            is_task, begun = isinstance(taken[1], TaskMessage), time.perf_counter()
            reply = self._answer(node, *taken)
            del taken
            if is_task:
                time.sleep(self._paces[node.client]())
            if isinstance(reply, Answer):
                reply = replace(reply, seconds=time.perf_counter() - begun)
            if node.gone.is_set():
                return
            self._put(reply)
            del reply

    def _answer(self, node: _Node, name: str, message: Outgoing) -> Received:
        if isinstance(message, Question):
            return Identity(name, node.number, node.client, __version__)
        request = message.request
        try:
            with self._computing:
                if node.problem is None:
                    node.problem = self._build(request, node.client)
                sent = _sent(message.weights, request.wire)
                found = compute(node.problem, request, sent, node.client, node.state, self._folder)
        except Exception as error:  # a client's failure is its own, not the server's
            return Failure(name, node.number, f"{type(error).__name__}: {error}")
        update = found.update if request.wire == "full" else _sent(found.update, request.wire)
        return Answer(name, node.number, update, request.number, found.loss, found.steps)

    def _build(self, request: Request, client: int) -> Learnable:
        """The client's problem; where clients' problems are the same, the same object."""
        if self._shared is not None:
            return self._shared
        built = build(self._problem, request.clients, request.seed, client, self._config)
        if not takes_client(self._problem):
            self._shared = built
        return built


def _sent(values: Vector, wire: Wire) -> Vector:
    """A copy of numbers, as the other side gets them."""
    if wire == "full":
        return values.copy()
    return from_bfloat16(to_bfloat16(values)).astype(values.dtype, copy=False)

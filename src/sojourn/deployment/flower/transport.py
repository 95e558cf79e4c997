"""Flower's ``Grid`` as a transport: a SuperLink that is asked for replies.

Flower hands out a reply as soon as its sender has announced it, and then waits up to two hours for
what it consists of. Whoever announces and does not deliver, be it hostile or killed on the way, must
not keep the server from the others: a pull is waited for some seconds, and goes on beside.

Asked for the reply of a node that is offline, Flower answers that there will be none, and refuses
it when it comes: after a cut, the work of that node would be lost. So the replies of a node that
has been silent for some seconds are asked for right after it was seen to be online, and the less
often the longer it has been silent: what is left is the moment between the two requests.

While the SuperLink cannot be reached, or answers with an error of its own, messages wait here and
replies wait there, for ``outage_seconds`` at most; then the error is raised.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from sojourn.deployment.flower.messages import from_flower, to_flower
from sojourn.deployment.transport import (
    Answer,
    Failure,
    Notice,
    Outgoing,
    Received,
    TaskMessage,
)
from sojourn.types import Vector

SHORTEST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.1, 1.0
"""Every question costs the SuperLink some 30 ms of processor."""
POLLS_PER_REPLY = 4.0
WAIT_SECONDS = 5.0
"""Of real time; a small reply that is there takes milliseconds."""
SLOWEST_BYTES = 4_000_000
"""A second, of large replies: two that are pulled at a time take twice the memory."""
BATCH_BYTES = 32_000_000
"""Weights that are pushed, or updates that are pulled, in one request. Flower holds several copies of each."""
TOGETHER_SECONDS = 30.0
"""How long replies that were asked for together may take before they are asked for one by one."""
CAREFUL_SECONDS = 600.0
SILENT_SECONDS = 10.0
"""Nodes announce themselves every 24 s, and are offline 60 s after the last time."""
SILENCE_PART = 0.1
"""The part of its silence after which a node is asked for again, one second at least."""
OUTAGE_SECONDS = 600.0
OUTAGES = ("grpc", "httpcore", "httpx", "requests")
"""Libraries whose errors say that the SuperLink cannot be reached; those are no client's fault."""


class FlowerTransport:
    """Messages through a SuperLink, pushed together and pulled as they come."""

    def __init__(
        self,
        grid: Grid,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        batch_bytes: int = BATCH_BYTES,
        wait_seconds: float = WAIT_SECONDS,
        outage_seconds: float = OUTAGE_SECONDS,
    ) -> None:
        self.grid = grid
        self._clock, self._sleep = clock, sleep
        self._batch_bytes, self._wait_seconds = batch_bytes, wait_seconds
        self._outage_seconds = outage_seconds
        self._names = itertools.count(1)
        self._outbox: list[tuple[str, Outgoing]] = []
        self._pushed: dict[str, _Pushed] = {}
        self._heard_at: dict[int, float] = {}
        self._asked_at: dict[int, float] = {}
        self._looked_at = -float("inf")
        self._undelivered: list[Failure] = []
        self._nodes: set[int] = set()
        self._late: list[_Pull] = []
        self._careful_until = -float("inf")
        self._cut_since: float | None = None

    def nodes(self) -> Collection[int]:
        """The nodes that are online; during an outage those that were."""
        try:
            self._nodes = set(self.grid.get_node_ids())
        except Exception as error:
            self._cut(error)
        else:
            self._cut_since = None
            self._heard_at = {n: at for n, at in self._heard_at.items() if n in self._nodes}
            self._asked_at = {n: at for n, at in self._asked_at.items() if n in self._nodes}
        return self._nodes

    def send(self, messages: Sequence[Outgoing]) -> Sequence[str]:
        """Push messages in as few requests as their weights fit into."""
        names = [str(next(self._names)) for _ in messages]
        self._outbox += zip(names, messages, strict=True)
        self._push()
        return names

    def receive(self, waiting: Collection[str], like: Vector) -> Iterator[Received]:
        """Pull what has come, so few at a time that their updates fit into a batch.

        Flower unfolds what it pulls, all at once, and raises if one reply cannot be unfolded; which
        one it does not say, and the others are lost with it. So for some time after that replies are
        pulled one by one, and whose fails is known; also after one has kept the server waiting.
        """
        self._push()
        undelivered, self._undelivered = self._undelivered, []
        yield from undelivered
        self._pushed = {name: sent for name, sent in self._pushed.items() if name in waiting}
        done = [pull for pull in self._late if pull.ended.is_set()]
        self._late = [pull for pull in self._late if pull not in done]
        for pull in done:
            yield from self._pulled(pull, waiting, like)
        being_pulled = self._being_pulled()
        silent, lively = self._silent_online(), self._lively()
        names = [name for name in self._pushed if name not in being_pulled]
        pullable = [name for name in names if self._pushed[name].node in silent]
        pullable += [name for name in names if self._pushed[name].node in lively]
        careful = self._clock() < self._careful_until
        some = 1 if careful else max(1, self._batch_bytes // max(1, like.nbytes))
        for start in range(0, len(pullable), some):
            asked = tuple(name for name in pullable[start : start + some] if name in waiting)
            if not asked:
                continue
            ids = [self._pushed[name].flower_id for name in asked]
            pull = _Pull(self.grid, asked, ids, self._clock())
            patience = self._wait_seconds + len(asked) * like.nbytes / SLOWEST_BYTES
            if pull.ended.wait(patience):
                yield from self._pulled(pull, waiting, like)
            else:
                self._late.append(pull)
                if not careful:
                    detail = "a reply was announced and is not there: the others do not wait for it"
                    yield Notice("late", detail)
                self._careful_until = self._clock() + CAREFUL_SECONDS
                careful = True

    def wait(self, most: float, expected: float) -> None:
        """Sleep for a fraction of what the next reply is expected to take."""
        poll = min(max(expected / POLLS_PER_REPLY, SHORTEST_POLL_SECONDS), LONGEST_POLL_SECONDS)
        self._sleep(min(most, poll))

    def _being_pulled(self) -> set[str]:
        """Messages whose replies are on their way: several's for a while, one's as long as it takes.

        Asked for again, Flower says that there are none, having handed them out.
        """
        now = self._clock()
        return {
            name
            for pull in self._late
            if len(pull.names) == 1 or now - pull.begun < TOGETHER_SECONDS
            for name in pull.names
        }

    def _lively(self) -> set[int]:
        """The nodes that were heard of lately, and so are online."""
        lately = self._clock() - SILENT_SECONDS
        return {node for node, at in self._heard_at.items() if at >= lately}

    def _silent_online(self) -> set[int]:
        """Of the other nodes, those that it is time to ask for, and that are online at this moment."""
        now = self._clock()
        if now - self._looked_at < 1.0:
            return set()
        lively, due = self._lively(), set()
        for sent in self._pushed.values():
            silence = now - max(sent.at, self._heard_at.get(sent.node, sent.at))
            asked = self._asked_at.get(sent.node, -float("inf"))
            if sent.node not in lively and now - asked >= SILENCE_PART * silence:
                due.add(sent.node)
        if not due:
            return set()
        self._looked_at = now
        online = due & set(self.nodes())
        if self._cut_since is not None:  # they were online before
            return set()
        self._asked_at |= dict.fromkeys(online, now)
        return online

    def _push(self) -> None:
        while self._outbox:
            batch = self._outbox[: self._batch_length()]
            try:
                ids = list(self.grid.push_messages([to_flower(asked) for _, asked in batch]))
            except Exception as error:
                self._cut(error)
                return
            self._cut_since = None
            if len(ids) < len(batch) > 1:  # too large for one request: refused together
                singly = [self.grid.push_messages([to_flower(asked)]) for _, asked in batch]
                ids = [next(iter(pushed), "") for pushed in singly]
            ids += [""] * (len(batch) - len(ids))
            for (name, asked), flower_id in zip(batch, ids, strict=True):
                if flower_id:
                    self._pushed[name] = _Pushed(flower_id, asked.node, self._clock())
                    self._heard_at.setdefault(asked.node, self._clock())
                else:
                    reason = "the SuperLink did not take its message"
                    self._undelivered.append(Failure(name, asked.node, reason, gone=True))
            del self._outbox[: len(batch)]

    def _batch_length(self) -> int:
        total = 0
        for count, (_, asked) in enumerate(self._outbox):
            total += asked.weights.nbytes if isinstance(asked, TaskMessage) else 0
            if total > self._batch_bytes:
                return max(1, count)
        return len(self._outbox)

    def _pulled(self, pull: "_Pull", waiting: Collection[str], like: Vector) -> Iterator[Received]:
        asked = [name for name in pull.names if name in waiting]
        if pull.error is None:
            self._cut_since = None
            names = dict(zip(pull.ids, pull.names, strict=True))
            # Flower hands replies that are there together out in any order.
            place = {flower_id: number for number, flower_id in enumerate(pull.ids)}
            replies = deque(
                sorted(
                    pull.replies,
                    key=lambda reply: place.get(reply.metadata.reply_to_message_id, len(place)),
                )
            )
            pull.replies = ()
            while replies:  # each is let go before the next: it may be as large as the model
                name = names.get(replies[0].metadata.reply_to_message_id, "")
                received = from_flower(replies.popleft(), name, like)
                if not (isinstance(received, Failure) and received.gone):
                    self._heard_at[received.node] = self._clock()
                yield received
                del received
        elif is_outage(pull.error):
            self._cut(pull.error)
        elif asked:
            yield self._unreadable(asked, type(pull.error).__name__)

    def _unreadable(self, asked: Sequence[str], error: str) -> Received:
        self._careful_until = self._clock() + CAREFUL_SECONDS
        if len(asked) == 1:
            return Answer(asked[0], 0, f"its reply cannot be read ({error})")
        detail = f"one of {len(asked)} replies cannot be read ({error}): from now on they are "
        return Notice("refused", detail + "pulled one by one")

    def _cut(self, error: Exception) -> None:
        """The SuperLink was not reached: raises if that has lasted too long, or is something else."""
        if not is_outage(error):
            raise error
        now = self._clock()
        self._cut_since = now if self._cut_since is None else self._cut_since
        if now - self._cut_since >= self._outage_seconds:
            raise error


class _Pushed(NamedTuple):
    """A message that Flower has taken: what it calls it, for whom it is, and since when."""

    flower_id: str
    node: int
    at: float


class _Pull:
    """A pull in a thread that does not keep the program from ending."""

    def __init__(
        self, grid: Grid, names: tuple[str, ...], ids: Sequence[str], begun: float
    ) -> None:
        self.names, self.ids, self.begun = names, tuple(ids), begun
        self.ended = threading.Event()
        self.replies: tuple[Message, ...] = ()
        self.error: Exception | None = None
        threading.Thread(target=self._work, args=(grid,), daemon=True).start()

    def _work(self, grid: Grid) -> None:
        try:
            self.replies = tuple(grid.pull_messages(self.ids))
        except Exception as error:  # decided upon where it is taken in
            self.error = error
        self.ended.set()


def is_outage(error: Exception) -> bool:
    """Whether an error says that the SuperLink could not be reached, or failed itself."""
    module = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or module in OUTAGES

"""The dispatcher on Flower's ``Grid``: messages out, replies in, three times a second."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from flwr.app import Message
from flwr.serverapp import Grid

from sojourn.deploy.dispatcher import Dispatcher
from sojourn.deploy.journal import Journal
from sojourn.deploy.pulling import WAIT_SECONDS, Pulled, Pulls
from sojourn.deploy.quarantine import named_by_operator
from sojourn.deploy.records import (
    Request,
    read_reply,
    read_who,
    task_message,
    who_message,
)
from sojourn.deploy.settings import Settings
from sojourn.deploy.tasks import Actions, Event, Task
from sojourn.errors import InvalidInput

POLL_SECONDS = 0.3
"""Every question costs the SuperLink some 30 ms of processor; a task takes seconds."""
LOOK_AROUND_SECONDS = 1.0
NODE_UNAVAILABLE = 5
LEAST_TTL_SECONDS = 600.0
WHO_TTL_SECONDS = 120.0
FIRST_WAIT_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 300.0
PULL_BYTES = 256_000_000
CAREFUL_SECONDS = 600.0
LAST_REPLIES_SECONDS = 60.0
"""How long the end of a run waits for what clients are still at."""
SETTLED = {"alive": "who is alive elsewhere", "quarantined": "who is in quarantine elsewhere"}
"""Clients whose node is not exchanged for another that claims to be theirs."""
TRANSPORTS = ("grpc", "httpcore", "httpx", "requests")
"""Libraries whose errors say that the SuperLink cannot be reached; those are no client's fault."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """A message that has not been answered: a task's, or (``task`` is ``None``) a question."""

    node: int
    task: int | None


@dataclass(frozen=True, slots=True)
class _AskAgain:
    """When to ask a node again who it is, and how long that is after the time before."""

    at: float
    wait: float


class GridServer:
    """Runs a dispatcher on a grid until enough updates were applied.

    Flower's nodes have numbers of their own, new at every start; each is asked which client it is.
    It stays that client for as long as it is there. A node that claims to be a client whose own node
    is alive is not believed until that one is gone or does not answer: it may be the same client,
    killed and started again faster than its death was noticed.
    """

    def __init__(
        self,
        grid: Grid,
        dispatcher: Dispatcher,
        journal: Journal,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        pull_bytes: int = PULL_BYTES,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.grid, self.dispatcher, self.journal = grid, dispatcher, journal
        self.settings = settings
        self._clock, self._sleep = clock, sleep
        self._begun = clock() - journal.elapsed_before
        self._outstanding: dict[str, _Sent] = {}
        self._client_of: dict[int, int | None] = {}
        self._node_of: dict[int, int] = {}
        self._claims: dict[int, int] = {}
        self._ask_again: dict[int, _AskAgain] = {}
        self._last_failure: str | None = None
        self._careful_until = -math.inf
        self._pull_bytes = pull_bytes
        self._pulls = Pulls(lambda names: self.grid.pull_messages(names), wait_seconds=wait_seconds)
        self._looked_at = self._said_at = -LOOK_AROUND_SECONDS
        self._kept_at = journal.elapsed_before

    @property
    def elapsed(self) -> float:
        """Seconds since the run began, those before a crash included."""
        return self._clock() - self._begun

    def run(self) -> None:
        """Wait for the clients, then work until the run has its updates."""
        resumed = self.dispatcher.counts.routed > 0
        self.journal.checkpoint(self.elapsed)
        if not self.journal.rows:
            self.journal.evaluate(self.elapsed)
        self._wait_for_clients()
        if resumed:
            for client in self.dispatcher.clients:
                if client.status == "away":
                    self._do(self.dispatcher.left(client.number, now=self.elapsed))
        else:
            self._do(self.dispatcher.start(now=self.elapsed))
        while not self._done:
            self.poll("running")
            self._sleep(POLL_SECONDS)
        if self.journal.evaluated_at < self.dispatcher.counts.completed:
            self.journal.evaluate(self.elapsed)
        self.journal.collect(wait=True)
        self.journal.checkpoint(self.elapsed)
        self._let_them_finish()
        self.journal.status(self.elapsed, "comparing with the prediction")

    def poll(self, phase: str) -> None:
        """Take in what has come, and let the clock tick once."""
        now = self.elapsed
        if now - self._looked_at >= LOOK_AROUND_SECONDS:
            self._looked_at = now
            self._look_around(now)
        for message in self._pull(now):
            self._receive(message)
            if self._done:
                return
        self._do(self.dispatcher.tick(self.elapsed))
        self.journal.collect()
        if now - self._said_at >= 1.0:
            self._said_at = now
            self.journal.status(now, phase)
        due = self._kept_at + self.settings.checkpoint_seconds
        if now >= due and self.dispatcher.counts.routed:
            self._kept_at = now
            self.journal.checkpoint(now)

    def _pull(self, now: float) -> Iterator[Message]:
        """What has come, so few at a time that their updates fit into ``pull_bytes``.

        Flower unfolds what it pulls, all at once, and raises if one reply cannot be unfolded; which
        one it does not say, and the others are lost with it. So for some time after that replies are
        pulled one by one, and whose fails is known; also after one has kept the server waiting.
        """
        for pulled in self._pulls.finished():
            yield from self._taken(pulled, now)
        size = self.dispatcher.state.weights.nbytes
        waiting = [name for name in self._outstanding if not self._pulls.waits_for(name)]
        careful = now < self._careful_until
        some = 1 if careful else max(1, self._pull_bytes // max(1, size))
        for start in range(0, len(waiting), some):
            asked = [name for name in waiting[start : start + some] if name in self._outstanding]
            if asked:
                yield from self._taken(self._pulls.pull(asked), now)

    def _taken(self, pulled: Pulled | None, now: float) -> Iterator[Message]:
        if pulled is None:
            if now >= self._careful_until:
                detail = "a reply was announced and is not there: the others are not kept waiting"
                self.journal.event(Event("late", None, detail), now)
            self._careful_until = now + CAREFUL_SECONDS
        elif pulled.error is None:
            yield from in_order_of_sending(pulled)
        elif _is_transport(pulled.error):
            raise pulled.error
        elif asked := [name for name in pulled.asked if name in self._outstanding]:
            self._unreadable(asked, pulled.error, now)

    def _unreadable(self, asked: list[str], error: Exception, now: float) -> None:
        self._careful_until = now + CAREFUL_SECONDS
        if len(asked) > 1:
            detail = f"one of {len(asked)} replies cannot be read ({type(error).__name__}): from "
            detail += "now on they are pulled one by one"
            self.journal.event(Event("refused", None, detail), now)
            return
        sent = self._outstanding.pop(asked[0])
        reason = f"its reply cannot be read ({type(error).__name__})"
        if sent.task is None:
            self._did_not_say(sent.node, reason, now)
        else:
            client = self._client_of.get(sent.node)
            self._do(self.dispatcher.completed(sent.task, reason, now=now, client=client))

    @property
    def _done(self) -> bool:
        return self.dispatcher.counts.used >= self.settings.updates

    def _let_them_finish(self) -> None:
        """Wait for the last replies of those who are at work, and drop them.

        A SuperNode whose reply comes after the end of its run may take no message of the next one.
        """
        self.journal.status(self.elapsed, "waiting for the last replies")
        patience = self.elapsed + LAST_REPLIES_SECONDS
        living = {self._node_of.get(client) for client in self.dispatcher.living}
        last = [m for m, s in self._outstanding.items() if s.task is not None and s.node in living]
        while last and self.elapsed < patience:
            pulled = {name: self._pulls.pull([name]) for name in last}
            last = [name for name, p in pulled.items() if p == Pulled((name,))]
            self._sleep(POLL_SECONDS)

    def _wait_for_clients(self) -> None:
        patience = self.elapsed + self.settings.join_seconds
        wanted = len(self.dispatcher.clients)
        while len(self.dispatcher.living) < wanted and not self._done:
            self.poll("waiting for clients")
            if self.elapsed > patience and self.dispatcher.living:
                return
            if self.elapsed > patience and self._last_failure is not None:
                raise InvalidInput(
                    f"no client has joined within {self.settings.join_seconds:g} s, and one that "
                    f"was asked failed: {self._last_failure}. See that the client app starts, "
                    "and that every node knows its client."
                )
            self._sleep(POLL_SECONDS)

    def _look_around(self, now: float) -> None:
        present = set(self.grid.get_node_ids())
        for node in present - self._client_of.keys():
            self._client_of[node] = None
            self._ask(node)
        for node in [node for node, again in self._ask_again.items() if now >= again.at]:
            self._ask_again[node] = replace(self._ask_again[node], at=math.inf)
            self._ask(node)
        for node in self._client_of.keys() - present:
            self._forget(node, now)
        self._follow_operator(now)
        for node, client in list(self._claims.items()):
            if self.dispatcher.clients[client].status not in SETTLED:
                del self._claims[node]
                self._introduced(node, client, now)

    def _follow_operator(self, now: float) -> None:
        """Clients whose names were written into ``quarantine.txt``, or taken out of it."""
        names = [client.name for client in self.dispatcher.clients]
        named = named_by_operator(self.journal.folder, names)
        for name in named ^ self.journal.condemned:
            reason = "its operator says so" if name in named else None
            number = names.index(name)
            self._do(self.dispatcher.set_quarantine(number, reason, now=now))
        self.journal.condemned = named

    def _forget(self, node: int, now: float) -> None:
        client = self._client_of.pop(node, None)
        self._claims.pop(node, None)
        self._ask_again.pop(node, None)
        self._drop_messages(node)
        if client is not None and self._node_of.get(client) == node:
            del self._node_of[client]
            self._do(self.dispatcher.left(client, now=now))

    def _drop_messages(self, node: int) -> None:
        self._outstanding = {m: s for m, s in self._outstanding.items() if s.node != node}

    def _receive(self, message: Message) -> None:
        sent = self._outstanding.pop(message.metadata.reply_to_message_id, None)
        now = self.elapsed
        if sent is None and message.has_error():
            return
        if sent is None:
            self.dispatcher.counts.unknown += 1
            node = message.metadata.src_node_id
            detail = f"{self._name(node)}: a reply that nothing waits for, or no more, dropped"
            self.journal.event(Event("refused", self._client_of.get(node), detail), now)
            return
        if message.has_error():
            self._error(message, sent, now)
        elif sent.task is None:
            self._introduced(sent.node, read_who(message, len(self.dispatcher.clients)), now)
        else:
            reply = read_reply(message, self.dispatcher.state.weights)
            client = self._client_of.get(sent.node)
            update = reply.update if reply.reason is None else reply.reason
            actions = self.dispatcher.completed(
                sent.task, update, now=now, client=client, claimed=reply.claimed
            )
            self._do(actions, loss=reply.loss)
            due = self.journal.evaluated_at + self.settings.evaluate_every
            if self.dispatcher.counts.completed >= due and not self.journal.evaluating:
                self.journal.evaluate(now)

    def _error(self, message: Message, sent: _Sent, now: float) -> None:
        code = message.error.code
        reason = f"Flower's error {code}: {(message.error.reason or '').strip()[:200]}"
        if code == NODE_UNAVAILABLE:
            self._forget(sent.node, now)
        elif sent.task is not None:
            self._do(self.dispatcher.failed(sent.task, now=now, reason=reason))
        else:
            self._did_not_say(sent.node, reason, now)

    def _did_not_say(self, node: int, reason: str, now: float) -> None:
        """A node could not say who it is; one that never could is asked again later and later."""
        client = self._client_of.get(node)
        self._last_failure = f"{self._name(node)}: {reason}"
        detail = f"{self._name(node)}: asked who it is, it failed: {reason}"
        self.journal.event(Event("failed", client, detail), now)
        if client is None and node in self._client_of:
            again = self._ask_again.get(node)
            wait = FIRST_WAIT_SECONDS if again is None else 2.0 * again.wait
            wait = min(wait, LONGEST_WAIT_SECONDS)
            self._ask_again[node] = _AskAgain(now + wait, wait)

    def _name(self, node: int) -> str:
        client = self._client_of.get(node)
        return f"node {node}" if client is None else self.dispatcher.clients[client].name

    def _introduced(self, node: int, client: int | None, now: float) -> None:
        """A node has said which client it is."""
        self._ask_again.pop(node, None)
        if client is None:
            detail = f"node {node} is none of the clients, and gets no tasks"
            self.journal.event(Event("refused", None, detail), now)
            return
        member = self.dispatcher.clients[client]
        before, current = self._client_of.get(node), self._node_of.get(client)
        if current == node:
            self._do(self.dispatcher.answered(client, now=now))
            return
        if before is not None:
            detail = (
                f"{self._name(node)}: claims to be {member.name} now, and gets no tasks as that"
            )
            self.journal.event(Event("refused", before, detail), now)
            return
        if current is not None and member.status in SETTLED:
            detail = f"node {node} claims to be {member.name}, {SETTLED[member.status]}"
            self.journal.event(Event("refused", client, detail), now)
            self._claims[node] = client
            return
        if current is not None:
            self._drop_messages(current)
            self._client_of[current], self._claims[current] = None, client
        self._client_of[node], self._node_of[client] = client, node
        self._do(self.dispatcher.joined(client, now=now))

    def _do(self, actions: Actions, *, loss: float | None = None) -> None:
        now = self.elapsed
        for event in actions.events:
            self.journal.event(event, now)
        if actions.used is not None:
            self.journal.used(actions.used, loss, now)
        if actions.dropped is not None:
            self.journal.dropped(actions.dropped, loss, now)
        for client in actions.probe:
            if client in self._node_of:
                self._ask(self._node_of[client])
        for task in actions.send:
            self._send(task)

    def _send(self, task: Task) -> None:
        node = self._node_of.get(task.client)
        if node is None or task.number not in self.dispatcher.tasks:
            return
        request = Request.of(
            task,
            self.dispatcher.rule,
            clients=len(self.dispatcher.clients),
            seed=self.settings.seed,
            learning_rate=self.dispatcher.learning_rate,
        )
        allowed = self.dispatcher.allowance(self.dispatcher.clients[task.client])
        ttl = max(LEAST_TTL_SECONDS, 10.0 * allowed)
        message = task_message(node, request, self.dispatcher.weights_of(task), ttl=ttl)
        if not self._push(message, _Sent(node, task.number)):
            self._forget(node, self.elapsed)

    def _ask(self, node: int) -> None:
        self._push(who_message(node, ttl=WHO_TTL_SECONDS), _Sent(node, None))

    def _push(self, message: Message, sent: _Sent) -> bool:
        """Whether the message was taken."""
        taken = [message_id for message_id in self.grid.push_messages([message]) if message_id]
        for message_id in taken:
            self._outstanding[message_id] = sent
        return bool(taken)


def in_order_of_sending(pulled: Pulled) -> list[Message]:
    """Replies that were there together; Flower hands them out in any order."""
    place = {name: number for number, name in enumerate(pulled.asked)}
    return sorted(
        pulled.messages, key=lambda reply: place.get(reply.metadata.reply_to_message_id, len(place))
    )


def _is_transport(error: Exception) -> bool:
    module = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or module in TRANSPORTS

"""The server's loop: it carries messages between a `Dispatcher` and a `Transport`."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sojourn._support.memory import give_back
from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.guard.guard import named_by_operator
from sojourn.deployment.journal import Journal
from sojourn.deployment.settings import Settings
from sojourn.deployment.tasks import Actions, Event, Task
from sojourn.deployment.transport import (
    Answer,
    Failure,
    Identity,
    Notice,
    Outgoing,
    Question,
    Received,
    Request,
    TaskMessage,
    Transport,
)
from sojourn.errors import InvalidInput
from sojourn.rules.arrays import forget_free_vectors
from sojourn.version import __version__

LARGE_BYTES = 10_000_000
"""Of weights: of more than this memory is given back after every message, and announced before a run."""
LOOK_AROUND_SECONDS = 1.0
LEAST_TTL_SECONDS = 600.0
WHO_TTL_SECONDS = 120.0
WHO_SECONDS = 0.4
"""How long a node is expected to take to say which client it is."""
THROTTLED_SECONDS = 0.1
"""How soon to look again whether a client that waits for its pace may have its task."""
FIRST_WAIT_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 300.0
ABSENT_SECONDS = 300.0
"""How long a node that is not connected may come back with what it was sent."""
LAST_REPLIES_SECONDS = 60.0
"""How long the end of a run waits for what clients are still at."""
SETTLED = {"alive": "who is alive elsewhere", "quarantined": "who is in quarantine elsewhere"}
"""Clients whose node is not exchanged for another that claims to be theirs."""


def compatible(one: str, other: str) -> bool:
    """Whether two versions of Sojourn understand each other: the same but for the last number.

    >>> compatible("0.2.1", "0.2.7"), compatible("0.2.1", "0.3.0")
    (True, False)
    """
    return one.split(".")[:2] == other.split(".")[:2]


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


class Server:
    """Runs a dispatcher until enough updates were applied.

    Nodes have numbers of their own, new at every start; each is asked which client it is. It stays
    that client for as long as it is there. One whose connection is cut keeps what it was sent for
    some minutes: others do its tasks meanwhile, and if it comes back its answers are late, not
    lost. A node that claims to be a client whose own node is alive is not believed until that one
    is gone or does not answer: it may be the same client, killed and started again faster than its
    death was noticed.
    """

    def __init__(
        self,
        transport: Transport,
        dispatcher: Dispatcher,
        journal: Journal,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.transport, self.dispatcher, self.journal = transport, dispatcher, journal
        self.settings = settings
        weights = dispatcher.state.weights
        # What is received is as large as the model; the model itself would be held while it changes.
        self._like = np.broadcast_to(np.zeros((), weights.dtype), weights.shape)
        self._clock = clock
        self._begun = clock() - journal.elapsed_before
        self._outbox: list[tuple[Outgoing, _Sent]] = []
        self._outstanding: dict[str, _Sent] = {}
        self._client_of: dict[int, int | None] = {}
        self._node_of: dict[int, int] = {}
        self._claims: dict[int, int] = {}
        self._absent: dict[int, float] = {}
        self._ask_again: dict[int, _AskAgain] = {}
        self._last_failure: str | None = None
        self._stopping = False
        self._looked_at = self._said_at = -LOOK_AROUND_SECONDS
        self._saved_at = journal.elapsed_before

    @property
    def elapsed(self) -> float:
        """Seconds since the run began, those before a crash included."""
        return self._clock() - self._begun

    def stop(self) -> None:
        """End the loop after what it is at, with a checkpoint; may be called by a signal handler."""
        self._stopping = True

    def run(self) -> bool:
        """Wait for the clients, then work until the run has its updates; false if it was stopped."""
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
        while not self._done and not self._stopping:
            self.poll("running")
            self._wait()
        if not self._done:
            self.journal.checkpoint(self.elapsed)
            self.journal.event(Event("left", None, "the server was asked to stop"), self.elapsed)
            self.journal.status(self.elapsed, "stopped")
            return False
        if self.dispatcher.budget_spent:
            detail = f"the privacy budget is spent: epsilon {self.dispatcher.epsilon:.3g}"
            self.journal.event(Event("left", None, detail), self.elapsed)
        if self.journal.evaluated_at < self.dispatcher.counts.completed:
            self.journal.evaluate(self.elapsed)
        self.journal.collect(wait=True)
        self.journal.checkpoint(self.elapsed)
        self._await_last_replies()
        self.journal.status(self.elapsed, "comparing with the prediction")
        return True

    def poll(self, phase: str) -> None:
        """Take in what has come, and let the clock tick once."""
        now = self.elapsed
        if now - self._looked_at >= LOOK_AROUND_SECONDS:
            self._looked_at = now
            self._look_around(now)
        for received in self.transport.receive(self._outstanding, self._like):
            self._receive(received)
            # It may be as large as the model; the next one is received before the name is bound anew.
            del received
            self._let_go()
            if self._done:
                return
        self._do(self.dispatcher.tick(self.elapsed))
        self._flush()
        self.journal.collect()
        if now - self._said_at >= 1.0:
            self._said_at = now
            self.journal.status(now, phase)
        due = self._saved_at + self.settings.checkpoint_seconds
        if now >= due and self.dispatcher.counts.routed:
            self._saved_at = now
            self.journal.checkpoint(now)

    @property
    def _done(self) -> bool:
        enough = self.dispatcher.counts.used >= self.settings.updates
        return enough or self.dispatcher.budget_spent

    def _wait(self) -> None:
        """Until a reply has come, or is likely to have, or something else is due."""
        asked = any(sent.task is None for sent in self._outstanding.values())
        expected = self.dispatcher.seconds_to_reply()
        most = THROTTLED_SECONDS if self.dispatcher.throttled else LOOK_AROUND_SECONDS
        self.transport.wait(most, min(WHO_SECONDS, expected) if asked else expected)

    def _await_last_replies(self) -> None:
        """Wait for the last replies of busy clients, and drop them.

        A SuperNode whose reply comes after the end of its run may take no message of the next one.
        """
        self.journal.status(self.elapsed, "waiting for the last replies")
        patience = self.elapsed + LAST_REPLIES_SECONDS
        living = {self._node_of.get(client) for client in self.dispatcher.living}
        asked = self._outstanding.items()
        last = {m: s for m, s in asked if s.task is not None and s.node in living}
        while last and self.elapsed < patience:
            for received in list(self.transport.receive(last, self._like)):
                if not isinstance(received, Notice):
                    last.pop(received.message, None)
            if last:
                self.transport.wait(LOOK_AROUND_SECONDS, self.dispatcher.seconds_to_reply())

    def _wait_for_clients(self) -> None:
        patience = self.elapsed + self.settings.join_seconds
        wanted = self.dispatcher.listed or 1
        while len(self.dispatcher.living) < wanted and not (self._done or self._stopping):
            self.poll("waiting for clients")
            if self.elapsed > patience and self.dispatcher.living:
                return
            if self.elapsed > patience and self._last_failure is not None:
                raise InvalidInput(
                    f"no client has joined within {self.settings.join_seconds:g} s, and one that "
                    f"was asked failed: {self._last_failure}. See that the client app starts, "
                    "and that every node knows its client."
                )
            self._wait()

    def _look_around(self, now: float) -> None:
        present = set(self.transport.nodes())
        for node in present - self._client_of.keys():
            self._client_of[node] = None
            self._ask(node)
        for node in [node for node, again in self._ask_again.items() if now >= again.at]:
            self._ask_again[node] = replace(self._ask_again[node], at=math.inf)
            self._ask(node)
        for node in self._absent.keys() & present:
            del self._absent[node]
            self._ask(node)
        for node in self._client_of.keys() - present - self._absent.keys():
            self._disconnected(node, now)
        for node in [n for n, at in self._absent.items() if now - at > ABSENT_SECONDS]:
            self._forget(node, now)
        self._follow_operator(now)
        for node, client in list(self._claims.items()):
            if self.dispatcher.clients[client].status not in SETTLED:
                del self._claims[node]
                self._introduced(node, client, now)
        self._flush()

    def _follow_operator(self, now: float) -> None:
        """Clients whose names were written into ``quarantine.txt``, or taken out of it."""
        names = [client.name for client in self.dispatcher.clients]
        named = named_by_operator(self.journal.folder, names)
        for name in named ^ self.journal.condemned:
            reason = "set by the operator" if name in named else None
            number = names.index(name)
            self._do(self.dispatcher.set_quarantine(number, reason, now=now))
        self.journal.condemned = named

    def _disconnected(self, node: int, now: float) -> None:
        """A node is not there; it may come back if it has something to answer."""
        client = self._client_of.get(node)
        sent = {m: s.task for m, s in self._outstanding.items() if s.node == node}
        known = client is not None and self._node_of.get(client) == node
        if client is None or not known or all(task is None for task in sent.values()):
            self._forget(node, now)
            return
        self._absent[node] = now
        for message in [message for message, task in sent.items() if task is None]:
            del self._outstanding[message]
        self._do(self.dispatcher.unreachable(client, now=now))
        never_sent = [s.task for _, s in self._outbox if s.node == node and s.task is not None]
        for task in never_sent:
            reason = "the client left before it was sent"
            self._do(self.dispatcher.failed(task, now=now, reason=reason))

    def _forget(self, node: int, now: float) -> None:
        client = self._client_of.pop(node, None)
        self._absent.pop(node, None)
        self._claims.pop(node, None)
        self._ask_again.pop(node, None)
        self._drop_messages(node)
        if client is not None and self._node_of.get(client) == node:
            del self._node_of[client]
            self._do(self.dispatcher.left(client, now=now))

    def _drop_messages(self, node: int) -> None:
        for message in [m for m, sent in self._outstanding.items() if sent.node == node]:
            del self._outstanding[message]

    def _receive(self, received: Received) -> None:
        now = self.elapsed
        if isinstance(received, Notice):
            self.journal.event(Event(received.kind, None, received.detail), now)
            return
        sent = self._outstanding.pop(received.message, None)
        if sent is None:
            self._unexpected(received, now)
        elif isinstance(received, Failure):
            self._failed(received, sent, now)
        elif sent.task is None:
            if isinstance(received, Identity):
                self._identified(sent.node, received, now)
            elif isinstance(received.update, str):
                self._did_not_say(sent.node, received.update, now)
        elif isinstance(received, Answer):
            self._completed(received, sent.task, self._client_of.get(sent.node), now)

    def _unexpected(self, received: Answer | Identity | Failure, now: float) -> None:
        """A reply to nothing, or to what was answered before; of failures nothing is left to do."""
        if isinstance(received, Failure):
            return
        self.dispatcher.counts.unknown += 1
        node = received.node
        detail = f"{self._name(node)}: a reply that nothing waits for, or no more, dropped"
        self.journal.event(Event("refused", self._client_of.get(node), detail), now)

    def _completed(self, answer: Answer, task: int, client: int | None, now: float) -> None:
        # A loss is a client's own data, and has no noise.
        loss = answer.loss if self.dispatcher.privacy is None else None
        actions = self.dispatcher.completed(
            task,
            answer.update,
            now=now,
            client=client,
            claimed=answer.claimed,
            loss=loss,
            steps=answer.steps if self.settings.strategy.local_epochs else None,
        )
        self._do(actions, loss=loss, computing=answer.seconds)
        due = self.journal.evaluated_at + self.settings.evaluate_every
        if self.dispatcher.counts.completed >= due and not self.journal.evaluating:
            self.journal.evaluate(now)

    def _failed(self, failure: Failure, sent: _Sent, now: float) -> None:
        if failure.gone:
            self._disconnected(sent.node, now)
            if sent.node in self._absent and sent.task is not None:
                self._do(self.dispatcher.failed(sent.task, now=now, reason=failure.reason))
        elif sent.task is not None:
            self._do(self.dispatcher.failed(sent.task, now=now, reason=failure.reason))
        else:
            self._did_not_say(sent.node, failure.reason, now)

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

    def _identified(self, node: int, identity: Identity, now: float) -> None:
        """Believe who a node says it is, if it speaks the same language."""
        if identity.version is not None and not compatible(identity.version, __version__):
            self._ask_again.pop(node, None)
            why = f"node {node} runs Sojourn {identity.version} and this server {__version__}: "
            self._refuse(why + "install the same version on both", now)
        elif isinstance(identity.client, str):
            self._introduced(node, self._numbered(identity.client, now), now)
        else:
            self._introduced(node, identity.client, now)

    def _numbered(self, device: str, now: float) -> int | None:
        """The number of the client of that name; ``None``, and a word in the log, if there is none."""
        names = [client.name for client in self.dispatcher.clients]
        if device in names:
            return names.index(device)
        if self.settings.admit == "any":
            if (number := self.dispatcher.admit(device)) is not None:
                return number
            why = f"'{device}' finds no place: all {self.settings.clients} clients are taken. "
            why += "Set 'clients' to more."
        else:
            why = f"unknown device '{device}': the fleet has {', '.join(names[:5])}"
            why += " and others" if len(names) > 5 else ""
        self._refuse(why, now)
        return None

    def _refuse(self, why: str, now: float) -> None:
        """A node is not let in; what is said if none is."""
        self._last_failure = why
        self.journal.event(Event("refused", None, why), now)

    def _introduced(self, node: int, client: int | None, now: float) -> None:
        """A node has said which client it is."""
        self._ask_again.pop(node, None)
        if client is None or not 0 <= client < len(self.dispatcher.clients):
            detail = f"node {node} is none of the clients, and gets no tasks"
            self.journal.event(Event("refused", None, detail), now)
            return
        member = self.dispatcher.clients[client]
        before, current = self._client_of.get(node), self._node_of.get(client)
        if current == node:
            self._do(self.dispatcher.answered(client, now=now))
        elif before is not None:
            detail = f"{self._name(node)}: claims to be {member.name} now"
            self.journal.event(
                Event("refused", before, f"{detail}, and gets no tasks as that"), now
            )
        elif current is not None and member.status in SETTLED:
            detail = f"node {node} claims to be {member.name}, {SETTLED[member.status]}"
            self.journal.event(Event("refused", client, detail), now)
            self._claims[node] = client
        else:
            if current is not None:
                self._absent.pop(current, None)
                self._drop_messages(current)
                self._client_of[current], self._claims[current] = None, client
            self._client_of[node], self._node_of[client] = client, node
            self._do(self.dispatcher.joined(client, now=now))

    def _do(
        self, actions: Actions, *, loss: float | None = None, computing: float | None = None
    ) -> None:
        now = self.elapsed
        for event in actions.events:
            self.journal.event(event, now)
        if (done := actions.used or actions.dropped) is not None:
            self.journal.completed(done, loss, now, computing)
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
            local_epochs=self.settings.strategy.local_epochs,
            wire=self.settings.wire,
        )
        allowed = self.dispatcher.allowance(self.dispatcher.clients[task.client])
        seconds = max(LEAST_TTL_SECONDS, 10.0 * allowed)
        message = TaskMessage(node, seconds, request, self.dispatcher.weights_of(task))
        self._outbox.append((message, _Sent(node, task.number)))

    def _ask(self, node: int) -> None:
        self._outbox.append((Question(node, WHO_TTL_SECONDS), _Sent(node, None)))

    def _flush(self) -> None:
        """Send together what has been decided upon, unless its node has left since."""
        there = self._client_of.keys() - self._absent.keys()
        outbox = [pair for pair in self._outbox if pair[1].node in there]
        self._outbox = []
        if outbox:
            names = self.transport.send([message for message, _ in outbox])
            self._outstanding |= zip(names, (sent for _, sent in outbox), strict=True)
            self._let_go()

    def _let_go(self) -> None:
        """Keep no memory for later, where a message takes many megabytes."""
        if self._like.nbytes > LARGE_BYTES:
            forget_free_vectors()
            give_back()

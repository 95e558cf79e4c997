"""Who is there: clients that join, answer, leave, fail and are put aside, and what becomes of their tasks."""

from abc import ABC, abstractmethod

from sojourn.deploy.agreement import Agreement
from sojourn.deploy.clients import Client
from sojourn.deploy.quarantine import MAJORITY, Quarantine
from sojourn.deploy.routing import Router
from sojourn.deploy.screening import Chain
from sojourn.deploy.tasks import Actions, Counts, Event, EventKind, Task
from sojourn.deploy.versions import Versions


class Membership(ABC):
    """The part of the dispatcher that knows which clients there are, and which tasks are whose.

    What is not done by living clients is ``held`` until `_fill` finds somebody for it.
    """

    clients: list[Client]
    router: Router
    agreement: Agreement
    quarantine: Quarantine
    screen: Chain
    patience: int
    versions: Versions
    tasks: dict[int, Task]
    held: int
    counts: Counts

    @abstractmethod
    def _fill(self, finisher: int | None, now: float, actions: Actions) -> None:
        """Route what is held, as far as there is somebody to take it."""

    @abstractmethod
    def _send(self, client: Client, now: float, actions: Actions) -> None:
        """Send a client what is queued for it, as far as it may have messages out."""

    def joined(self, client: int, *, now: float) -> Actions:
        """A client has connected anew: whatever was sent to it before is gone, and sent again."""
        actions = Actions()
        member = self.clients[client]
        for number in reversed(member.disconnected()):
            if number in self.tasks:
                member.queue.appendleft(self.tasks[number])
        if member.status == "quarantined":
            return actions
        self._revive(member, "joined", now, actions)
        return actions

    def answered(self, client: int, *, now: float) -> Actions:
        """A client that was asked whether it lives says that it does."""
        actions = Actions()
        member = self.clients[client]
        if not member.alive and member.status != "quarantined":
            member.started = now if member.out else None
            self._revive(member, "returned", now, actions)
        return actions

    def left(self, client: int, *, now: float) -> Actions:
        """A client is gone; its tasks are routed to others."""
        actions = Actions()
        member = self.clients[client]
        if member.status != "away":
            self._say(actions, "left", member, "left")
        self._take_away(member)
        member.disconnected()
        if member.status != "quarantined":
            self._set_status(member, "away", now)
        self._fill(None, now, actions)
        return actions

    def _failure(self, client: Client, now: float, actions: Actions) -> None:
        client.failures += 1
        if client.failures >= self.patience and client.alive:
            self._say(actions, "aside", client, f"failed {client.failures} times in a row")
            self._take_away(client)
            self._set_status(client, "aside", now)
            client.retry_later(now)

    def set_quarantine(self, number: int, reason: str | None, *, now: float) -> Actions:
        """Give a client no more tasks, for ``reason``; ``None`` lets it out again, to be asked."""
        actions = Actions()
        client = self.clients[number]
        if reason is not None:
            self._condemn(client, reason, now, actions)
        elif client.status == "quarantined":
            client.refused = client.failures = 0
            self.agreement.forget(number)
            self._set_status(client, "aside", now)
            client.retry_at = now
        return actions

    def _condemn(self, client: Client, reason: str, now: float, actions: Actions) -> None:
        if client.status != "quarantined":
            self._say(actions, "quarantined", client, f"quarantined: {reason}")
            self._take_away(client)
            self._set_status(client, "quarantined", now)
            self._fill(None, now, actions)

    def _points_away(self, client: Client) -> str | None:
        """Why its updates are not wanted, whatever they are like otherwise; ``None`` if they are."""
        if not (self.screen.trusts_majority and len(self.clients) >= MAJORITY):
            return None
        agreement, evidence = self.agreement.of(client.number)
        return self.quarantine.points_away(agreement=agreement, evidence=evidence)

    def _quarantine_if_due(self, client: Client, now: float, actions: Actions) -> None:
        reason = self.quarantine.too_many(client.refused) or self._points_away(client)
        if reason is not None:
            self._condemn(client, reason, now, actions)

    def _revive(self, client: Client, kind: EventKind, now: float, actions: Actions) -> None:
        self._set_status(client, "alive", now)
        self._say(actions, kind, client, kind)
        self._send(client, now, actions)
        self._fill(None, now, actions)

    def _set_status(self, client: Client, status: str, now: float) -> None:
        client.status = status  # type: ignore[assignment]
        self.router.restrict([c.number for c in self.clients if c.alive], now)

    def _take_away(self, client: Client) -> None:
        """Its tasks are the server's again; those sent stay in ``out`` until it answers them."""
        for number in client.out:
            if number in self.tasks:
                client.taken[number] = self.tasks[number].dispatched
                self._lose(self.tasks[number])
        while client.queue:
            self._lose(client.queue.popleft())

    def _lose(self, task: Task) -> None:
        self.counts.lost += 1
        self._finish(task)

    def _finish(self, task: Task) -> None:
        del self.tasks[task.number]
        self.versions.release(task.version)
        self.held += 1

    @staticmethod
    def _say(actions: Actions, kind: EventKind, client: Client | None, detail: str) -> None:
        number, name = (None, "unknown client") if client is None else (client.number, client.name)
        actions.events.append(Event(kind, number, f"{name}: {detail}"))

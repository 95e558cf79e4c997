r"""The asynchronous server as a state machine, without clock, network or torch.

Whoever drives it says what happened and when (``start``, ``completed``, ``failed``, ``joined``,
``answered``, ``unreachable``, ``left``, ``tick``), and carries out the `Actions` that come back.
Between two events exactly m tasks are somewhere: held by the server because no client can take
them, queued for a client, or sent to it.

When clients are gone p is renormalised over those that live. A task remembers p *and n* as they
were when it was routed, n being the number of clients that p was over, and what its update is
divided by for them. So the mean step of Generalized AsyncSGD, :math:`\sum_i p_i\, \eta g_i/(n p_i)`,
is :math:`\eta` times the average gradient of the clients living at that time, neither biased
towards some of them nor shortened because others are gone.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sojourn.deployment.guard.guard import Guard, GuardState
from sojourn.deployment.guard.screens import Gradient, Submission, Verdict, unusable
from sojourn.deployment.router import Replan, Router
from sojourn.deployment.speeds import Deadlines, RateEstimate, rates_of
from sojourn.deployment.tasks import (
    FIRST_RETRY_SECONDS,
    UNKNOWN_WEIGHT,
    Actions,
    Client,
    Counts,
    Event,
    EventKind,
    Status,
    Task,
    Use,
    Versions,
    new_clients,
)
from sojourn.dispatch import Policy, as_policy
from sojourn.errors import InvalidInput
from sojourn.fleet import check_concurrency
from sojourn.rules import Arrival, Rule, Weighting, begin_state
from sojourn.rules.privacy import Privacy
from sojourn.rules.state import (
    Layout,
    check_local_steps,
    check_memory,
    keeps_table,
    sent_with,
    steps_of,
)
from sojourn.types import FloatArray, Vector

LOOKS_AT_NEW = (1, 4, 16)
"""Tasks after which the speed of a device that was let in is used, whenever the next look is due."""


class Dispatcher:
    """Queues, weights, deadlines and exact accounting of an asynchronous server.

    ``weights`` is the initial model, ``layout`` the tensors that it is made of, ``routing`` p over all
    n clients, ``depth`` the number of messages that may be out to one client. ``service_rates``, if
    known, is where estimation starts; clients after the first ``listed`` are places for devices that
    `admit` lets in. ``client_weights`` say how much each client counts, 1 on average. With ``replan``
    the routing is recomputed from the estimated rates every ``replan_every`` updates and whenever a
    client's speed is seen to change. A client that fails ``patience`` times in a row is set aside.

    ``guard`` judges updates and clients, ``reference`` being the gradient of the server's own samples
    for screens that need it. ``key`` is a secret of the server's, from which its sketches of updates
    are drawn (by default the seed, which clients know). ``updates``, if known, is how many will be
    used in all, for rules whose steps depend on the progress of the run.

    >>> from sojourn.rules import AsyncSGD
    >>> server = Dispatcher(
    ...     np.zeros(2), rule=AsyncSGD(), routing=[0.5, 0.5], concurrency=2, learning_rate=0.1
    ... )
    >>> for client in (0, 1):
    ...     _ = server.joined(client, now=0.0)
    >>> [task.client for task in server.start(now=0.0).send]
    [0, 1]
    >>> actions = server.completed(0, np.ones(2), now=1.0)
    >>> server.state.weights
    array([-0.1, -0.1])
    >>> len(server.tasks), actions.used.staleness
    (2, 0)
    """

    def __init__(
        self,
        weights: NDArray[np.floating],
        *,
        rule: Rule,
        layout: Layout = (),
        routing: Sequence[float] | FloatArray,
        concurrency: int,
        learning_rate: float,
        policy: str | Policy | None = None,
        depth: int = 1,
        service_rates: Sequence[float] | FloatArray | None = None,
        names: Sequence[str] | None = None,
        listed: int | None = None,
        client_weights: FloatArray | None = None,
        replan: Replan | None = None,
        replan_every: int = 50,
        patience: int = 3,
        guard: Guard | None = None,
        reference: Gradient | None = None,
        deadlines: Deadlines | None = None,
        privacy: Privacy | None = None,
        noise: np.random.Generator | None = None,
        updates: int | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> None:
        if depth < 1:
            raise InvalidInput(f"depth must be at least 1 message per client; it is {depth}")
        self.rule, self.learning_rate = rule, learning_rate
        self.concurrency = check_concurrency(concurrency)
        self.depth, self.patience = depth, patience
        self.weighting: Weighting = getattr(rule, "weighting", Weighting())
        self.updates = updates
        self.random = np.random.default_rng(seed)
        n = np.size(routing)
        check_memory(rule, n, weights)
        check_local_steps(rule, n)
        self.state = begin_state(rule, weights, n, layout)
        self.rates_known = service_rates is not None
        self.listed = n if listed is None else listed
        self.clients = new_clients(n, service_rates, names, listed=self.listed)
        self._forgets = privacy is None and not keeps_table(rule, n)
        self.router = Router(
            np.asarray(routing),
            np.array([client.estimate.rate() for client in self.clients]),
            policy=as_policy(policy or rule.policy),
            concurrency=self.concurrency,
            random=self.random,
            tasks=lambda number: len(self.clients[number].queue) + len(self.clients[number].out),
            client_weights=client_weights,
            listed=self.listed,
        )
        self.replan, self.replan_every = replan, replan_every
        self.planned_at = 0
        """How many updates had been used when the router last got new speeds."""
        self.guard = GuardState(
            Guard() if guard is None else guard,
            size=weights.size,
            clients=n,
            planned=None if service_rates is None else np.array(service_rates, dtype=np.float64),
            reference=reference,
            key=str(seed).encode() if key is None else key,
        )
        self.deadlines = Deadlines() if deadlines is None else deadlines
        self.privacy = privacy
        self._most_answers = None if privacy is None else privacy.answers()
        self._noise = np.random.default_rng() if noise is None else noise
        self.versions = Versions()
        self.tasks: dict[int, Task] = {}
        self.held = 0
        self.counts = Counts()

    # What happened

    def start(self, *, now: float) -> Actions:
        """Route the first m tasks, the same number to each living client as far as possible."""
        if self.counts.routed or self.held:
            raise InvalidInput("the dispatcher was started before; start it once")
        actions = Actions()
        self.guard.pace.learn(self.service_rates(now), now=now)
        living = self.router.living
        if self.router.policy.one_task_each or not living:
            self.held = self.concurrency
            self._fill(None, now, actions)
        else:
            for j in range(self.concurrency):
                self._route(living[j % len(living)], now, actions)
        return actions

    def completed(
        self,
        number: int,
        update: object,
        *,
        now: float,
        client: int | None = None,
        claimed: int | None = None,
        loss: float | None = None,
        steps: int | None = None,
    ) -> Actions:
        """A reply to task ``number`` has come, from ``client`` if the transport knows.

        ``claimed`` is the task that the reply itself names, if it names one; ``loss`` is the mean loss
        that the client saw, and ``steps`` how many local steps it took, if the server did not say.
        """
        actions = Actions()
        task = self.tasks.get(number)
        in_flight = task is not None
        if task is None and client is not None:
            task = self.clients[client].taken.get(number)
        if task is None:
            return self._unexpected(number, client, actions)
        sender = self.clients[task.client]
        if number not in sender.out or client not in (None, sender.number):
            return self._unexpected(number, client, actions)
        seconds = self._answered(sender, number, now, actions)
        if in_flight or self._welcome_late(task, update, actions):
            steps = steps or steps_of(self.rule, task.client)
            sender.gradients += steps
            verdict = self._judge(task, update, claimed)
            if verdict.outcome == "refuse":
                self._refuse(task, verdict, now, actions)
            else:
                self._use(task, verdict, loss, steps, seconds, actions)
        if in_flight:
            self._finish(task)
        else:
            self.versions.release(task.version)
        reason = self.guard.quarantine_reason(sender.number, sender.refused)
        if reason is not None:
            self._condemn(sender, reason, now, actions)
        self._replan_if_due(now, actions)
        if in_flight:
            self._fill(task.client, now, actions)
        elif sender.status in ("overdue", "away"):
            self._revive(sender, "returned", now, actions)
        self._send(sender, now, actions)
        return actions

    def failed(self, number: int, *, now: float, reason: str = "the client failed") -> Actions:
        """Task ``number`` will not be answered, because its client failed at it."""
        actions = Actions()
        task = self.tasks.get(number)
        if task is None:
            for client in self.clients:
                if number in client.out:
                    if number in client.taken:
                        self.versions.release(client.taken[number].version)
                        self._report(actions, "failed", client, f"task {number} failed: {reason}")
                    client.answered(number, now)
                    self._send(client, now, actions)
            return actions
        sender = self.clients[task.client]
        if number in sender.out:
            sender.answered(number, now)
        else:
            sender.queue.remove(task)
        self._lose(task)
        self._report(actions, "failed", sender, f"task {number} failed: {reason}")
        self._failure(sender, now, actions)
        self._fill(None, now, actions)
        self._send(sender, now, actions)
        return actions

    def joined(self, client: int, *, now: float) -> Actions:
        """A client has connected anew: whatever was sent to it before is gone, and sent again."""
        actions = Actions()
        member = self.clients[client]
        for number in reversed(self._disconnect(member)):
            if number in self.tasks:
                member.queue.appendleft(self.tasks[number])
        if member.status != "quarantined":
            self._revive(member, "joined", now, actions)
        return actions

    def admit(self, device: str) -> int | None:
        """A place for a device that the fleet does not list; ``None`` if all are taken.

        Its speed is taken to be the median one until it has answered.
        """
        free = next((client for client in self.clients if client.vacant), None)
        if free is None:
            return None
        known = [c.estimate.rate() for c in self.clients if not c.vacant]
        rate = float(np.median(known)) if known else free.estimate.rate()
        free.name, free.vacant = device, False
        free.estimate = RateEstimate.prior(rate, weight=UNKNOWN_WEIGHT)
        self.router.rates[free.number] = rate
        return free.number

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
        actions = self.unreachable(client, now=now)
        self._disconnect(self.clients[client])
        return actions

    def unreachable(self, client: int, *, now: float) -> Actions:
        """A client is gone and may come back; its tasks are routed to others.

        What it was sent it may still answer, late.
        """
        actions = Actions()
        member = self.clients[client]
        if member.status != "away":
            self._report(actions, "left", member, "left")
        self._take_away(member)
        member.left_at = min(member.left_at, now)
        if member.status != "quarantined":
            self._set_status(member, "away", now)
        self._fill(None, now, actions)
        return actions

    def set_quarantine(self, number: int, reason: str | None, *, now: float) -> Actions:
        """Give a client no more tasks, for ``reason``; ``None`` releases it, to be asked again."""
        actions = Actions()
        client = self.clients[number]
        if reason is not None:
            self._condemn(client, reason, now, actions)
        elif client.status == "quarantined":
            client.refused = client.failures = 0
            self.guard.forget(number)
            self._set_status(client, "aside", now)
            client.retry_at = now
        return actions

    def tick(self, now: float) -> Actions:
        """Time has passed: deadlines, second chances, a new plan."""
        actions = Actions()
        self.guard.pace.learn(self.service_rates(now), now=now)
        for client in self.clients:
            if client.alive and client.queue:
                self._send(client, now, actions)
            if client.alive and client.started is not None:
                running = now - client.started
                # Most tasks are younger than any deadline, which then need not be computed.
                if running > self.deadlines.least and running > (allowed := self.allowance(client)):
                    self._report(actions, "overdue", client, f"no answer within {allowed:.1f} s")
                    self._take_away(client)
                    self._set_status(client, "overdue", now)
                    client.retry_later(now)
            elif client.status in ("overdue", "aside") and now >= client.retry_at:
                actions.probe.append(client.number)
                client.retry_later(now)
            elif not (client.listed or client.vacant) and client.status == "away":
                self._forget_if_due(client, now, actions)
        self._fill(None, now, actions)
        return actions

    # What is known

    def weights_of(self, task: Task) -> Vector:
        """The weights that ``task`` is to be sent with."""
        return self.versions[task.version]

    def allowance(self, client: Client) -> float:
        """The deadline, in seconds, of the task that ``client`` is working on."""
        estimate = client.estimate
        known = estimate.tasks > 0 or self.rates_known
        return self.deadlines.allowance(
            mean_seconds=estimate.mean_seconds if known else None, tasks=estimate.tasks
        )

    def service_rates(self, now: float) -> FloatArray:
        """The estimated service rate of every client; running tasks count as censored.

        None is above what is plausible, however fast a client answers.
        """
        begun = [now if client.started is None else client.started for client in self.clients]
        running = np.maximum(0.0, now - np.array(begun))
        rates = rates_of([client.estimate for client in self.clients], running)
        return self.guard.pace.plausible(rates)

    def seconds_to_reply(self) -> float:
        """How long until the next reply, by the estimated speeds of the clients that have tasks."""
        rate = sum(client.estimate.rate() for client in self.clients if client.out)
        return 1.0 / rate if rate else math.inf

    @property
    def epsilon(self) -> float | None:
        """The privacy spent on the client that has answered most often; ``None`` without privacy."""
        if self.privacy is None:
            return None
        return self.privacy.epsilon(max(client.answers for client in self.clients))

    @property
    def budget_spent(self) -> bool:
        """Whether one more answer of some client may cost more privacy than the run may spend."""
        most = self._most_answers
        return most is not None and max(client.answers for client in self.clients) >= most

    @property
    def throttled(self) -> bool:
        """Whether a client that could take a task has to wait because it is faster than plausible."""
        return any(c.alive and c.queue and len(c.out) < self.depth for c in self.clients)

    @property
    def living(self) -> list[int]:
        """The clients that tasks may be routed to."""
        return self.router.living

    # How it is done

    def _fill(self, finisher: int | None, now: float, actions: Actions) -> None:
        while self.held:
            chosen = self.router.choose(finisher, now)
            if chosen is None:
                return
            self.held -= 1
            self._route(chosen, now, actions)

    def _route(self, number: int, now: float, actions: Actions) -> None:
        client = self.clients[number]
        task = Task(
            number=self.counts.routed,
            client=number,
            ordinal=client.ordinal,
            version=self.state.version,
            dispatched=self.counts.completed,
            probability=self.router.share(number),
            clients=len(self.router.living),
            divisor=self.router.divisor(number, self.weighting),
        )
        self.counts.routed += 1
        client.ordinal += 1
        self.tasks[task.number] = task
        self.versions.retain(task.version, sent_with(self.rule, self.state))
        client.queue.append(task)
        self.router.sent(number)
        self._send(client, now, actions)

    def _send(self, client: Client, now: float, actions: Actions) -> None:
        while client.alive and client.queue and len(client.out) < self.depth:
            if not self.guard.pace.take(client.number, now=now):
                return
            task = client.queue.popleft()
            client.sent(task.number, now)
            actions.send.append(task)

    def _judge(self, task: Task, update: object, claimed: int | None) -> Verdict:
        if claimed is not None and claimed != task.number:
            why: str | None = f"it answers task {task.number} and names task {claimed}"
        else:
            why = unusable(update, self.state.weights)
        if why is not None or not isinstance(update, np.ndarray):
            return Verdict("refuse", reason=why or "")
        if self.privacy is not None:
            update = self.privacy.apply(update, self._noise)
            self.clients[task.client].answers += 1
        given = Submission(
            update,
            task.client,
            self.state.weights,
            self.state.version,
            weight=1.0 / task.divisor,
            earned=self.counts.completed * task.probability / task.divisor,
            descends=self.rule.sends == "gradient",
            fleet=self.guard.fleet(task.client),
        )
        return self.guard.judge(given, task.dispatched)

    def _refuse(self, task: Task, verdict: Verdict, now: float, actions: Actions) -> None:
        sender = self.clients[task.client]
        self.counts.refused += 1
        detail = f"update of task {task.number} refused: {verdict.reason}"
        self._report(actions, "refused", sender, detail)
        sender.refused += verdict.blame
        if verdict.blame or verdict.idle:
            self._failure(sender, now, actions)

    def _use(
        self,
        task: Task,
        verdict: Verdict,
        loss: float | None,
        steps: int,
        seconds: float | None,
        actions: Actions,
    ) -> None:
        """Give an update to the rule, unless a screen holds it back, and say what became of it."""
        client = self.clients[task.client]
        staleness = self.state.version - task.version
        used = verdict.outcome == "keep"
        if verdict.outcome == "apply" and verdict.update is not None:
            weight = float(self.router.client_weights[task.client])
            arrival = Arrival(
                verdict.update if weight == 1.0 else verdict.update * weight,
                self.versions[task.version],
                client=task.client,
                staleness=staleness,
                share=task.probability,
                divisor=task.divisor,
                round=self.counts.completed,
                progress=min(1.0, self.counts.used / self.updates) if self.updates else 0.0,
                loss=math.nan if loss is None else loss,
                steps=steps,
            )
            self.state, used = self.rule.apply(
                self.state,
                arrival,
                learning_rate=self.learning_rate,
                clients=task.clients,
                concurrency=self.concurrency,
            )
        if used:
            actions.used = Use(task, self.counts.used, staleness, seconds, verdict.scale)
            self.counts.used += 1
            client.used += 1
        else:
            actions.dropped = Use(task, None, staleness, seconds, verdict.scale)
            self.counts.dropped += 1
        client.failures = 0
        client.retry_seconds = FIRST_RETRY_SECONDS

    def _unexpected(self, number: int, client: int | None, actions: Actions) -> Actions:
        """A reply to a task that this client was not sent, or has answered before."""
        sender = None if client is None else self.clients[client]
        if number in self.tasks or not 0 <= number < self.counts.routed:
            self.counts.unknown += 1
            detail = f"reply to task {number}, which was not sent to this client, dropped"
            self._report(actions, "refused", sender, detail)
        else:
            self.counts.late += 1
            self._report(actions, "late", sender, f"second reply to task {number} dropped")
        return actions

    def _welcome_late(self, task: Task, update: object, actions: Actions) -> bool:
        """Whether a reply after its deadline is used, like any other that is as stale.

        Another task has taken its place in flight, so that nothing is routed for it. Of a client in
        quarantine it is only looked at.
        """
        sender = self.clients[task.client]
        self.counts.late += 1
        if sender.status != "quarantined":
            self.counts.lost -= 1
            self._report(actions, "late", sender, f"late reply to task {task.number} taken in")
            return True
        usable = isinstance(update, np.ndarray) and unusable(update, self.state.weights) is None
        if usable and self.privacy is None and isinstance(update, np.ndarray):
            self.guard.agreement.observe(sender.number, update, task.dispatched)
        self._report(actions, "late", sender, f"late reply to task {task.number} dropped")
        return False

    def _answered(self, client: Client, number: int, now: float, actions: Actions) -> float | None:
        """Take ``number`` off the client's hands and learn from how long it took."""
        seconds = client.answered(number, now)
        if seconds is None:
            return None
        estimate = client.estimate
        if estimate.tasks:
            self.deadlines.observe(seconds / estimate.mean_seconds)
        else:
            self.deadlines.observe_first(seconds)
        if (change := client.learn(seconds)) is not None:
            self._report(actions, "routing", client, change)
        if change is not None or (not client.listed and estimate.tasks in LOOKS_AT_NEW):
            self.planned_at = self.counts.used - self.replan_every  # due now
        return seconds

    def _replan_if_due(self, now: float, actions: Actions) -> None:
        """Give the router new speeds every ``replan_every`` updates, and of a new p for them."""
        if self.counts.used - self.planned_at < self.replan_every:
            return
        self.planned_at = self.counts.used
        rates = self.service_rates(now)
        self.router.speeds(rates, now)
        if self.replan is None:
            return
        try:
            self.router.change(self.replan(rates), now)
        except Exception as error:  # whatever a planner may raise, the tasks must go on
            detail = f"re-planning failed, the old routing stays: {error}"
        else:
            text = np.array2string(self.router.routing, precision=4, threshold=8)
            detail = f"new routing {text}"
        actions.events.append(Event("routing", None, detail))

    def _failure(self, client: Client, now: float, actions: Actions) -> None:
        client.failures += 1
        if client.failures >= self.patience and client.alive:
            self._report(actions, "aside", client, f"failed {client.failures} times in a row")
            self._take_away(client)
            self._set_status(client, "aside", now)
            client.retry_later(now)

    def _forget_if_due(self, client: Client, now: float, actions: Actions) -> None:
        """Free the place of a device that has been gone for longer than its deadline.

        Not where that would also forget its privacy spent, or where the rule remembers its updates.
        """
        if not self._forgets or now - client.left_at <= self.allowance(client):
            return
        self._report(actions, "left", client, "forgotten; its place is free")
        self._disconnect(client)
        self.guard.forget(client.number)
        client.vacant, client.name = True, f"place {client.number}"
        client.used = client.refused = client.failures = 0
        client.retry_seconds = FIRST_RETRY_SECONDS

    def _condemn(self, client: Client, reason: str, now: float, actions: Actions) -> None:
        if client.status != "quarantined":
            self._report(actions, "quarantined", client, f"quarantined: {reason}")
            self._take_away(client)
            self._set_status(client, "quarantined", now)
            self._fill(None, now, actions)

    def _revive(self, client: Client, kind: EventKind, now: float, actions: Actions) -> None:
        client.left_at = math.inf
        self._set_status(client, "alive", now)
        self._report(actions, kind, client, kind)
        self._send(client, now, actions)
        self._fill(None, now, actions)

    def _set_status(self, client: Client, status: Status, now: float) -> None:
        client.status = status
        self.router.lives(client.number, client.alive, now)
        self.guard.lives(client.number, client.alive)

    def _disconnect(self, client: Client) -> list[int]:
        """Whatever was sent to it will not be answered; the numbers of those tasks, oldest first."""
        for task in client.taken.values():
            self.versions.release(task.version)
        numbers = list(client.out)
        client.out.clear()
        client.taken.clear()
        client.started = None
        return numbers

    def _take_away(self, client: Client) -> None:
        """Its tasks are the server's again; those sent stay in ``out`` until it answers them."""
        for number in client.out:
            if (task := self.tasks.get(number)) is not None:
                client.taken[number] = task
                self.versions.retain(task.version, self.versions[task.version])
                self._lose(task)
        while client.queue:
            self.counts.withdrawn += 1
            self._finish(client.queue.popleft())

    def _lose(self, task: Task) -> None:
        self.counts.lost += 1
        self._finish(task)

    def _finish(self, task: Task) -> None:
        del self.tasks[task.number]
        self.versions.release(task.version)
        self.held += 1

    @staticmethod
    def _report(actions: Actions, kind: EventKind, client: Client | None, detail: str) -> None:
        number, name = (None, "unknown client") if client is None else (client.number, client.name)
        actions.events.append(Event(kind, number, f"{name}: {detail}"))

r"""The asynchronous server as a state machine, without clock, network or torch.

Whoever drives it says what happened and when (``start``, ``completed``, ``failed``, ``joined``,
``answered``, ``left``, ``tick``), and carries out the `Actions` that come back. Between two events
exactly m tasks are somewhere: held by the server because no client can take them, queued for a
client, or sent to it.

When clients are gone p is renormalised over those that live. A task remembers p *and n* as they
were when it was routed, n being the number of clients that p was over, and what its update is
divided by for them. So the mean step of Generalized AsyncSGD, :math:`\sum_i p_i\, \eta g_i/(n p_i)`,
is :math:`\eta` times the average gradient of the clients living at that time, neither biased
towards some of them nor shortened because others are gone.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sojourn.deploy.agreement import Agreement
from sojourn.deploy.clients import FIRST_RETRY_SECONDS, Client, new_clients
from sojourn.deploy.deadlines import Deadlines
from sojourn.deploy.membership import Membership
from sojourn.deploy.pacing import LARGEST_SPEED, Pace
from sojourn.deploy.quarantine import Quarantine
from sojourn.deploy.replanning import Replan, Replanning
from sojourn.deploy.routing import Router
from sojourn.deploy.screening import Chain, Norm, Screen, Verdict
from sojourn.deploy.screening.base import Gradient, unusable
from sojourn.deploy.tasks import Actions, Counts, Drop, Task, Use
from sojourn.deploy.versions import Versions
from sojourn.dispatch import Policy, as_policy
from sojourn.errors import InvalidInput
from sojourn.network import check_concurrency
from sojourn.rules import Arrival, Rule, Weighting
from sojourn.rules.memory import check_memory
from sojourn.types import FloatArray, Vector


class Dispatcher(Membership):
    """Queues, weights, deadlines and exact accounting of an asynchronous server.

    ``weights`` is the initial model, ``routing`` p over all n clients, ``depth`` the number of
    messages that may be out to one client. ``service_rates``, if known, is where estimation
    starts; ``client_weights`` say how much each client counts, 1 on average. With ``replan`` the routing is recomputed from the estimated rates every
    ``replan_every`` updates and whenever a client's speed is seen to change. A client that fails
    ``patience`` times in a row is set aside, and one that ``quarantine`` condemns gets no more tasks.
    ``screens`` look at every update before it is used, ``reference`` being the gradient of the
    server's own samples for those that need it; nobody gets tasks faster than ``largest_speed`` times
    what is plausible (`sojourn.deploy.pacing`). ``updates``, if known, is how many will be used in
    all, for rules whose steps depend on the progress of the run.

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
        routing: Sequence[float] | FloatArray,
        concurrency: int,
        learning_rate: float,
        policy: str | Policy | None = None,
        depth: int = 1,
        service_rates: Sequence[float] | FloatArray | None = None,
        names: Sequence[str] | None = None,
        client_weights: FloatArray | None = None,
        replan: Replan | None = None,
        replan_every: int = 50,
        patience: int = 3,
        screens: Sequence[Screen] = (Norm(),),
        reference: Gradient | None = None,
        largest_speed: float = LARGEST_SPEED,
        quarantine: Quarantine | None = None,
        deadlines: Deadlines | None = None,
        updates: int | None = None,
        seed: int = 0,
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
        self.state = rule.begin(weights, n)
        self.rates_known = service_rates is not None
        self.clients = new_clients(n, service_rates, names)
        self.router = Router(
            np.asarray(routing),
            np.array([client.estimate.rate() for client in self.clients]),
            policy=as_policy(policy or rule.policy),
            concurrency=self.concurrency,
            random=self.random,
            tasks=lambda number: len(self.clients[number].queue) + len(self.clients[number].out),
            client_weights=client_weights,
        )
        self.replanning = Replanning(self.router, replan, replan_every)
        self.screen = Chain(screens, size=weights.size, clients=n, gradient=reference)
        self.agreement = Agreement(size=weights.size, clients=n, seed=seed)
        self.quarantine = Quarantine() if quarantine is None else quarantine
        planned = None if service_rates is None else np.array(service_rates, dtype=np.float64)
        self.pace = Pace(n, largest_speed=largest_speed, planned=planned)
        self.deadlines = Deadlines() if deadlines is None else deadlines
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
        self.pace.learn(self.service_rates(now), now=now)
        living = self.router.living
        if self.router.policy.one_task_each or not living:
            self.held = self.concurrency
            self._fill(None, now, actions)
            return actions
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
    ) -> Actions:
        """A reply to task ``number`` has come, from ``client`` if the transport knows.

        ``claimed`` is the task that the reply itself names, if it names one.
        """
        actions = Actions()
        task = self.tasks.get(number)
        if task is None or (client is not None and task.client != client):
            return self._stray(number, client, update, now, actions)
        sender = self.clients[task.client]
        if number not in sender.out:
            return self._stray(number, client, update, now, actions)
        seconds = self._answered(sender, number, now, actions)
        verdict = self._judge(task, update, claimed)
        sent = self.versions[task.version]
        self._finish(task)
        if verdict.outcome == "refuse":
            self.counts.refused += 1
            detail = f"update of task {number} refused: {verdict.reason}"
            self._say(actions, "refused", sender, detail)
            sender.refused += verdict.blame
            if verdict.blame or verdict.idle:
                self._failure(sender, now, actions)
        else:
            self._use(task, sent, verdict, seconds, actions)
        self._quarantine_if_due(sender, now, actions)
        self._replan_if_due(now, actions)
        self._fill(task.client, now, actions)
        self._send(sender, now, actions)
        return actions

    def failed(self, number: int, *, now: float, reason: str = "the client failed") -> Actions:
        """Task ``number`` will not be answered, because its client failed at it."""
        actions = Actions()
        task = self.tasks.get(number)
        if task is None:
            for client in self.clients:
                if number in client.out:
                    client.answered(number, now)
                    self._send(client, now, actions)
            return actions
        sender = self.clients[task.client]
        if number in sender.out:
            sender.answered(number, now)
        else:
            sender.queue.remove(task)
        self._lose(task)
        self._say(actions, "failed", sender, f"task {number} failed: {reason}")
        self._failure(sender, now, actions)
        self._fill(None, now, actions)
        self._send(sender, now, actions)
        return actions

    def tick(self, now: float) -> Actions:
        """Time has passed: deadlines, second chances, a new plan."""
        actions = Actions()
        self.pace.learn(self.service_rates(now), now=now)
        for client in self.clients:
            if client.alive and client.queue:
                self._send(client, now, actions)
            if client.alive and client.started is not None:
                allowed = self.allowance(client)
                if now - client.started > allowed:
                    self._say(actions, "overdue", client, f"no answer within {allowed:.1f} s")
                    self._take_away(client)
                    self._set_status(client, "overdue", now)
                    client.retry_later(now)
            elif client.status in ("overdue", "aside") and now >= client.retry_at:
                actions.probe.append(client.number)
                client.retry_later(now)
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
        rates = np.array([client.estimate.rate(client.running(now)) for client in self.clients])
        return self.pace.plausible(rates)

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
        self.versions.retain(task.version, self.state.weights)
        client.queue.append(task)
        self.router.sent(number)
        self._send(client, now, actions)

    def _send(self, client: Client, now: float, actions: Actions) -> None:
        while client.alive and client.queue and len(client.out) < self.depth:
            if not self.pace.take(client.number, now=now):
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
        self.agreement.observe(task.client, update, task.dispatched)
        if self._points_away(self.clients[task.client]) is not None:
            return Verdict("hold", reason="its client points away from the others")
        return self.screen.judge(
            update,
            client=task.client,
            weights=self.state.weights,
            version=self.state.version,
            weight=1.0 / task.divisor,
            earned=self.counts.completed * task.probability / task.divisor,
            descends=self.rule.sends == "gradient",
        )

    def _use(
        self, task: Task, sent: Vector, verdict: Verdict, seconds: float | None, actions: Actions
    ) -> None:
        staleness = self.state.version - task.version
        used = verdict.outcome == "keep"
        if verdict.outcome == "apply" and verdict.update is not None:
            used = self._apply(task, sent, verdict.update, staleness)
        client = self.clients[task.client]
        if used:
            actions.used = Use(task, self.counts.used, staleness, seconds, verdict.scale)
            self.counts.used += 1
            client.used += 1
        else:
            actions.dropped = Drop(task, staleness, seconds, verdict.scale)
            self.counts.dropped += 1
        client.failures = 0
        client.retry_seconds = FIRST_RETRY_SECONDS

    def _apply(self, task: Task, sent: Vector, update: Vector, staleness: int) -> bool:
        """Whether the rule used it."""
        weight = float(self.router.client_weights[task.client])
        arrival = Arrival(
            update if weight == 1.0 else update * weight,
            sent,
            client=task.client,
            staleness=staleness,
            share=task.probability,
            divisor=task.divisor,
            round=self.counts.completed,
            progress=min(1.0, self.counts.used / self.updates) if self.updates else 0.0,
        )
        self.state, used = self.rule.apply(
            self.state,
            arrival,
            learning_rate=self.learning_rate,
            clients=task.clients,
            concurrency=self.concurrency,
        )
        return used

    def _stray(
        self, number: int, client: int | None, update: object, now: float, actions: Actions
    ) -> Actions:
        sender = None if client is None else self.clients[client]
        if number in self.tasks or not 0 <= number < self.counts.routed:
            self.counts.unknown += 1
            detail = f"reply to task {number}, which was not sent to this client, dropped"
            self._say(actions, "refused", sender, detail)
            return actions
        self.counts.late += 1
        self._say(actions, "late", sender, f"late or second reply to task {number} dropped")
        if sender is not None and number in sender.out:
            about, model = sender.taken.get(number), self.state.weights
            usable = isinstance(update, np.ndarray) and unusable(update, model) is None
            if usable and about is not None:
                self.agreement.observe(sender.number, np.asarray(update), about)
            self._answered(sender, number, now, actions)
            self._quarantine_if_due(sender, now, actions)
            self._replan_if_due(now, actions)
            if sender.status == "overdue":
                self._revive(sender, "returned", now, actions)
            else:
                self._send(sender, now, actions)
        return actions

    def _answered(self, client: Client, number: int, now: float, actions: Actions) -> float | None:
        """Take ``number`` off the client's hands and learn from how long it took."""
        seconds = client.answered(number, now)
        if seconds is None:
            return None
        estimate = client.estimate
        if estimate.tasks:
            self.deadlines.observe(seconds / estimate.mean_seconds)
        if (change := client.learn(seconds)) is not None:
            self._say(actions, "routing", client, change)
            self.replanning.make_due(self.counts.used)
        return seconds

    def _replan_if_due(self, now: float, actions: Actions) -> None:
        rates = partial(self.service_rates, now)
        actions.events += self.replanning.if_due(self.counts.used, rates, now)

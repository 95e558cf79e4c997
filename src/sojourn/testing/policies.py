"""Whether a dispatch policy keeps what the simulator and the deployment's server rely on."""

import copy
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sojourn.deployment.checkpoint import restore_checkpoint, write_checkpoint
from sojourn.deployment.dispatcher import Dispatcher
from sojourn.dispatch import Chooser, Policy, as_policy, policy_to_table
from sojourn.fleet import Fleet, Network
from sojourn.rules import AsyncSGD
from sojourn.simulation.plain import PlainRun
from sojourn.simulation.runs import Run, start_run
from sojourn.simulation.scenario import Scenario
from sojourn.testing.stateless import require
from sojourn.types import FloatArray

RATES = (0.5, 1.0, 1.0, 2.0, 4.0)
ROUTING = (0.1, 0.15, 0.2, 0.25, 0.3)
CONCURRENCY = 3
STEPS = 300
REPLICATES, ROUNDS = 30, 400
ERRORS = 4.0
"""Standard errors by which the compiled form of a policy that draws may differ from the plain."""


def check_policy_conforms(policy: Policy) -> None:
    """Raise ``AssertionError``, saying what is wrong, unless ``policy`` conforms.

    Its chooser is driven by hand with clients that leave and return, in the simulator's plain loop
    (against the compiled form where there is one), and in a `Dispatcher`, unless it is not for
    deployment.

    >>> from sojourn.dispatch import Shuffled
    >>> check_policy_conforms(Shuffled())
    """
    if isinstance(policy, type):
        raise AssertionError(f"give a policy, not its class: {policy.__name__}()")
    require(isinstance(policy, Policy), "a policy must be an instance of sojourn.dispatch.Policy")
    require(isinstance(policy.name, str) and bool(policy.name), "name must be text")
    for flag in ("routes", "one_task_each", "deployable"):
        require(type(getattr(policy, flag)) is bool, f"{flag} must be true or false")
    if type(policy).__module__ != "__main__":  # there it cannot be found again by name
        table = json.loads(json.dumps(policy_to_table(policy)))
        require(as_policy(table) == policy, f"{table} must be read back as the same policy")
    check_shares(policy)
    check_chooser(policy)
    check_simulation(policy)
    if policy.deployable:
        check_deployment(policy)


def check_shares(policy: Policy) -> None:
    """Shares, where they are known, are positive and sum to 1."""
    shares = policy.shares(_network())
    if shares is None:
        return
    require(np.shape(shares) == (len(RATES),), "shares must be one for every client")
    whole = bool(np.all(shares > 0)) and abs(float(np.sum(shares)) - 1.0) < 1e-9
    require(whole, f"shares must be positive and sum to 1; they are {shares}")


def check_chooser(policy: Policy) -> None:
    """Choices by hand: the same with the same generator, of living clients, and after a restore."""
    first, second = list(_walk(policy)), list(_walk(policy))
    require(first == second, "choosers with the same generator must make the same choices")
    for moment in (20, STEPS // 2) if policy.deployable else ():
        whole, resumed = list(_walk(policy, moment)), list(_walk(policy, moment, restore=True))
        require(
            whole == resumed,
            "a chooser restored from record() must make the same choices from then on as one that went on: "
            "record() returns all that it remembers, as JSON values (keys of dictionaries become text), "
            "and restore() takes it up; changed() is called on both at that moment",
        )


def check_simulation(policy: Policy) -> None:
    """The plain loop: the same with the same seed; as many tasks as there should be; as compiled."""
    network, scenario = _network(), Scenario(policy=policy)
    scenario.check(network)
    plain, again = _run(PlainRun(network, scenario, 3)), _run(PlainRun(network, scenario, 3))
    require(plain == again, "the same seed must give the same schedule")
    if isinstance(start_run(network, scenario, seed=3), PlainRun):
        return
    before = np.random.default_rng(5)
    after = copy.deepcopy(before)
    list(_walk(policy, random=after))
    if before.bit_generator.state == after.bit_generator.state:  # it draws nothing
        # Exponential times may be simulated without clocks, which draws other times.
        clocked = Scenario(policy=policy, law="lognormal")
        looped = _run(PlainRun(network, clocked, 3))
        compiled = _run(start_run(network, clocked, seed=3))
        require(looped[0] == compiled[0], "the compiled form must choose as the plain loop does")
        same = np.allclose(looped[1], compiled[1], rtol=1e-12, atol=0.0)
        require(same, "the compiled form must take the time that the plain loop takes")
        return
    samples = [
        np.array([_measured(start(network, scenario, seed)) for seed in range(REPLICATES)])
        for start in (
            PlainRun,
            lambda network, scenario, seed: start_run(network, scenario, seed=seed),
        )
    ]
    means = [sample.mean(axis=0) for sample in samples]
    variances = [sample.var(axis=0, ddof=1) / REPLICATES for sample in samples]
    apart = np.abs(means[0] - means[1]) <= ERRORS * np.sqrt(sum(variances)) + 1e-12
    require(
        bool(apart.all()),
        f"the compiled form must give each client the share of the plain loop, and the same pace: "
        f"{means[0]} against {means[1]}",
    )


def check_deployment(policy: Policy) -> None:
    """A `Dispatcher`, whose clients leave and return, and which is resumed from its checkpoint."""
    server, twin = _dispatcher(policy), _dispatcher(policy)
    sent = [_serve(one) for one in (server, twin)]
    require(sent[0] == sent[1], "servers with the same seed must send the same tasks")
    resumed = _dispatcher(policy)
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder) / "state.npz", server)
        restore_checkpoint(Path(folder) / "state.npz", resumed)
    for client in range(len(RATES)):
        resumed.joined(client, now=1000.0)
    _answer(resumed, 40, now=1000.0)
    require(resumed.counts.used == server.counts.used + 40, "a resumed server must go on")


@dataclass
class _Clients:
    """A `sojourn.dispatch.View` of clients that are driven by hand."""

    living: list[int] = field(default_factory=lambda: list(range(len(RATES))))
    concurrency: int = CONCURRENCY
    routing: FloatArray = field(default_factory=lambda: np.array(ROUTING))
    rates: FloatArray = field(default_factory=lambda: np.array(RATES))
    client_weights: FloatArray = field(default_factory=lambda: np.ones(len(RATES)))
    now: float = 0.0
    held: int = 0
    counts: list[int] = field(default_factory=lambda: [0] * len(RATES))

    @property
    def under_way(self) -> int:
        return sum(self.counts)

    def tasks(self, client: int) -> int:
        return self.counts[client]

    def take_back(self, client: int) -> None:
        """A task of ``client`` is the server's again."""
        self.counts[client] -= 1
        self.held += 1


def _network() -> Network:
    return Network(Fleet(RATES), ROUTING, CONCURRENCY)


def _walk(
    policy: Policy,
    moment: int | None = None,
    *,
    restore: bool = False,
    random: np.random.Generator | None = None,
) -> Iterator[int | None]:
    """Every choice while tasks end and clients join and leave; at a ``moment`` something changes.

    With ``restore`` a new chooser then takes over from the record of the old.
    """
    events, random = np.random.default_rng(7), random or np.random.default_rng(11)
    view = _Clients(concurrency=policy.in_flight(_network()))
    view.held = view.concurrency
    chooser = policy.chooser(random)
    require(isinstance(chooser, Chooser), "chooser must return a sojourn.dispatch.Chooser")
    chooser.changed(view)
    if policy.deployable:
        yield from _filled(policy, chooser, view, None)
    else:
        _deal(chooser, view)
    for step in range(STEPS):
        view.now += float(events.exponential())
        if step == moment:
            if restore:
                record = json.loads(json.dumps(chooser.record()))
                chooser = policy.chooser(random)
                chooser.restore(record)
            chooser.changed(view)
        finisher = None
        if policy.deployable and events.random() < 0.15:
            _come_or_go(view, int(events.integers(len(RATES))))
            chooser.changed(view)
        else:
            busy = [client for client in view.living if view.counts[client]]
            if busy:
                finisher = busy[int(events.integers(len(busy)))]
                view.take_back(finisher)
                _stop(policy, chooser, view, finisher)
        yield from _filled(policy, chooser, view, finisher)


def _deal(chooser: Chooser, view: _Clients) -> None:
    """The first tasks as the simulator sends them, round-robin."""
    for j in range(view.held):
        client = view.living[j % len(view.living)]
        view.counts[client] += 1
        chooser.sent(client)
    view.held = 0


def _stop(policy: Policy, chooser: Chooser, view: _Clients, finisher: int) -> None:
    stopped = list(chooser.stops(view, finisher))
    require(
        not (stopped and policy.deployable),
        "clients of a deployment cannot be stopped: say deployable = False",
    )
    for client in stopped:
        require(view.counts[client] > 0, f"client {client!r} has no task to stop")
        view.take_back(client)


def _come_or_go(view: _Clients, client: int) -> None:
    if client not in view.living:
        view.living = sorted([*view.living, client])
    else:
        view.living.remove(client)
        view.held += view.counts[client]
        view.counts[client] = 0


def _filled(
    policy: Policy, chooser: Chooser, view: _Clients, finisher: int | None
) -> Iterator[int | None]:
    while view.held and view.living:
        chosen = chooser.choose(view, finisher)
        yield chosen
        if chosen is None:
            require(view.under_way > 0, "with all clients idle somebody must be chosen")
            return
        require(chosen in view.living, f"client {chosen!r} was chosen; {view.living} are living")
        if policy.one_task_each:
            free = view.counts[chosen] == 0
            require(free, "with one task each a busy client must not be chosen; return None")
        view.held -= 1
        view.counts[chosen] += 1
        chooser.sent(chosen)


def _run(run: Run, rounds: int = ROUNDS) -> tuple[list[list[int]], list[float]]:
    """Who finished, when each task was sent, and the times."""
    client, sent = np.empty(rounds, dtype=np.int32), np.empty(rounds, dtype=np.int64)
    time = np.empty(rounds)
    run.advance(np.inf, 0, (client, sent, time))
    return [client.tolist(), sent.tolist()], time.tolist()


def _measured(run: Run) -> list[float]:
    """The share of every client and the rounds per time unit, in the second half of a run."""
    (clients, _), times = _run(run, 2 * ROUNDS)
    counts = np.bincount(clients[ROUNDS:], minlength=len(RATES)) / ROUNDS
    return [*counts.tolist(), ROUNDS / (times[-1] - times[ROUNDS - 1])]


def _dispatcher(policy: Policy) -> Dispatcher:
    return Dispatcher(
        np.zeros(2, dtype=np.float32),
        rule=AsyncSGD(),
        routing=ROUTING,
        concurrency=CONCURRENCY,
        learning_rate=0.1,
        policy=policy,
        service_rates=RATES,
        seed=1,
    )


def _serve(server: Dispatcher) -> list[int]:
    """Clients join, leave and return; the client of every task that is answered."""
    for client in range(len(RATES)):
        server.joined(client, now=0.0)
    server.start(now=0.0)
    answered = _answer(server, 30, now=1.0)
    for number, client in enumerate((4, 0, 3)):
        server.left(client, now=40.0 + 20 * number)
        answered += _answer(server, 15, now=41.0 + 20 * number)
    for client in (0, 3, 4):
        server.joined(client, now=110.0)
    return answered + _answer(server, 40, now=111.0)


def _answer(server: Dispatcher, rounds: int, now: float) -> list[int]:
    """Answer the oldest task that is out, again and again."""
    clients = []
    for t in range(rounds):
        out = [number for client in server.clients for number in client.out]
        require(bool(out), "tasks must not all be held back while clients are idle")
        task = server.tasks[min(out)]
        clients.append(task.client)
        server.completed(task.number, np.ones(2, dtype=np.float32), now=now + t)
        total = server.held + len(server.tasks)
        require(total == CONCURRENCY, f"{CONCURRENCY} tasks must be somewhere; there are {total}")
    return clients

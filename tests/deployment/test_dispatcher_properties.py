"""Whatever happens to clients and replies, m tasks are somewhere and each counts once."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sojourn.deployment.checkpoint import restore_checkpoint, write_checkpoint
from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.speeds import Deadlines
from sojourn.deployment.tasks import Actions, Task
from sojourn.dispatch import POLICIES
from sojourn.rules import RULES, FedBuff, GeneralizedAsyncSGD, Ringmaster, Rule

CLIENTS = 4


class World(RuleBasedStateMachine):
    """Clients that answer, fail, answer twice, come and go, while the clock advances."""

    @initialize(
        concurrency=st.integers(1, 7),
        depth=st.integers(1, 3),
        policy=st.sampled_from([p for p, kind in POLICIES.items() if kind.deployable]),
        server_rule=st.sampled_from(
            [GeneralizedAsyncSGD(), FedBuff(buffer_size=3), Ringmaster(max_staleness=2)]
        ),
        at_start=st.sets(st.integers(0, CLIENTS - 1)),
        seed=st.integers(0, 1000),
        adapt=st.booleans(),
    )
    def begin(
        self,
        concurrency: int,
        depth: int,
        policy: str,
        server_rule: Rule,
        at_start: set[int],
        seed: int,
        adapt: bool,
    ) -> None:
        self.now = 0.0
        self.folder = TemporaryDirectory()
        self.sent: dict[int, list[int]] = {i: [] for i in range(CLIENTS)}
        self.ended: list[int] = []
        self.used: list[int] = []
        self.make = lambda: Dispatcher(
            np.zeros(3),
            rule=server_rule,
            routing=[0.1, 0.2, 0.3, 0.4],
            concurrency=concurrency,
            learning_rate=0.1,
            policy=policy,
            depth=depth,
            deadlines=Deadlines(shortest=5.0, first=20.0),
            replan=(lambda rates: rates / rates.sum()) if adapt else None,
            replan_every=3,
            seed=seed,
        )
        self.server = self.make()
        self.weights = {0: self.server.state.weights}
        for client in sorted(at_start):
            self.take(self.server.joined(client, now=self.now))
        self.take(self.server.start(now=self.now))

    def take(self, actions: Actions) -> None:
        server = self.server
        self.weights[server.state.version] = server.state.weights
        for task in actions.send:
            assert server.tasks[task.number] == task
            np.testing.assert_array_equal(server.weights_of(task), self.weights[task.version])
            assert server.clients[task.client].alive
            self.sent[task.client].append(task.number)
        if actions.used is not None:
            self.used.append(actions.used.task.number)

    def out(self) -> list[Task]:
        return [
            self.server.tasks[n] for ns in self.sent.values() for n in ns if n in self.server.tasks
        ]

    @precondition(lambda self: self.out())
    @rule(data=st.data())
    def reply(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.out()))
        completed = self.server.counts.completed
        self.take(self.server.completed(task.number, np.ones(3), now=self.now, client=task.client))
        assert self.server.counts.completed == completed + 1
        self.ended.append(task.number)

    @precondition(lambda self: self.out())
    @rule(
        data=st.data(),
        bad=st.sampled_from(
            [
                np.full(3, np.nan),
                np.ones(4),
                np.full(3, 1e30),
                np.ones((3, 1)),
                None,
                np.ones(3, int),
                np.ones(3, np.float16),
                np.ones(3, np.float32),
            ]
        ),
    )
    def bad_reply(self, data: st.DataObject, bad: object) -> None:
        task = data.draw(st.sampled_from(self.out()))
        before = self.server.state
        self.take(self.server.completed(task.number, bad, now=self.now, client=task.client))
        assert self.server.state is before
        self.ended.append(task.number)

    @precondition(lambda self: self.server.counts.routed)
    @rule(data=st.data(), client=st.integers(0, CLIENTS - 1))
    def stray_reply(self, data: st.DataObject, client: int) -> None:
        numbers = [n for n in range(self.server.counts.routed + 3) if n not in self.sent[client]]
        taken = self.server.clients[client].taken
        numbers += [n for n in self.sent[client] if n not in self.server.tasks and n not in taken]
        number = data.draw(st.sampled_from(numbers))
        tasks, before = dict(self.server.tasks), self.server.state
        self.take(self.server.completed(number, np.ones(3), now=self.now, client=client))
        assert self.server.state is before
        assert tasks.items() <= self.server.tasks.items()

    @precondition(lambda self: any(client.taken for client in self.server.clients))
    @rule(data=st.data(), good=st.booleans())
    def late_reply(self, data: st.DataObject, good: bool) -> None:
        """A task that was taken from its client is answered all the same: its work counts."""
        late = [task for client in self.server.clients for task in client.taken.values()]
        task = data.draw(st.sampled_from(late))
        counts = self.server.counts
        lost, over, held = counts.lost, counts.completed + counts.refused, len(self.server.tasks)
        update = np.ones(3) if good else np.full(3, np.nan)
        blocked = self.server.clients[task.client].status == "quarantined"
        self.take(self.server.completed(task.number, update, now=self.now, client=task.client))
        assert task.number not in self.server.clients[task.client].taken
        assert counts.completed + counts.refused == over + (not blocked)
        assert len(self.server.tasks) + self.server.held == self.server.concurrency
        if good and not blocked:
            assert counts.lost == lost - 1
            assert len(self.server.tasks) >= held

    @precondition(lambda self: self.out())
    @rule(data=st.data())
    def failure(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.out()))
        self.take(self.server.failed(task.number, now=self.now))
        self.ended.append(task.number)

    @rule(number=st.integers(0, 200))
    def failure_of_no_task(self, number: int) -> None:
        if number not in self.server.tasks:
            self.take(self.server.failed(number, now=self.now))

    @rule(client=st.integers(0, CLIENTS - 1))
    def join(self, client: int) -> None:
        self.take(self.server.joined(client, now=self.now))

    @rule(client=st.integers(0, CLIENTS - 1))
    def leave(self, client: int) -> None:
        self.take(self.server.left(client, now=self.now))

    @rule(back=st.sets(st.integers(0, CLIENTS - 1)))
    def crash(self, back: set[int]) -> None:
        """The server dies right after a checkpoint and is resumed; only some clients return."""
        path = Path(self.folder.name) / "checkpoint.npz"
        write_checkpoint(path, self.server)
        before, self.server = self.server, self.make()
        restore_checkpoint(path, self.server)
        assert self.server.tasks == before.tasks
        np.testing.assert_array_equal(self.server.state.weights, before.state.weights)
        self.sent = {i: [] for i in range(CLIENTS)}
        for client in sorted(back):
            self.take(self.server.joined(client, now=self.now))
        for client in set(range(CLIENTS)) - back:
            self.take(self.server.left(client, now=self.now))

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    @rule(seconds=st.floats(0.0, 100.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        actions = self.server.tick(self.now)
        self.take(actions)
        for client in actions.probe:
            assert not self.server.clients[client].alive
            self.take(self.server.answered(client, now=self.now))

    @invariant()
    def tasks_are_conserved(self) -> None:
        server, counts = self.server, self.server.counts
        assert server.held + len(server.tasks) == server.concurrency
        over = counts.completed + counts.refused + counts.lost + counts.withdrawn
        assert counts.routed == over + len(server.tasks)

    @invariant()
    def every_task_is_in_one_place(self) -> None:
        places: list[int] = []
        for client in self.server.clients:
            places += [task.number for task in client.queue]
            places += [number for number in client.out if number in self.server.tasks]
            assert len(client.out) <= self.server.depth
            assert (client.started is None) == (not client.out)
            if not client.alive:
                assert not client.queue
        assert sorted(places) == sorted(self.server.tasks)

    @invariant()
    def weights_are_kept_exactly_as_long_as_needed(self) -> None:
        server = self.server
        needed = Counter(task.version for task in server.tasks.values())
        for client in server.clients:
            assert client.taken.keys() <= set(client.out)
            needed.update(task.version for task in client.taken.values())
        assert server.versions.uses() == needed

    @invariant()
    def no_task_is_used_twice(self) -> None:
        assert len(set(self.used)) == len(self.used) == self.server.counts.used
        assert len(set(self.ended)) == len(self.ended)

    @invariant()
    def nothing_waits_while_somebody_could_work(self) -> None:
        server = self.server
        if server.living and not server.router.policy.one_task_each:
            assert server.held == 0
        if server.living:
            total = sum(server.router.share(i) for i in server.living)
            assert abs(total - 1.0) < 1e-12


World.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestWorld = World.TestCase


def test_every_asynchronous_rule_is_taken_as_it_is() -> None:
    for kind in RULES.values():
        server_rule = kind()
        if server_rule.policy in ("synchronous", "attempts"):
            continue
        server = Dispatcher(
            np.zeros(2), rule=server_rule, routing=[0.5, 0.5], concurrency=2, learning_rate=0.1
        )
        for client in (0, 1):
            server.joined(client, now=0.0)
        server.start(now=0.0)
        for t in range(30):
            number = next(n for c in server.clients for n in c.out)
            server.completed(number, np.ones(2), now=float(t))
        assert server.counts.completed == 30
        assert np.isfinite(server.state.weights).all()

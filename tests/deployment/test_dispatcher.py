"""What the dispatcher does in each case that a fleet can bring about."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.guard import Guard
from sojourn.deployment.guard.pacing import Pace
from sojourn.deployment.speeds import Deadlines
from sojourn.deployment.tasks import Actions
from sojourn.dispatch import Chooser, FirstOf, Policy, Restart, View
from sojourn.errors import InvalidInput, UnknownName
from sojourn.fleet import Fleet
from sojourn.rules import AsyncSGD, FedAvg, GeneralizedAsyncSGD, Ringmaster
from sojourn.theory.floor import target_rates
from tests.deployment.virtual_clock import VirtualClients


def make(**options: object) -> Dispatcher:
    settings: dict[str, object] = {
        "rule": GeneralizedAsyncSGD(),
        "routing": [0.2, 0.3, 0.5],
        "concurrency": 6,
        "learning_rate": 0.1,
    }
    return Dispatcher(np.zeros(2), **{**settings, **options})  # type: ignore[arg-type]


def started(**options: object) -> Dispatcher:
    server = make(**options)
    for client in range(3):
        server.joined(client, now=0.0)
    server.start(now=0.0)
    return server


def said(actions: Actions) -> str:
    return "\n".join(event.detail for event in actions.events)


def test_the_first_tasks_are_spread_evenly() -> None:
    server = started(concurrency=7)
    assert [len(c.out) + len(c.queue) for c in server.clients] == [3, 2, 2]
    assert [len(c.out) for c in server.clients] == [1, 1, 1]


def test_the_routing_is_computed_once_for_all_who_join_before_the_start() -> None:
    """So that n clients cost n, not n squared."""

    class Counting(Chooser):
        changes = 0

        def changed(self, view: View) -> None:
            self.changes += 1

        def choose(self, view: View, finisher: int | None) -> int | None:
            return view.living[0]

    server, counting = make(), Counting()
    server.router._chooser = counting
    for client in (2, 0, 1):
        server.joined(client, now=0.0)
    assert (server.living, counting.changes) == ([0, 1, 2], 0)
    server.start(now=0.0)
    assert counting.changes == 1
    server.left(1, now=1.0)
    assert (server.living, counting.changes) == ([0, 2], 2)


def test_p_is_renormalised_over_the_living_and_n_counts_them() -> None:
    server = started()
    actions = server.left(2, now=1.0)
    assert (server.counts.lost, server.counts.withdrawn) == (1, 1)
    moved = [task for task in server.tasks.values() if task.number >= 6]
    assert len(moved) == 2
    for task in moved:
        assert task.clients == 2
        assert task.probability == pytest.approx({0: 0.4, 1: 0.6}[task.client])
    assert "client 2" in said(actions)


def test_the_tasks_of_a_client_in_quarantine_are_sent_to_others_at_once() -> None:
    server = started(guard=Guard(refused=1), depth=9)
    actions = server.completed(0, "no update at all", now=1.0)
    assert server.clients[0].status == "quarantined"
    assert [task.number for task in actions.send] == [6, 7]
    assert all(task.client in (1, 2) for task in actions.send)


def test_every_update_is_divided_by_n_and_p_as_of_its_dispatch() -> None:
    server = started(concurrency=3)
    server.left(2, now=1.0)
    server.router.change(np.array([0.9, 0.05, 0.05]), now=0.0)
    before = server.state.weights
    server.completed(0, np.ones(2), now=2.0)
    np.testing.assert_allclose(server.state.weights, before - 0.1 / (3 * 0.2))


def test_steps_follow_the_average_of_the_living_clients() -> None:
    """Client i always sends e_i; after a death the mean step is the living clients' average."""
    server = Dispatcher(
        np.zeros(3),
        rule=GeneralizedAsyncSGD(),
        routing=[0.2, 0.3, 0.5],
        concurrency=4,
        learning_rate=1.0,
        seed=5,
    )
    world = VirtualClients(server, [1.0, 1.0, 1.0], seed=6, update=lambda t: np.eye(3)[t.client])
    world.begin()
    world.take(server.left(1, now=world.now))
    world.inbox[1].clear()
    world.done = [entry for entry in world.done if entry[1] != 1]
    begun = 50
    for _ in range(begun):
        world.step()
    weights, count = server.state.weights, 4000
    for _ in range(count):
        world.step()
    mean_step = (weights - server.state.weights) / count
    error = np.array([1.0, 0.0, 0.7]) / np.sqrt(count)
    assert (np.abs(mean_step - [0.5, 0.0, 0.5]) <= 4 * error).all()


def test_without_clients_tasks_are_held_until_one_joins() -> None:
    server = make()
    assert server.start(now=0.0).send == []
    assert server.held == 6
    actions = server.joined(1, now=5.0)
    assert [task.client for task in actions.send] == [1]
    assert server.held == 0
    for client in (1,):
        server.left(client, now=6.0)
    assert server.held == 6
    assert server.versions.uses() == {}


def test_a_late_reply_is_used_and_brings_the_client_back() -> None:
    """A deadline decides whom to ask next, not whether work that was done is thrown away."""
    server = started(guard=Guard(screens=()))
    actions = server.tick(now=100.0)
    assert server.living == []
    assert server.held == 6
    assert (server.counts.lost, server.counts.withdrawn) == (3, 3)
    assert said(actions).count("no answer within 30.0 s") == 3
    back = server.completed(0, np.ones(2), now=101.0, client=0)
    assert (server.counts.late, server.counts.used, server.counts.lost) == (1, 1, 2)
    assert back.used is not None and back.used.task.number == 0
    assert server.living == [0]
    assert back.send
    assert server.held + len(server.tasks) == 6, "another task has taken its place"
    assert "late reply to task 0 taken in" in said(back)
    again = server.completed(0, np.ones(2), now=102.0, client=0)
    assert server.counts.used == 1
    assert "second reply to task 0 dropped" in said(again)


def test_a_rule_that_drops_what_is_stale_drops_a_late_reply() -> None:
    server = started(rule=Ringmaster(max_staleness=2), guard=Guard(screens=()))
    for client in (1, 2):
        server.completed(client, np.ones(2), now=1.0, client=client)
    server.tick(now=100.0)
    weights = server.state.weights
    late = server.completed(0, np.ones(2), now=101.0, client=0)
    assert late.dropped is not None and late.dropped.staleness == 2
    assert server.state.weights is weights


def test_a_task_taken_from_a_client_that_leaves_is_lost() -> None:
    server = started()
    server.tick(now=100.0)
    server.left(0, now=101.0)
    assert not server.clients[0].taken
    server.completed(0, np.ones(2), now=102.0, client=0)
    assert (server.counts.used, server.counts.late, server.counts.lost) == (0, 1, 3)


def test_first_deadlines_are_learnt_from_the_first_tasks_of_others() -> None:
    """Where clients load their data for a minute, the next to come is not given up after 30 s."""
    deadlines = Deadlines(first=30.0)
    assert deadlines.allowance(mean_seconds=None, tasks=0) == 30.0
    deadlines.observe_first(60.0)
    assert deadlines.allowance(mean_seconds=None, tasks=0) == 180.0
    assert deadlines.allowance(mean_seconds=1.0, tasks=0) == 180.0
    assert deadlines.allowance(mean_seconds=1.0, tasks=20) < 30.0
    server = started()
    server.completed(0, np.ones(2), now=25.0, client=0)
    server.tick(now=50.0)
    assert server.living == [0, 1, 2], "three times 25 s"


def test_a_second_reply_is_dropped() -> None:
    server = started()
    server.completed(0, np.ones(2), now=1.0, client=0)
    weights = server.state.weights
    server.completed(0, np.ones(2), now=1.1, client=0)
    assert server.state.weights is weights
    assert (server.counts.used, server.counts.late) == (1, 1)


@pytest.mark.parametrize("number", [-1, 6, 10**9])
def test_a_reply_to_a_task_that_was_never_sent_is_refused(number: int) -> None:
    server = started()
    actions = server.completed(number, np.ones(2), now=1.0, client=0)
    assert server.counts.unknown == 1
    assert "client 0" in said(actions)
    assert len(server.tasks) == 6


def test_a_reply_to_another_clients_task_is_refused() -> None:
    server = started()
    server.completed(1, np.ones(2), now=1.0, client=0)
    assert server.counts.unknown == 1
    assert server.counts.used == 0
    assert 1 in server.tasks


def test_a_client_that_fails_repeatedly_is_set_aside_and_asked_again() -> None:
    server = started(deadlines=Deadlines(first=60.0))
    now = 0.0
    for _ in range(3):
        now += 1.0
        number = server.clients[0].out[0] if server.clients[0].out else None
        while number is None:
            other = next(c for c in server.clients[1:] if c.out)
            server.completed(other.out[0], np.ones(2), now=now)
            number = server.clients[0].out[0] if server.clients[0].out else None
        server.failed(number, now=now, reason="out of memory")
    assert server.clients[0].status == "aside"
    assert server.living == [1, 2]
    assert server.tick(now + 29.0).probe == []
    assert server.tick(now + 31.0).probe == [0]
    server.answered(0, now=now + 32.0)
    assert server.living == [0, 1, 2]


def test_a_restarted_client_gets_its_messages_again() -> None:
    server = started(depth=2)
    out = list(server.clients[0].out)
    actions = server.joined(0, now=3.0)
    assert [task.number for task in actions.send] == out
    assert server.counts.lost == 0


def test_synchronous_rules_are_turned_down_with_advice() -> None:
    with pytest.raises(InvalidInput, match="waits for whole cohorts"):
        make(rule=FedAvg())
    with pytest.raises(UnknownName, match="did you mean 'routed'"):
        make(policy="router")


def test_policies_that_stop_tasks_are_turned_down() -> None:
    class Stopping(Chooser):
        def stops(self, view: View, finisher: int) -> Sequence[int]:
            return ()

    class Own(Policy):
        name = "own"

        def chooser(self, random: np.random.Generator) -> Chooser:
            return Stopping()

    for policy in (Restart(), FirstOf(), Own()):
        with pytest.raises(InvalidInput, match=f"'{policy.name}' .* stops tasks, .* 'never-queue'"):
            make(policy=policy)


def test_wrong_settings_are_said() -> None:
    with pytest.raises(InvalidInput, match="depth"):
        make(depth=0)
    with pytest.raises(InvalidInput, match="over 3 clients"):
        make(service_rates=[1.0])
    with pytest.raises(InvalidInput, match="positive probability"):
        make(routing=[0.5, 0.0, 0.5])
    with pytest.raises(InvalidInput, match="started before"):
        started().start(now=1.0)


def busy_server(rates: list[float], concurrency: int, **options: Any) -> Dispatcher:
    n = len(rates)
    return Dispatcher(
        np.zeros(2),
        rule=AsyncSGD(),
        routing=[1 / n] * n,
        concurrency=concurrency,
        learning_rate=0.1,
        policy="never-queue",
        service_rates=rates,
        deadlines=Deadlines(shortest=1e9, first=1e9),
        **options,
    )


def work_for(server: Dispatcher, means: list[float], until: float, now: float = 0.0) -> list[int]:
    """Clients work off what they are sent, each task in its mean time; who completed what."""
    actions = server.start(now=now) if not server.counts.routed else Actions()
    running = {task.client: (now + means[task.client], task) for task in actions.send}
    for task in server.tasks.values():
        running.setdefault(task.client, (now + means[task.client], task))
    counts = [0] * len(means)
    while running:
        client = min(running, key=lambda i: running[i][0])
        finish, task = running.pop(client)
        if finish > until:
            return counts
        counts[client] += 1
        for sent in server.completed(task.number, np.ones(2), now=finish).send:
            assert sent.client not in running, "a task waits behind another"
            running[sent.client] = (finish + means[sent.client], sent)
    return counts


def test_never_queue_follows_the_duty_cycles() -> None:
    rates = [0.1, 0.4, 0.9, 1.6]
    server = busy_server(rates, 2)
    join_all_of(server)
    counts = work_for(server, [1 / r for r in rates], until=2000.0)
    wanted = 2000.0 * target_rates(Fleet(rates), 2)
    np.testing.assert_allclose(counts, wanted, rtol=0.05)


def test_never_queue_learns_that_a_client_has_slowed_down() -> None:
    rates = [1.0, 1.0, 1.0, 1.0]
    server = busy_server(rates, 2, replan_every=20)
    join_all_of(server)
    work_for(server, [1.0] * 4, until=50.0)
    before = server.router.share(0)
    slow = [10.0, 1.0, 1.0, 1.0]
    work_for(server, slow, until=400.0, now=50.0)
    assert before == pytest.approx(0.25)
    wanted = target_rates(Fleet([0.1, 1.0, 1.0, 1.0]), 2)
    assert server.router.share(0) == pytest.approx(wanted[0] / wanted.sum(), rel=0.25)


def test_never_queue_goes_on_without_a_client_that_died() -> None:
    server = busy_server([1.0, 1.0, 1.0], 3)
    join_all_of(server)
    server.start(now=0.0)
    server.left(1, now=0.5)
    assert server.held == 1  # nobody is idle, and no task waits behind another
    assert {task.client for task in server.tasks.values()} == {0, 2}
    assert server.joined(1, now=1.0).send[0].client == 1


def join_all_of(server: Dispatcher) -> None:
    for client in range(len(server.clients)):
        server.joined(client, now=0.0)


def test_a_dropped_gradient_is_no_update_and_is_counted_apart() -> None:
    rule = Ringmaster(max_staleness=1)
    server = started(rule=rule, policy="never-queue", concurrency=3)
    assert server.completed(0, np.ones(2), now=1.0).used is not None
    weights = server.state.weights
    actions = server.completed(1, np.ones(2), now=2.0)
    assert actions.used is None
    assert actions.dropped is not None
    assert (actions.dropped.task.number, actions.dropped.staleness) == (1, 1)
    assert server.state.weights is weights
    assert [task.client for task in actions.send] == [1]
    counts = server.counts
    assert (counts.used, counts.dropped, counts.routed) == (1, 1, 5)
    assert len(server.tasks) == counts.routed - counts.used - counts.dropped
    assert [client.used for client in server.clients] == [1, 0, 0]


def test_a_plan_that_cannot_be_made_leaves_the_routing_and_loses_no_task() -> None:
    def broken(rates: np.ndarray) -> np.ndarray:
        raise RuntimeError("no convergence")

    server = started(replan=broken, replan_every=1)
    actions = server.completed(0, np.ones(2), now=1.0)
    assert actions.used is not None
    assert len(server.tasks) == 6
    assert server.held == 0
    assert actions.send
    assert "re-planning failed, the old routing stays: no convergence" in said(actions)
    np.testing.assert_allclose(server.router.routing, [0.2, 0.3, 0.5])


@pytest.mark.parametrize("routing", [[0.5, 0.5], [0.5, 0.5, np.nan]])
def test_a_plan_that_is_no_routing_is_not_taken(routing: list[float]) -> None:
    server = started(replan=lambda rates: np.array(routing), replan_every=1)
    actions = server.completed(0, np.ones(2), now=1.0)
    assert len(server.tasks) == 6
    assert "re-planning failed, the old routing stays: routing must be" in said(actions)


def test_clients_count_by_their_weights() -> None:
    weights = np.array([2.0, 0.5, 0.5])
    moved = []
    for given in (None, weights):
        server = started(client_weights=given, guard=Guard(screens=()))
        for task in sorted(server.tasks.values(), key=lambda task: task.number)[:3]:
            before = server.state.weights
            server.completed(task.number, np.ones(2), now=1.0)
            moved.append(server.state.weights - before)
    np.testing.assert_allclose(np.array(moved[3:]), weights[:, None] * np.array(moved[:3]))


def test_who_counts_more_is_busy_more_where_clients_rest() -> None:
    weights, rates = np.array([4.0, 1.0, 1.0]), [1.0, 1.0, 1.0]
    options = {"policy": "never-queue", "concurrency": 1, "service_rates": rates}
    server = started(client_weights=weights / 2.0, **options)
    wanted = target_rates(Fleet(rates, weight=weights), 1)
    np.testing.assert_allclose(
        [server.router.share(client) for client in range(3)], wanted / wanted.sum(), rtol=1e-12
    )
    assert server.router.share(0) > 0.6


def test_a_fleet_slower_than_its_plan_is_not_throttled() -> None:
    """What is plausible is what was planned, at least: clients that catch up get their tasks."""
    pace = Pace(10, largest_speed=2.0, planned=np.ones(10))
    pace.learn(np.full(10, 0.1), now=0.0)
    np.testing.assert_array_equal(pace.caps, 2.0)
    sent = sum(pace.take(0, now=second) for second in range(100))
    assert sent == 100, "one task a second is half of what is plausible"

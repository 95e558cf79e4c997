"""The Flower adapter against a grid without processes: every fault, in virtual seconds."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import nn

from sojourn.deployment.flower.apps import client_app
from sojourn.deployment.flower.transport import FlowerTransport
from sojourn.deployment.journal import Journal
from sojourn.deployment.run import finish, make_dispatcher
from sojourn.deployment.server import LAST_REPLIES_SECONDS, Server
from sojourn.deployment.settings import read_settings
from sojourn.deployment.tasks import Task, Use
from sojourn.errors import InvalidInput
from sojourn.training import Problem
from tests.deployment.fake_grid import FakeGrid, Node, Tamper

SECONDS = [1.0, 2.0, 5.0]


def problem(clients: int, seed: int) -> Problem:
    """Three Gaussian classes on a plane; linear, starting from zero."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(600) % 3
    centres = torch.tensor([[2.0, 0.0], [-2.0, 2.0], [-2.0, -2.0]])
    x = centres[y] + torch.randn(600, 2, generator=generator)
    model = nn.Linear(2, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    size = 450 // clients
    shares = [(x[i * size :][:size], y[i * size :][:size]) for i in range(clients)]
    return Problem(model, shares, (x[450:], y[450:]), batch_size=16)


class Deployment:
    """A server and three nodes in virtual time."""

    def __init__(self, folder: Path, **config: Any) -> None:
        given = {"clients": 3, "updates": 60, "concurrency": 6, "learning-rate": 0.1}
        self.settings = read_settings(
            {**given, "run-folder": str(folder), "checkpoint-seconds": 1e9, **config}, folder
        )
        self.grid = FakeGrid()
        self.app = client_app(problem)
        for client in range(3):
            self.add_node(client)
        self.learnable = problem(3, 0)
        self.dispatcher = make_dispatcher(self.learnable, self.settings, depth=2)
        self.journal = Journal(
            self.dispatcher, self.learnable, self.settings, resume=self.settings.resume
        )
        self.serve()

    def serve(self, **options: Any) -> None:
        """Make the server, with ``options`` of its transport.

        The grid's clock is virtual, but pulls are waited for in real time: on a busy machine long.
        """
        options = {"wait_seconds": 120.0, **options}
        transport = FlowerTransport(
            self.grid, clock=self.grid.clock, sleep=lambda s: self.sleep(s), **options
        )
        given = self.dispatcher, self.journal, self.settings
        self.server = Server(transport, *given, clock=self.grid.clock)

    def sleep(self, seconds: float) -> None:
        """A tenth of a virtual second is enough for any evaluation."""
        self.grid.sleep(seconds)
        self.journal.collect(wait=True)

    def add_node(self, client: int, tamper: Tamper | None = None) -> int:
        number = 100 + len(self.grid.nodes) + self.grid.pushed
        self.grid.nodes[number] = Node(client, self.app, SECONDS[client], tamper)
        return number

    def node(self, client: int) -> Node:
        return next(node for node in self.grid.nodes.values() if node.client == client)

    def kill(self, client: int) -> None:
        self.node(client).hangs = True

    def run(self) -> None:
        self.server.run()
        self.journal.collect(wait=True)
        self.journal.close()

    def run_and_finish(self) -> None:
        """The run, and what is written when it is over."""
        self.server.run()
        finish(self.journal, problem, elapsed=self.server.elapsed)
        self.journal.close()

    def tasks(self) -> list[dict[str, Any]]:
        lines = (self.settings.run_folder / "tasks.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def accuracy(self) -> float:
        return self.journal.history().final_accuracy

    def check_accounts(self) -> None:
        counts, server = self.dispatcher.counts, self.dispatcher
        assert server.held + len(server.tasks) == 6
        over = counts.completed + counts.refused + counts.lost + counts.withdrawn
        assert counts.routed == over + len(server.tasks)
        numbers = [task["task"] for task in self.tasks()]
        assert len(set(numbers)) == len(numbers) == counts.used


def test_a_run_trains_and_keeps_order(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, updates=65)
    deployment.run()
    deployment.check_accounts()
    assert deployment.dispatcher.counts.used == 65
    assert deployment.accuracy() > 0.9
    for client in range(3):
        ordinals = [t["ordinal"] for t in deployment.tasks() if t["client"] == client]
        assert ordinals == list(range(len(ordinals)))
    history = deployment.journal.history()
    assert history.clock == "real"
    assert history.round.tolist() == [0, 10, 20, 30, 40, 50, 60, 65]
    assert np.isfinite(history.train_loss[1:]).all()


def test_staleness_adds_up_to_m_minus_one_per_update(tmp_path: Path) -> None:
    """Every update passes the m - 1 other tasks in flight: an identity, not an average."""
    deployment = Deployment(tmp_path)
    deployment.run()
    done = sum(task["staleness"] for task in deployment.tasks())
    waiting = sum(60 - task.dispatched for task in deployment.dispatcher.tasks.values())
    assert done + waiting == 60 * (deployment.settings.strategy.concurrency - 1)


def test_a_killed_client_costs_seconds_and_is_used_again(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, updates=120)
    grid = deployment.grid

    def restart() -> None:
        dead = next(number for number, node in grid.nodes.items() if node.hangs)
        del grid.nodes[dead]
        deployment.add_node(1)

    grid.at = [(40.0, lambda: deployment.kill(1)), (80.0, restart)]
    deployment.run()
    deployment.check_accounts()
    times = np.array([task["time"] for task in deployment.tasks()])
    assert np.diff(times[times > 20]).max() < 20
    assert deployment.dispatcher.counts.lost >= 2
    again = [task for task in deployment.tasks() if task["client"] == 1 and task["time"] > 80]
    assert again
    without = [t for t in deployment.tasks() if t["clients"] == 2]
    assert without
    assert {t["probability"] for t in without} == {0.5}


def test_a_restarted_client_is_recognised_before_flower_notices_its_death(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, updates=80)
    deployment.grid.at = [
        (30.0, lambda: deployment.kill(0)),
        (32.0, lambda: deployment.add_node(0) and None),
    ]
    deployment.run()
    deployment.check_accounts()
    assert [t for t in deployment.tasks() if t["client"] == 0 and t["time"] > 45]


def test_a_client_that_fails_is_set_aside_and_tried_again(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, updates=80)
    deployment.node(2).fails = True

    def repaired() -> None:
        deployment.node(2).fails = False

    deployment.grid.at = [(35.0, repaired)]
    deployment.run()
    deployment.check_accounts()
    events = (tmp_path / "events.log").read_text()
    assert "aside\tclient 2: failed 3 times in a row" in events
    assert "returned\tclient 2" in events
    assert [t for t in deployment.tasks() if t["client"] == 2]


def hostile(update: np.ndarray | None, *, number: int | None = None) -> Tamper:
    """A client that answers with ``update`` and names task ``number``."""

    def tamper(message: Message, reply: Message) -> Message:
        own: Any = message.content["task"]["number"]
        records: dict[str, Any] = {
            "task": ConfigRecord({"number": own if number is None else number, "loss": 0.0})
        }
        if update is not None:
            records["update"] = ArrayRecord({"update": Array(update)})
        return Message(RecordDict(records), reply_to=message)

    return tamper


@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        (hostile(np.full(9, np.nan, dtype=np.float32)), "not finite"),
        (hostile(np.ones(7, dtype=np.float32)), "shape is (7,)"),
        (hostile(np.full(9, 1e30, dtype=np.float32)), "above the largest allowed"),
        (hostile(np.ones(9, dtype=np.float32), number=1), "names task 1"),
        (hostile(np.ones(9, dtype=np.float32), number=10**6), "names task 1000000"),
        (hostile(np.ones(9, dtype=np.float16)), "float16 where the model's are float32"),
        (hostile(np.ones(9, dtype=np.float64)), "float64 where the model's are float32"),
        (hostile(None), "not an array"),
        (hostile(np.array(["x"] * 9)), "not an array of real numbers"),
    ],
)
def test_hostile_updates_are_refused_and_do_no_harm(
    tmp_path: Path, tamper: Tamper, said: str
) -> None:
    deployment = Deployment(tmp_path)
    deployment.node(0).tamper = tamper
    deployment.run()
    deployment.check_accounts()
    assert deployment.dispatcher.counts.refused >= 3
    assert deployment.dispatcher.state.weights.dtype == np.float32
    assert 0 not in {task["client"] for task in deployment.tasks()}
    refused = [line for line in (tmp_path / "events.log").read_text().splitlines() if said in line]
    assert all("client 0" in line for line in refused)
    assert len(refused) >= 3
    assert deployment.accuracy() > 0.9


def test_replies_that_come_again_change_nothing(tmp_path: Path) -> None:
    """Twice in one pull, and once more in the next: nothing waits for them any more."""
    honest = Deployment(tmp_path / "honest", updates=40)
    honest.run()
    deployment = Deployment(tmp_path / "echo", updates=40)
    deployment.node(0).repeats = True
    deployment.run()
    deployment.check_accounts()
    answers = sum(task["client"] == 0 for task in deployment.tasks())
    assert deployment.dispatcher.counts.unknown >= 2 * answers
    np.testing.assert_array_equal(
        deployment.dispatcher.state.weights, honest.dispatcher.state.weights
    )
    lines = (tmp_path / "echo" / "events.log").read_text().splitlines()
    dropped = [line for line in lines if "a reply that nothing waits for" in line]
    assert len([line for line in dropped if "client 0" in line]) >= 2 * answers


def test_a_client_app_that_cannot_start_is_said(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, **{"join-seconds": 40.0})
    for client in range(3):
        deployment.node(client).cannot_start = True
    with pytest.raises(InvalidInput, match=r"within 40 s.*the client raised an exception"):
        deployment.run()
    deployment.journal.close()
    assert 3 * 3 <= deployment.grid.questions <= 3 * 5
    failed = (tmp_path / "events.log").read_text()
    assert failed.count("failed\tnode 100: asked who it is") == deployment.grid.questions / 3


def test_a_client_app_that_starts_later_joins(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.node(1).cannot_start = True

    def repaired() -> None:
        deployment.node(1).cannot_start = False

    deployment.grid.at = [(20.0, repaired)]
    deployment.run()
    deployment.check_accounts()
    assert 1 in {task["client"] for task in deployment.tasks()}


def test_a_node_that_is_no_client_gets_no_tasks(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    stranger = deployment.add_node(1)
    deployment.grid.nodes[stranger].client = 7
    deployment.run()
    assert not deployment.grid.nodes[stranger].served[1:]


def test_a_second_node_that_claims_a_living_client_is_not_believed(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    impostor = 0

    def intrude() -> None:
        nonlocal impostor
        impostor = deployment.add_node(1)

    deployment.grid.at = [(10.0, intrude)]
    deployment.run()
    assert deployment.grid.nodes[impostor].served == [""]
    assert "who is alive elsewhere" in (tmp_path / "events.log").read_text()


class Killed(Exception):
    """What ends a server in these tests."""


def killed_server(folder: Path, seconds: float, **config: Any) -> int:
    """Run a server that dies after ``seconds``; the updates that it had applied."""

    def die() -> None:
        raise Killed

    deployment = Deployment(folder, **config)
    deployment.grid.at = [(seconds, die)]
    with pytest.raises(Killed):
        deployment.run()
    deployment.journal.close()
    return deployment.dispatcher.counts.used


def test_a_killed_server_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    used_at_death = killed_server(tmp_path, 28.0, **{"checkpoint-seconds": 5.0})
    second = Deployment(tmp_path, resume=True)
    kept = second.dispatcher.counts.used
    assert 0 < kept <= used_at_death
    second.run()
    second.check_accounts()
    assert second.dispatcher.counts.used == 60
    assert [task["index"] for task in second.tasks()] == list(range(60))
    times = [task["time"] for task in second.tasks()]
    assert times == sorted(times)
    assert second.accuracy() > 0.9


def test_rates_are_learnt_and_used(tmp_path: Path) -> None:
    deployment = Deployment(
        tmp_path, updates=150, adapt=True, routing="balanced", **{"replan-every": 20}
    )
    deployment.run()
    deployment.check_accounts()
    rates = deployment.dispatcher.service_rates(deployment.server.elapsed)
    np.testing.assert_allclose(1 / rates, SECONDS, rtol=0.25)
    p = deployment.dispatcher.router.routing
    assert p[0] > p[1] > p[2]


@pytest.mark.parametrize("seconds", [0.5, 20.0])
def test_a_server_killed_before_its_second_checkpoint_can_be_resumed(
    tmp_path: Path, seconds: float
) -> None:
    applied = killed_server(tmp_path, seconds)
    assert (applied > 0) == (seconds > 10)
    second = Deployment(tmp_path, resume=True)
    assert second.dispatcher.counts.used == 0
    second.run()
    second.check_accounts()
    assert [task["index"] for task in second.tasks()] == list(range(60))
    assert second.journal.history().round.tolist() == [0, 10, 20, 30, 40, 50, 60]


def test_a_run_that_begins_anew_keeps_no_tasks_of_another(tmp_path: Path) -> None:
    killed_server(tmp_path, 20.0)
    (tmp_path / "checkpoint.npz").unlink()
    second = Deployment(tmp_path, updates=20)
    second.run()
    second.check_accounts()


def test_a_resumed_run_that_waits_for_clients_stops_at_its_updates(tmp_path: Path) -> None:
    """One client does not come back; the others work while the server waits for it."""
    config = {"checkpoint-seconds": 2.0, "join-seconds": 1e6}
    killed_server(tmp_path, 28.0, **config)
    kept_before = (tmp_path / "checkpoint.npz").stat().st_mtime_ns
    second = Deployment(tmp_path, resume=True, **config)
    del second.grid.nodes[next(n for n, node in second.grid.nodes.items() if node.client == 2)]
    during: list[int] = []
    second.grid.at = [
        (20.0, lambda: during.append((tmp_path / "checkpoint.npz").stat().st_mtime_ns))
    ]
    second.run()
    second.check_accounts()
    assert second.dispatcher.counts.used == 60
    assert during[0] > kept_before


def test_the_server_neither_waits_for_evaluations_nor_piles_them_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation takes until the very end of the run; checkpoints are made all the same."""
    deployment = Deployment(tmp_path, **{"checkpoint-seconds": 1.0})
    over, evaluations = threading.Event(), 0
    measures = deployment.learnable.measures

    def slow(weights: Any) -> Any:
        nonlocal evaluations
        evaluations += 1
        assert over.wait(60)
        return measures(weights)

    def sleep(seconds: float) -> None:
        deployment.grid.sleep(seconds)
        if deployment.dispatcher.counts.used >= 60:
            over.set()

    monkeypatch.setattr(deployment.learnable, "measures", slow)
    monkeypatch.setattr(deployment, "sleep", sleep)
    deployment.run()
    assert evaluations == 2
    history = deployment.journal.history()
    assert history.round.tolist() == [0, 60]
    staleness = [task["staleness"] for task in deployment.tasks()]
    assert history.staleness[-1] == pytest.approx(np.mean(staleness))


def test_averages_of_an_unfinished_evaluation_survive_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Deployment(tmp_path)
    over, measures = threading.Event(), first.learnable.measures

    def slow(weights: Any) -> Any:
        assert over.wait(60)
        return measures(weights)

    use = Use(Task(0, 0, 0, 0, 0, 1 / 3, 3, 1.0), 0, 4, 1.0)
    first.journal.completed(use, 0.5, 1.0)
    monkeypatch.setattr(first.learnable, "measures", slow)
    first.journal.evaluate(1.0)
    first.journal.completed(use, 0.7, 2.0)
    first.journal.checkpoint(3.0)
    over.set()
    first.journal.close()
    second = Deployment(tmp_path, resume=True)
    assert second.journal.evaluated_at == 0
    second.journal.evaluate(4.0)
    second.journal.collect(wait=True)
    assert second.journal.rows[-1]["train_loss"] == pytest.approx(0.6)
    assert second.journal.rows[-1]["staleness"] == 4.0
    second.journal.close()


def test_a_run_ends_after_its_updates_and_says_what_was_dropped(tmp_path: Path) -> None:
    rule = {"rule.name": "ringmaster", "rule.max-staleness": 2}
    world = Deployment(tmp_path, updates=30, **{"evaluate-every": 10}, **rule)
    world.run()
    counts, tasks = world.dispatcher.counts, world.tasks()
    assert counts.used == world.dispatcher.state.version == 30
    assert counts.dropped > 0
    assert len(tasks) == counts.completed
    assert [task["index"] for task in tasks if task["used"]] == list(range(30))
    assert all(task["staleness"] >= 2 for task in tasks if not task["used"])
    history = world.journal.history()
    assert history.round[-1] == counts.completed
    assert history.updates[-1] == 30
    assert max(history.staleness[1:]) < 2


def test_the_end_waits_for_those_at_work_and_uses_nothing_more(tmp_path: Path) -> None:
    """A SuperNode that answers a run which is over may take no message of the next."""
    deployment = Deployment(tmp_path)
    deployment.run()
    weights = deployment.dispatcher.state.weights.copy()
    assert deployment.dispatcher.counts.used == 60
    assert not deployment.grid.pending, "no task is left"
    kept = Deployment(tmp_path, resume=True)
    kept.journal.close()
    np.testing.assert_array_equal(kept.dispatcher.state.weights, weights)
    assert kept.dispatcher.counts == deployment.dispatcher.counts


def test_the_end_does_not_wait_for_the_dead(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.grid.at = [(10.0, lambda: deployment.kill(2))]
    deployment.run()
    last = max(task["time"] for task in deployment.tasks())
    assert deployment.server.elapsed < last + LAST_REPLIES_SECONDS


@pytest.mark.parametrize("patience", [300.0, 30.0])
def test_a_cut_off_client_answers_late_and_nothing_is_lost(
    tmp_path: Path, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node is offline for a minute and comes back, having worked; with less patience it is given up."""
    monkeypatch.setattr("sojourn.deployment.server.ABSENT_SECONDS", patience)
    deployment = Deployment(tmp_path, updates=150)
    grid, cut = deployment.grid, deployment.node(2)
    [number] = [number for number, node in grid.nodes.items() if node is cut]
    away: dict[int, Node] = {}
    grid.at.append((20.05, lambda: away.update({number: grid.nodes.pop(number)})))
    grid.at.append((80.05, lambda: grid.nodes.update(away)))
    deployment.run()
    deployment.check_accounts()
    counts = deployment.dispatcher.counts
    assert counts.used == 150
    assert (counts.lost, counts.late) == ((0, 2) if patience > 60.0 else (2, 0))
    assert {task["client"] for task in deployment.tasks() if task["time"] > 80.0} == {0, 1, 2}
    assert (tmp_path / "events.log").read_text().count("client 2: left") == 1
    assert len(deployment.dispatcher.versions) <= 6, "nothing is kept for what will not come"

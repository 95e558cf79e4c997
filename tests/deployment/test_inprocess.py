"""Clients as threads: every task is accounted for, and theory says how fast and how stale it goes."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sojourn.deployment.client import Learnable
from sojourn.deployment.inprocess import InProcessTransport
from sojourn.deployment.run import serve
from sojourn.deployment.settings import read_settings
from sojourn.deployment.transport import Failure, Identity, Question
from sojourn.fleet import Fleet, Network
from sojourn.simulation.simulate import simulate

SIZE = 20


class Quadratic:
    """Every client wants the same point; it takes no time to compute."""

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def initial_weights(self) -> np.ndarray:
        return np.zeros(SIZE)

    def loss_and_gradient(
        self, weights: np.ndarray, client: int, number: int, seed: int, /
    ) -> tuple[float, np.ndarray]:
        noise = np.random.default_rng([seed, client, number]).normal(scale=0.1, size=SIZE)
        return float(np.sum((weights - 1.0) ** 2)), weights - 1.0 + noise

    def loss_and_difference(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    def evaluate(self, weights: np.ndarray, /) -> tuple[float, float]:
        return float(np.sum((weights - 1.0) ** 2)), float("nan")


def problem(clients: int, seed: int) -> Learnable:
    return Quadratic(clients)


def run(folder: Path, paces: list[Any], function: Any = problem, **config: Any) -> dict[str, Any]:
    given = {"clients": len(paces), "updates": 300, "learning-rate": 0.05, "predict": False}
    settings = read_settings({**given, "run-folder": str(folder / "run"), **config}, folder)
    with InProcessTransport(function, paces) as transport:
        serve(transport, function, settings)
    status: dict[str, Any] = json.loads((folder / "run" / "status.json").read_text())
    return status


def tasks_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "run" / "tasks.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def check_accounts(status: dict[str, Any], in_flight: int) -> None:
    counts = status["counts"]
    over = sum(counts[name] for name in ("used", "dropped", "refused", "lost", "withdrawn"))
    assert counts["routed"] - over + status["held"] == in_flight


def test_a_hundred_updates_a_second_come_through(tmp_path: Path) -> None:
    """Measured over the updates alone, in processor time: others may use this machine."""
    used = time.process_time()
    status = run(tmp_path, [lambda: 0.0] * 3, updates=500, **{"evaluate-every": 500})
    used = time.process_time() - used
    assert status["phase"] == "finished"
    assert status["counts"]["used"] == 500
    check_accounts(status, 3)
    assert 500 / used > 100


@pytest.mark.slow
def test_a_hundred_clients_are_as_fast_and_as_stale_as_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1,000 updates of 100 clients of four speeds, each in a thread with exponential times."""
    rates = np.repeat([0.5, 1.0, 2.0, 4.0], 25)
    Fleet(rates).to_csv(tmp_path / "fleet.csv")
    random = [np.random.default_rng([5, client]) for client in range(100)]
    paces = [
        lambda own=own, rate=rate: own.exponential(1.0 / rate)
        for own, rate in zip(random, rates, strict=True)
    ]
    status = run(
        tmp_path,
        paces,
        updates=1000,
        concurrency=100,
        fleet="fleet.csv",
        policy="routed",
        **{"evaluate-every": 1000, "screen": "none", "largest-speed": 0.0},
    )
    counts = status["counts"]
    assert (counts["used"], counts["lost"], counts["refused"], counts["late"]) == (1000, 0, 0, 0)
    check_accounts(status, 100)
    times = np.array([task["time"] for task in tasks_of(tmp_path)])
    found = (times[-1] - times[0], np.mean([task["staleness"] for task in tasks_of(tmp_path)]))
    network = Network(Fleet(rates), np.full(100, 0.01), 100)
    predicted = []
    for seed in range(40):
        schedule = simulate(network, rounds=1000, policy="routed", start="spread", seed=seed)
        stale = np.mean(np.arange(1000) - schedule.dispatched)
        predicted.append((schedule.time[-1] - schedule.time[0], stale))
    z = (np.array(found) - np.mean(predicted, axis=0)) / np.std(predicted, axis=0, ddof=1)
    with capsys.disabled():
        sys.stdout.write(f"\nseconds and staleness {found}, z {z.round(2)}\n")
    assert np.abs(z).max() < 4.0, z


def test_one_client_descends_as_if_it_computed_alone(tmp_path: Path) -> None:
    """With one client and one task in flight the order of updates is certain."""
    run(tmp_path, [lambda: 0.0], updates=50)
    weights = Quadratic(1).initial_weights()
    for number in range(50):
        weights = weights - 0.05 * Quadratic(1).loss_and_gradient(weights, 0, number, 0)[1]
    np.testing.assert_allclose(np.load(tmp_path / "run" / "weights.npy"), weights, rtol=1e-12)


def test_a_client_that_raises_fails_alone(tmp_path: Path) -> None:
    class Broken(Quadratic):
        def loss_and_gradient(self, weights: Any, client: int, number: int, seed: int, /) -> Any:
            if client == 1:
                raise OSError("the disk is gone")
            return super().loss_and_gradient(weights, client, number, seed)

    status = run(tmp_path, [lambda: 0.001] * 3, lambda clients, seed: Broken(clients))
    assert status["counts"]["used"] == 300
    assert status["clients"][1]["status"] == "aside"
    events = (tmp_path / "run" / "events.log").read_text()
    assert "client 1: task 1 failed: OSError: the disk is gone" in events


def test_clients_leave_and_join(tmp_path: Path) -> None:
    given = {"clients": 3, "updates": 400, "predict": False, "run-folder": str(tmp_path / "run")}
    settings = read_settings(given, tmp_path)
    with InProcessTransport(problem, [lambda: 0.005] * 3) as transport:
        calls = 0

        def pace() -> float:
            nonlocal calls
            calls += 1
            if calls == 20:
                transport.leave(2)
            if calls == 60:
                transport.join(1)
            return 0.005

        transport._paces = [pace, lambda: 0.005, lambda: 0.005]
        serve(transport, problem, settings)
    events = (tmp_path / "run" / "events.log").read_text()
    assert "left\tclient 1: left" in events
    assert events.count("joined\tclient 1: joined") == 2
    assert json.loads((tmp_path / "run" / "status.json").read_text())["counts"]["used"] == 400


@pytest.mark.parametrize("there", [True, False])
def test_a_message_is_answered_by_its_node_or_fails(there: bool) -> None:
    with InProcessTransport(problem, [lambda: 0.0]) as transport:
        [node] = transport.nodes()
        [name] = transport.send([Question(node if there else 99, 1.0)])
        transport.wait(30.0, 0.1)
        [received] = transport.receive([name], np.zeros(1))
        assert isinstance(received, Identity if there else Failure)


def test_a_run_learns_with_bfloat16_on_the_wire(tmp_path: Path) -> None:
    status = run(tmp_path, [lambda: 0.0] * 3, updates=200, wire="bfloat16")
    assert status["loss"] < 0.1
    assert status["counts"]["refused"] == 0

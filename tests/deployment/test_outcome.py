"""A finished deployment leaves the folder of a run, with the prediction beside it."""

import json
import math
import re
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sojourn.deployment.run import make_dispatcher, measured_network, predict, write_outcome
from sojourn.deployment.settings import read_settings
from sojourn.fleet import Fleet, Network
from sojourn.report.deployment import Deployment as Deployed
from sojourn.report.verdict import run_verdict
from sojourn.runs.folder import RunFolder
from sojourn.runs.history import History
from sojourn.simulation.simulate import simulate
from sojourn.training.experiment.experiment import Experiment
from tests.commands import Commands
from tests.deployment.test_server import SECONDS, Deployment, problem
from tests.deployment.test_settings import LEAST


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("outcome")
    deployment = Deployment(where)
    deployment.run()
    server, settings = deployment.dispatcher, deployment.settings
    predicted = predict(server, problem(3, 0), settings)
    histories = [deployment.journal.history(), predicted]
    write_outcome(server, settings, histories, problem_name="federated.task:problem")
    return where


def test_history_and_summary_are_those_of_a_run(folder: Path) -> None:
    deployed, predicted = History.read(folder / "history.jsonl")
    assert (deployed.strategy, deployed.clock) == ("deployed", "real")
    assert (predicted.strategy, predicted.clock) == ("predicted", "virtual")
    assert deployed.round[-1] == predicted.round[-1] == 60
    assert abs(deployed.final_accuracy - predicted.final_accuracy) < 0.05
    summary = json.loads((folder / "summary.json").read_text())
    first = summary["strategies"][0]
    assert first["name"] == "deployed"
    assert first["concurrency"] == 6
    assert summary["provenance"]["inputs"]["counts"]["used"] == 60


def test_the_experiment_can_be_read_and_holds_the_prediction(folder: Path) -> None:
    experiment = Experiment.read(folder / "experiment.toml")
    assert [strategy.name for strategy in experiment.strategies] == ["predicted"]
    assert experiment.rounds == 60
    assert experiment.problem == "federated.task:problem"


def text_of(html: str) -> str:
    """What a reader sees, without scripts and marks."""
    shown = re.sub(r"<(script|style)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", shown)).split())


def test_the_page_is_about_the_deployment(commands: Commands, folder: Path) -> None:
    """Clients, speeds and events; the prediction stands beside, and is no competitor."""
    done = commands.run(folder, "report", str(folder), "--no-stills")
    assert done.code == 0, done.error
    (page,) = folder.rglob("*.html")
    text = text_of(page.read_text(encoding="utf-8"))
    assert text.count("Export the model: test accuracy ") == 2, "as the title and as the heading"
    assert "60 updates from 3 clients in" in text
    assert "what measured predicted" in text
    assert "updates a second" in text
    assert re.search(r"mean staleness, updates [\d.]+ [\d.]+ ± [\d.]+", text)
    for client in ("client 0", "client 1", "client 2"):
        assert re.search(rf"{client} \w+ [\d.]+ – \d+ [\d.]+ [\d.]+ 0 \d+", text), client
    assert "The pick" not in text
    assert "strategies, 1 seed" not in text
    assert "tasks number meaning routed" in text
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    assert re.search(rf"{today} \d\d:\d\d:\d\d joined client 0: joined", text)


def test_a_deployment_without_a_prediction_has_a_page(tmp_path: Path, commands: Commands) -> None:
    deployment = Deployment(tmp_path / "run", updates=20, predict=False)
    deployment.run_and_finish()
    done = commands.run(tmp_path, "report", "run", "--no-stills")
    assert done.code == 0, done.error
    text = text_of((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "20 updates from 3 clients in" in text
    assert "predicted)" not in text


def test_the_verdict_on_a_deployment_does_not_let_the_prediction_win(folder: Path) -> None:
    verdict = run_verdict(RunFolder(folder).read())
    assert (verdict.pick, verdict.alike, verdict.worse) == ("deployed", (), ())


def test_events_are_on_the_clock_across_restarts() -> None:
    sessions = [(0.0, 1_000_000.0), (50.0, 2_000_000.0)]
    found = Deployed(None, None, {}, [], [], None, sessions)  # type: ignore[arg-type]
    assert found.at(10.0) == "1970-01-12 13:46:50"
    assert found.at(60.0) == "1970-01-24 03:33:30"


def deploy_with_random_times(folder: Path, seed: int, **config: Any) -> Deployment:
    """A whole run on clients whose speeds are known, and whose times are exponential."""
    steps = config.get("rule.local-steps", 1)
    fleet = Fleet([steps / seconds for seconds in SECONDS])
    folder.mkdir()
    fleet.to_csv(folder / "fleet.csv")
    deployment = Deployment(folder, updates=60, seed=seed, fleet="fleet.csv", **config)
    for node in deployment.grid.nodes.values():
        node.random = np.random.default_rng([seed, node.client])
    deployment.run_and_finish()
    np.testing.assert_array_equal(
        np.load(folder / "weights.npy"), deployment.dispatcher.state.weights
    )
    return deployment


@pytest.mark.parametrize(
    "rule",
    [
        {"concurrency": 6},
        {"rule": "fedbuff", "concurrency": 6},
        {"rule.name": "fedasync", "rule.local-steps": 3, "concurrency": 6},
        {"rule.name": "fedbuff", "rule.local-steps": 3, "concurrency": 2},
        {"rule.name": "async-sgd", "rule.local-steps": 3, "concurrency": 6},
    ],
)
def test_durations_and_speeds_are_those_of_the_simulator(
    tmp_path: Path, rule: dict[str, Any]
) -> None:
    seeds, steps = range(3), rule.get("rule.local-steps", 1)
    runs = [deploy_with_random_times(tmp_path / str(seed), seed, **rule) for seed in seeds]
    histories = [History.read(tmp_path / str(seed) / "history.jsonl") for seed in seeds]
    assert {history.round[-1] for pair in histories for history in pair} == {60}

    measured = measured_network(runs[0].dispatcher)
    fleet = Fleet([steps / seconds for seconds in SECONDS])
    network = Network(fleet, measured.routing, measured.concurrency)
    policy = runs[0].dispatcher.router.policy
    simulated = [
        simulate(network, rounds=60, policy=policy, work=steps, seed=100 + replicate).duration
        for replicate in range(100)
    ]
    deviation = np.std(simulated, ddof=1) * math.sqrt(1 / len(seeds) + 1 / len(simulated))
    for which, name in enumerate(("deployed", "predicted")):
        durations = [pair[which].time[-1] for pair in histories]
        z = (np.mean(durations) - np.mean(simulated)) / deviation
        assert abs(z) < 4, name

    # What is seen of a client in k tasks, and believed before for one, is a sum of k + 1 times.
    for client, seconds in enumerate(SECONDS):
        estimates = [run.dispatcher.clients[client].estimate for run in runs]
        rates = [measured_network(run.dispatcher).fleet.service_rates[client] for run in runs]
        tasks = np.array([estimate.shape for estimate in estimates])
        z = (tasks @ (steps / np.array(rates)) / seconds - tasks.sum()) / math.sqrt(tasks.sum())
        assert abs(z) < 4, client


def test_an_average_of_versions_is_delivered(tmp_path: Path) -> None:
    config = {"rule.name": "async-sgd", "rule.server.name": "plain", "rule.server.average": 0.5}
    deployment = Deployment(tmp_path, updates=20, **config)
    deployment.run_and_finish()
    state = deployment.dispatcher.state
    np.testing.assert_array_equal(np.load(tmp_path / "weights.npy"), state.model)
    assert not np.array_equal(state.model, state.weights)


LIVE_ONLY = """
from dataclasses import dataclass

from sojourn.dispatch import Idle
from sojourn.errors import InvalidInput


@dataclass(frozen=True)
class LiveOnly(Idle):
    def check(self, network, start):
        raise InvalidInput("this policy is not for virtual time")
"""


def test_a_run_that_cannot_be_predicted_is_finished_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "live_only.py").write_text(LIVE_ONLY)
    deployment = Deployment(tmp_path, updates=20, policy="live_only:LiveOnly")
    deployment.run_and_finish()
    assert [history.strategy for history in History.read(tmp_path / "history.jsonl")] == [
        "deployed"
    ]
    assert (tmp_path / "weights.npy").exists()
    events = (tmp_path / "events.log").read_text()
    assert "no prediction can be made: this policy is not for virtual time" in events


def test_clients_are_called_as_in_the_fleet(tmp_path: Path) -> None:
    (tmp_path / "fleet.csv").write_text("name,service_rate,count\nold,0.5,2\nnew,0.2,1\n")
    deployment = Deployment(tmp_path, updates=10, fleet="fleet.csv")
    deployment.run_and_finish()
    assert "joined\told 2: joined" in (tmp_path / "events.log").read_text()
    status = json.loads((tmp_path / "status.json").read_text())
    assert [client["name"] for client in status["clients"]] == ["old 1", "old 2", "new"]
    assert Fleet.from_csv(tmp_path / "fleet.csv").names == ("old 1", "old 2", "new")


def test_known_rates_are_per_gradient_and_tasks_may_be_of_several(tmp_path: Path) -> None:
    (tmp_path / "fleet.csv").write_text("service_rate\n1.0\n0.5\n0.25\n")
    steps = {"rule.name": "fedbuff", "rule.local-steps": 4}
    settings = read_settings({**LEAST, "fleet": "fleet.csv", **steps}, tmp_path)
    server = make_dispatcher(problem(3, 0), settings, depth=2)
    assert [client.estimate.mean_seconds for client in server.clients] == [4.0, 8.0, 16.0]
    np.testing.assert_allclose(measured_network(server).fleet.service_rates, [1.0, 0.5, 0.25])

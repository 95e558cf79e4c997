"""A finished deployment leaves the folder of a run, with the prediction beside it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sojourn.deploy.outcome import measured_network, predict, write_outcome
from sojourn.history import History
from sojourn.train.experiment import Experiment
from tests.deploy.test_gridserver import SECONDS, Deployment, problem


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("outcome")
    deployment = Deployment(where)
    deployment.run()
    server, settings = deployment.dispatcher, deployment.settings
    np.testing.assert_allclose(1 / measured_network(server).fleet.service_rates, SECONDS, rtol=0.4)
    predicted = predict(server, problem(3, 0), settings, evaluate_every=10)
    histories = [deployment.journal.history(), predicted]
    write_outcome(where, server, settings, histories, problem_name="federated.task:problem")
    return where


def test_history_and_summary_are_those_of_a_run(folder: Path) -> None:
    deployed, predicted = History.read(folder / "history.jsonl")
    assert (deployed.strategy, deployed.clock) == ("deployed", "real")
    assert (predicted.strategy, predicted.clock) == ("predicted", "virtual")
    assert deployed.round[-1] == predicted.round[-1] == 60
    assert abs(deployed.final_accuracy - predicted.final_accuracy) < 0.05
    assert predicted.time[-1] == pytest.approx(deployed.time[-1], rel=0.5)
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


def test_the_report_shows_it(folder: Path) -> None:
    command = [sys.executable, "-m", "sojourn", "report", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)
    assert done.returncode == 0, done.stderr
    pages = list(folder.rglob("*.html"))
    assert pages
    page = pages[0].read_text(encoding="utf-8")
    assert "deployed" in page
    assert "predicted" in page

"""Every run that ``sojourn train`` can make is one that ``sojourn report`` can show."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from sojourn.report.deployment import Prediction
from sojourn.report.runs import measured_table
from sojourn.runs.folder import Run, RunFolder
from sojourn.training.experiment.experiment import Experiment
from tests.commands import Commands
from tests.report.test_verdict import run


def test_a_split_class_and_a_probability_per_client_are_reported(
    commands: Commands, trained: Path, tmp_path: Path
) -> None:
    done = commands.run(tmp_path, "report", str(trained), "--no-stills")
    assert done.code == 0, done.error
    assert done.out == f"Page: {(tmp_path / 'report.html').as_uri()}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Theory against measurement" in page
    assert "each client" in page


def test_the_folder_holds_the_networks_that_were_trained(trained: Path) -> None:
    folder = RunFolder(trained)
    asked = {s.name: s.network for s in Experiment.read(folder.experiment_path).strategies}
    read = folder.read().networks
    assert list(read) == list(asked)
    for name, network in read.items():
        np.testing.assert_array_equal(network.client_routing, asked[name].client_routing)
    assert list(folder.plans) == ["plan"]


def test_the_measured_throughput_is_that_of_runs_that_did_not_diverge(tmp_path: Path) -> None:
    """A run that diverged at 2 of 100 time units did not make its rounds in all of them."""
    whole = run("plan", 0, 0.02, 0.8)
    columns = ("round", "time", "test_loss", "test_accuracy", "train_loss", "staleness")
    early = {n: getattr(whole, n)[:3] for n in (*columns, "gradients", "updates")}
    histories = (whole, replace(whole, seed=1, diverged_at=3, **early))
    made = Run("mine", histories, {"time": 100.0}, {}, {}, tmp_path)
    known = {"plan": Prediction.of([1.0], [])}
    table = measured_table(made, {}, known)
    assert table.rows[0][table.columns.index("measured")] == "1"
    stopped = replace(made, histories=(whole,), experiment={"time": 400.0, "stop-at": 0.8})
    assert measured_table(stopped, {}, known).rows[0][table.columns.index("measured")] == "1"

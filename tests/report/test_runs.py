"""Every run that ``sojourn train`` can make is one that ``sojourn report`` can show."""

from pathlib import Path

import numpy as np

from sojourn.runs.folder import RunFolder
from sojourn.training.experiment.experiment import Experiment
from tests.commands import Commands


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

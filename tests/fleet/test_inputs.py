"""One input layer: what a name means does not depend on who reads it."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import sojourn as sj
from sojourn.cli import app
from sojourn.deployment.settings import read_settings
from sojourn.fleet.named import read_fleet, read_routing
from sojourn.theory.constants import read_constants
from sojourn.training.experiment.experiment import Experiment

EXPERIMENT = """
fleet = "twenty"
rounds = 10
concurrency = 2
learning-rate = 0.1
strategies = ["uniform"]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a file that is called like a built-in fleet."""
    (tmp_path / "twenty").write_text("service_rate,count\n1,2\n3,1\n")
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_beats_a_built_in_name_everywhere(folder, tmp_path_factory):
    fleet = sj.Fleet([1.0, 3.0], counts=[2, 1])
    analysed = CliRunner().invoke(app, ["analyze", "twenty", "--concurrency", "2", "--json"])
    assert json.loads(analysed.stdout)["clients"] == fleet.size
    config = {"clients": 3, "updates": 1, "learning-rate": 0.1, "fleet": "twenty"}
    assert read_settings(config, folder).strategy.network.fleet == fleet
    experiment = Experiment.read(folder / "experiment.toml")
    assert experiment.fleet == fleet
    assert experiment.to_table()["fleet"] == "fleet.csv"
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "experiment.toml").write_text(EXPERIMENT)
    built_in = Experiment.read(elsewhere / "experiment.toml")
    assert built_in.fleet == sj.built_in_fleet("twenty")
    assert built_in.to_table()["fleet"] == "twenty"


def test_a_file_beats_the_name_of_a_routing(folder):
    fleet = read_fleet("twenty", folder)
    np.testing.assert_array_equal(read_routing("uniform", fleet), [1 / 3, 1 / 3])
    (folder / "uniform").write_text("routing\n0.2\n0.6\n")
    assert read_routing("uniform", fleet, folder).tolist() == [0.2, 0.6]
    (strategy,) = Experiment.read(folder / "experiment.toml").strategies
    assert strategy.name == "uniform"
    assert strategy.network.routing.tolist() == strategy.origin.routing == [0.2, 0.6]
    config = {"clients": 3, "updates": 1, "learning-rate": 0.1, "fleet": "twenty"}
    settings = read_settings({**config, "routing": "uniform"}, folder)
    assert settings.strategy.network.routing.tolist() == [0.2, 0.6]


def test_constants_are_sought_in_the_folder(folder, tmp_path_factory, monkeypatch):
    values = "initial-gap = 15\nsmoothness = 1\ngradient-noise = 3\nheterogeneity = 10\n"
    (folder / "mine.toml").write_text(f"[constants]\n{values}")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert read_constants("mine.toml", folder) == sj.LearningConstants(15, 1, 3, 10)


@pytest.mark.parametrize(
    "read, message",
    [
        (lambda: read_fleet("twentee"), "did you mean 'twenty'"),
        (lambda: read_fleet("none.csv"), "cannot be read"),
        (lambda: read_routing("ballanced", sj.Fleet([1.0])), "did you mean 'balanced'"),
        (lambda: read_constants("1,2,3"), "four numbers"),
    ],
)
def test_mistakes_are_said(read, message):
    with pytest.raises(sj.InvalidInput, match=message):
        read()


@pytest.mark.parametrize(
    "field, message",
    [
        ("0.0_1", "line 3: routing must be a number; it is '0.0_1'"),
        ("", "line 3: routing must be a number; it is ''"),
        ("nan", "routing must be positive and finite"),
    ],
)
def test_a_routing_file_is_read_as_strictly_as_a_fleet(tmp_path, field, message):
    (tmp_path / "routing.csv").write_text(f"name,routing\na,0.99\nb,{field}\n")
    with pytest.raises(sj.InvalidFile, match=message):
        read_routing("routing.csv", sj.Fleet([1.0, 2.0]), tmp_path)

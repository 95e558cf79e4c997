"""Hours, drift and a server in an experiment: simulated alike for all, written down, read back."""

import json

import numpy as np
import pytest

from sojourn._support.configuration import Table
from sojourn.errors import InvalidFile
from sojourn.fleet.calendars import Drift, Hours
from sojourn.report.runs import strategies_of
from sojourn.runs.folder import RunFolder
from sojourn.simulation.simulate import simulate
from sojourn.training.experiment.engines import LocalEngine
from sojourn.training.experiment.experiment import Experiment, experiment_from_table
from sojourn.training.experiment.run import run_experiment

SMALL = {
    "fleet": "fleet.csv",
    "time": 60,
    "concurrency": 4,
    "learning-rate": 0.05,
    "seeds": 1,
    "strategies": ["uniform", "balanced"],
    "batched": False,
    "threads": 1,
}
KEYS = {
    "hours": "hours.csv",
    "drift": "drift.csv",
    "offline": "lose",
    "server-rate": 2.0,
    "link-law": "deterministic",
    "server-law": {"name": "erlang", "stages": 2},
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "fleet.csv").write_text("service_rate,count,uplink\n1,2,0.5\n2,2,0.25\n")
    (tmp_path / "hours.csv").write_text("device,from,until\na,0,16\nb,8,24\n")
    (tmp_path / "drift.csv").write_text("time,speed,class\n30,0.5,1\n")
    return tmp_path


def made(folder, **changes):
    return experiment_from_table(Table({**SMALL, **changes}, "e.toml"), folder)


def test_every_strategy_meets_them(folder):
    experiment = made(folder, **KEYS)
    for strategy in experiment.strategies:
        scenario = strategy.scenario
        assert scenario.hours == Hours([[(0, 16)], [(8, 24)]], 24)
        assert scenario.drift == Drift([[(30, 0.5)], []])
        assert (scenario.offline, str(scenario.link_law)) == ("lose", "deterministic")
        assert strategy.network.server_rate == 2.0
    plain = made(folder).strategies[0]
    there = experiment.strategies[0]
    a, b = (simulate(s.network, s.scenario, time=60.0, seed=1) for s in (plain, there))
    assert b.rounds < a.rounds
    away = (b.time % 24 > 16.0) & np.isin(b.client, (0, 2))
    assert 0 < away.sum() < 0.1 * b.rounds  # updates still on their way when the client went


def test_they_are_part_of_what_was_asked_for(folder):
    experiment = made(folder, **KEYS)
    again = experiment_from_table(Table(experiment.to_table(), "again"), folder)
    assert again.signature() == experiment.signature()
    assert made(folder, **{**KEYS, "offline": "wait"}).signature() != experiment.signature()
    before = experiment.signature()
    (folder / "fleet.csv").write_text("service_rate,count,uplink\n1,2,9.5\n2,2,0.25\n")
    assert made(folder, **KEYS).signature() != before
    assert not {"hours", "drift", "offline"} & made(folder).to_table().keys()


def test_a_run_tells_them_in_its_folder(folder):
    run_experiment(made(folder, **KEYS), folder / "out", engine=LocalEngine(1))
    written = Experiment.read(folder / "out" / "experiment.toml")
    assert written.environment.world_table() == made(folder, **KEYS).environment.world_table()
    found, _ = strategies_of(RunFolder(folder / "out").read())
    assert found["uniform"].scenario == made(folder, **KEYS).strategies[0].scenario
    assert json.loads((folder / "out" / "summary.json").read_text())["strategies"]


@pytest.mark.parametrize(
    "keys, complaint",
    [
        ({"hours": "missing.csv"}, "missing.csv"),
        ({"hours": {"devices": [], "period": 24}}, "at least one device"),
        ({"drift": [[[5, -1]]]}, "factors of a drift must be positive"),
        ({"offline": "lost", "hours": "hours.csv"}, "did you mean 'lose'"),
        ({"offline": "lose"}, "'offline' has no effect: clients are always there"),
        ({"server-rate": -1.0}, "server_rate"),
        ({"link-law": "lognorml"}, "did you mean 'lognormal'"),
    ],
)
def test_mistakes_are_told(folder, keys, complaint):
    with pytest.raises(InvalidFile, match=complaint):
        made(folder, **keys)

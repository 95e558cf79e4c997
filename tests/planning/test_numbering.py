"""Clients have one number: that of the fleet, in plans, simulations, traces and files."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import sojourn as sj
from sojourn.cli import app

PAPER = sj.LearningConstants(initial_gap=15, smoothness=1, gradient_noise=3, heterogeneity=10)
THREE = sj.built_in_fleet("three-clusters")


@pytest.fixture(scope="module")
def split():
    """The plan that is best for G: it singles out a client of the slow class."""
    plan = sj.plan(THREE, sj.PerRound(PAPER, 0.01, 0), concurrency=30)
    assert plan.network.fleet.classes > THREE.classes
    return plan


def pace_setter(plan):
    client = int(plan.client_routing.argmax())
    assert client < 10, "the pace-setter of G is slow"
    return client


def test_the_parts_of_a_class_stand_beside_each_other(split):
    assert split.network.parents.tolist() == [0, 0, 1, 2]
    np.testing.assert_array_equal(split.client_routing, split.network.client_routing)
    speeds = split.network.fleet.expand(split.network.fleet.service_rates)
    np.testing.assert_array_equal(speeds, THREE.expand(THREE.service_rates))


def test_the_simulation_sends_the_pace_setters_tasks_to_its_number(split):
    client = pace_setter(split)
    schedule = sj.simulate(split.network, rounds=20_000, seed=1)
    share = np.bincount(schedule.client, minlength=30) / schedule.rounds
    assert share.argmax() == client
    assert share[client] == pytest.approx(split.client_routing[client], abs=0.02)


def test_the_command_numbers_clients_alike(split, tmp_path):
    split.write(tmp_path / "plan.toml", sj.Routed())
    command = ["simulate", str(tmp_path / "plan.toml"), "--rounds", "20000"]
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "schedule")])
    assert result.exit_code == 0, result.output
    schedule = sj.Schedule.read(tmp_path / "schedule")
    assert np.bincount(schedule.client).argmax() == pace_setter(split)
    assert schedule.network == split.network


def test_a_trace_by_class_serves_the_parts_of_a_class(split, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("class,duration\nslow,1\nslow,3\nmedium,1\nfast,2\n")
    law = sj.read_trace(path, split.fleet)
    schedule = sj.simulate(split.network, rounds=2000, law=law, seed=1)
    assert schedule.rounds == 2000
    split.write(tmp_path / "plan.toml", sj.Routed())
    command = ["simulate", str(tmp_path / "plan.toml"), "--rounds", "1000", "--trace", str(path)]
    result = CliRunner().invoke(app, [*command, "--replicates", "2"])
    assert result.exit_code == 0, result.output


def test_a_plan_refuses_the_network_of_another_fleet(split):
    with pytest.raises(sj.InvalidInput, match="network"):
        replace(split, fleet=sj.built_in_fleet("twenty"))

"""Objectives that users bring: by name, without a gradient, written and read back."""

import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import sojourn as sj
from sojourn.cli import app

PAPER = sj.LearningConstants(15.0, 1.0, 3.0, 10.0)
THREE = sj.built_in_fleet("three-clusters")

MODULE = '''
from dataclasses import dataclass

from sojourn.theory.bounds import per_time_bound
from sojourn.planning.objectives import Evaluation


@dataclass(frozen=True)
class Blind:
    """H at a learning rate of 0.01, as if its gradient were unknown."""

    constants: object
    rounds: float = 0.0
    learning_rate: float | None = None

    name = "blind"
    maximize = False

    def with_learning_rate(self, learning_rate):
        return Blind(self.constants, self.rounds, learning_rate)

    def evaluate(self, network):
        bound = per_time_bound(network, self.constants, learning_rate=0.01, rounds=self.rounds)
        return Evaluation(bound.value)

    def rounds_at(self, network):
        return self.rounds

    def to_table(self):
        return {"rounds": self.rounds}

    @classmethod
    def from_table(cls, table, constants):
        return cls(constants, table.take("rounds", float, default=0.0))
'''


@pytest.fixture
def blind(tmp_path, monkeypatch):
    (tmp_path / "my_goals.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import my_goals

    yield my_goals.Blind
    sys.modules.pop("my_goals")


def test_few_classes_without_a_gradient_come_close_to_descent(blind):
    """Nothing is split off, so the best symmetric routing is what can be found."""
    found = sj.optimize_routing(THREE, 30, blind(PAPER))
    symmetric = [
        attempt.value
        for attempt in sj.optimize_routing(THREE, 30, sj.PerTime(PAPER, 0.01, 0)).attempts
        if attempt.start in ("uniform", "balanced", "square-root")
    ]
    assert found.value == pytest.approx(min(symmetric), rel=1e-5)
    assert np.isnan(found.attempts[0].gradient_norm)


def test_many_classes_without_a_gradient_follow_a_power_of_speed(blind):
    fleet = sj.built_in_fleet("fifty")
    found = sj.optimize_routing(fleet, 30, blind(PAPER))
    slope = np.diff(np.log(found.network.routing)) / np.diff(np.log(fleet.service_rates))
    np.testing.assert_allclose(slope, slope[0], rtol=1e-9)
    for name in ("uniform", "balanced", "square-root"):
        network = sj.Network(fleet, sj.named_routing(fleet, name), 30)
        assert found.value <= blind(PAPER).evaluate(network).value


def test_the_concurrency_is_found_without_a_gradient(blind):
    fleet = sj.Fleet([1.0, 2.0], counts=[2, 2])
    found = sj.optimize_concurrency(fleet, blind(PAPER))
    assert found.value <= min(sj.plan(fleet, blind(PAPER), concurrency=m).value for m in (1, 5, 20))


def test_a_plan_keeps_the_objective_by_its_name(blind, tmp_path):
    plan = sj.plan(THREE, blind(PAPER, 7.0), concurrency=12)
    plan.write("plan.toml")
    assert 'name = "my_goals:Blind"' in (tmp_path / "plan.toml").read_text()
    read = sj.Plan.read("plan.toml")
    assert read.objective == plan.objective
    assert read.rounds == 7.0
    assert sj.sensitivity(read, classes=[0])[0].now == plan.value


def test_the_command_plans_for_it(blind):
    command = ["plan", "three-clusters", "--objective", "my_goals:Blind", "--concurrency", "5"]
    result = CliRunner().invoke(
        app, [*command, "--constants", "default", "--rounds", "3", "--out", "plan.toml"]
    )
    assert result.exit_code == 0, result.output
    assert sj.Plan.read("plan.toml").objective.rounds == 3.0


def test_an_absent_module_is_said(tmp_path):
    path = tmp_path / "plan.toml"
    sj.plan(THREE, sj.Throughput(), concurrency=5).write(path)
    path.write_text(path.read_text().replace('"throughput"', '"no_such_goals:Mine"'))
    with pytest.raises(sj.InvalidFile, match="'no_such_goals' cannot be imported"):
        sj.Plan.read(path)

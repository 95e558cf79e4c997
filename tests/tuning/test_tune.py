"""Tuning end to end: same seed same answer, the test set unread, kills, budgets, bad input."""

import contextlib
import dataclasses
import json
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from sojourn.errors import InvalidInput
from sojourn.planning import Plan
from sojourn.train.experiment.build import validation_problem
from sojourn.train.replay.replay import replay
from sojourn.tuning import heats
from sojourn.tuning.criteria import Criterion
from sojourn.tuning.pilots import Pilot, advance, schedule_for
from sojourn.tuning.race import Candidate
from sojourn.tuning.setting import read_setting
from sojourn.tuning.tune import tune

PROBLEM = """
import torch
from torch import nn
from sojourn.train import Problem

def make(clients, seed, turned=False, more=0):
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(3, 5, generator=generator)
    def samples(size):
        y = torch.randint(3, (size,), generator=generator)
        return centres[y] + torch.randn(size, 5, generator=generator), y
    model = nn.Linear(5, 3)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1, generator=generator)
    sets = [samples(60 + more * client) for client in range(clients)]
    x, y = samples(200)
    return Problem(model, sets, (x, (y + 1) % 3 if turned else y), batch_size=8)

def unequal(clients, seed):
    return make(clients, seed, more=40)

def upside_down(clients, seed):
    return make(clients, seed, turned=True)
"""
EXPERIMENT = """
fleet = "fleet.csv"
problem = "blobs:make"
time = 30
"""
OWN = """
learning-rate = [0.05, 0.2]
[[strategy]]
name = "busy"
rule = "async-sgd"
policy = "never-queue"
[[strategy]]
name = "routed"
routing = "uniform"
"""


def write_inputs(folder):
    (folder / "blobs.py").write_text(PROBLEM)
    (folder / "fleet.csv").write_text("service_rate,count\n0.1,3\n1,3\n")
    (folder / "blobs.toml").write_text(EXPERIMENT)
    (folder / "own.toml").write_text(EXPERIMENT + OWN)


def tuned_in(folder, experiment):
    """A tuning in a folder ``whole``, which several tests look at or copy."""
    write_inputs(folder)
    with contextlib.chdir(folder):
        return dataclasses.replace(tune(experiment, "whole"), folder=folder / "whole")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    return tuned_in(tmp_path_factory.mktemp("tuned"), "blobs.toml")


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Of two strategies at two learning rates."""
    return tuned_in(tmp_path_factory.mktemp("few"), "own.toml")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name == "blobs"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def answer(out):
    table = json.loads((Path(out) / "tune.json").read_text())
    for key in ("seconds", "provenance"):
        table.pop(key)
    return table


def test_same_seed_same_answer_and_a_plan_that_can_be_trained(folder, tuned):
    first = tune("blobs.toml", "a")
    assert answer("a") == answer(tuned.folder)
    assert first.pick.name == answer("a")["pick"]
    assert first.race.gradients < 0.4 * 52 * len(first.race.rates) * 200
    plan = Plan.read("a/plan.toml")
    strategy = first.setting.experiment.strategies[first.pick.strategy]
    assert plan.rule == strategy.rule
    assert plan.policy == strategy.scenario.policy
    (folder / "again.toml").write_text(
        'fleet = "fleet.csv"\nproblem = "blobs:make"\ntime = 10\nseeds = 1\nstrategies = ["a/plan.toml"]\n'
    )
    from sojourn.train import Experiment

    again = Experiment.read(folder / "again.toml").strategies[0]
    assert (again.rule, again.scenario.policy) == (plan.rule, plan.policy)
    assert again.learning_rates == (plan.learning_rate,)


def test_the_race_does_not_read_the_test_set(folder, few):
    """With every test label wrong the race is the same to the last digit; only scores differ."""
    text = EXPERIMENT.replace("blobs:make", "blobs:upside_down")
    (folder / "down.toml").write_text(text + OWN)
    tune("down.toml", "down")
    up, down = (json.loads((out / "race.json").read_text()) for out in (few.folder, Path("down")))
    assert up["rungs"] == down["rungs"]
    assert answer(few.folder)["confirmed"] != answer("down")["confirmed"]


def test_pilots_weigh_clients_as_the_experiment_says(folder):
    """Pilots by size and alike differ, and those by size equal a plain replay by size."""
    text = EXPERIMENT.replace("blobs:make", "blobs:unequal") + 'client-weights = "{}"\n'
    finals = {}
    for weights in ("size", "equal"):
        (folder / f"{weights}.toml").write_text(text.format(weights))
        experiment = read_setting(folder / f"{weights}.toml").experiment
        done = advance(Pilot(experiment, Criterion(), (Candidate(0, 0.05),), 7, 1.0), [None])
        finals[weights] = done.histories[0].test_loss
    problem = validation_problem(experiment, 7)
    run = replay(
        schedule_for(experiment, experiment.strategies[0], 7),
        problem,
        experiment.strategies[0].rule,
        learning_rate=0.05,
        seed=7,
        client_weights=problem.train_sizes,
        batched=True,
    )
    assert finals["size"][-1] != finals["equal"][-1]
    assert finals["size"][-1] == pytest.approx(run.test_loss[-1], rel=1e-6)


def test_pilots_of_different_policies_meet_the_same_service_times(folder):
    setting = read_setting(Path("blobs.toml"))
    assert all(strategy.scenario.paired for strategy in setting.experiment.strategies)


def test_killed_at_random_moments_and_resumed_it_gives_the_same_answer(commands, folder, tuned):
    for pause in (0.5, 1.0, 1.5):
        child = commands.start(folder, "tune", "blobs.toml", "--out", "killed")
        time.sleep(pause)
        child.kill()
        assert child.wait().code in (0, -signal.SIGKILL)
    tune("blobs.toml", "killed")
    assert answer("killed") == answer(tuned.folder)


def test_killed_while_a_rung_is_kept_it_counts_its_gradients_once(folder, few, monkeypatch):
    """Pilots are on disk, the race is not yet: it goes on from the rung before."""
    real = heats.replacing

    def cut_short(path):
        if path.name == heats.RACE and len(list((path.parent / "pilots").iterdir())) == 2:
            raise KeyboardInterrupt
        return real(path)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(heats, "replacing", cut_short)
        tune("own.toml", "cut")
    tune("own.toml", "cut")
    assert answer("cut") == answer(few.folder)


def test_a_finished_rung_is_not_run_again(folder, tuned, monkeypatch):
    shutil.copytree(tuned.folder, "out")
    ran = []
    monkeypatch.setattr(heats, "advance", lambda *work: ran.append(work))
    tune("blobs.toml", "out")
    assert ran == []


def test_candidates_of_ones_own(folder):
    found = tune("own.toml", "own")
    assert {row.name for row in found.table} == {"busy", "routed"}
    assert set(found.setting.rates.values()) == {(0.05, 0.2)}


def test_by_time_to_a_target(folder):
    found = tune("own.toml", "target", target=0.8)
    assert "reaches 80 % in" in found.sentence
    assert found.setting.criterion.kind == "target"
    nobody = tune("own.toml", "never", target=1.0, time=5)
    assert "nobody reached" in nobody.sentence or "reaches 100 %" in nobody.sentence


def test_a_budget_that_is_too_small_says_what_would_do(folder):
    with pytest.raises(InvalidInput, match=r"a budget of 0 s is too small .* take about"):
        tune("blobs.toml", "small", budget=0.01)


@pytest.mark.parametrize("text", ["soon", "-3m", "0", ""])
def test_budgets_are_times(folder, text):
    with pytest.raises(InvalidInput, match="a budget is a time such as"):
        tune("blobs.toml", "out", budget=text)

"""Tuning end to end: same seed same answer, the test set unread, kills, budgets, bad input."""

import contextlib
import dataclasses
import io
import json
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from sojourn._support import ledger
from sojourn._support.numbers import number
from sojourn.cli.tune import show_confirmed
from sojourn.errors import InvalidInput
from sojourn.report.privacy import privacy_section
from sojourn.runs.folder import RunFolder
from sojourn.strategy import Strategy
from sojourn.training.experiment.build import validation_problem
from sojourn.training.replay.replay import replay
from sojourn.tuning import runner
from sojourn.tuning.criteria import Criterion
from sojourn.tuning.pilots import Pilot, advance, schedule_for
from sojourn.tuning.setting import read_setting
from sojourn.tuning.successive_halving import Candidate
from sojourn.tuning.tune import tune

PROBLEM = """
import torch
from torch import nn
from sojourn.training import Problem

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


def test_same_seed_same_answer_and_a_strategy_that_can_be_trained(folder, tuned):
    first = tune("blobs.toml", "a")
    assert answer("a") == answer(tuned.folder)
    assert first.pick.name == answer("a")["pick"]
    assert first.gradients < 0.4 * 52 * len(first.halving.rates) * 200
    saved = Strategy.read("a/strategy.toml")
    strategy = first.setting.experiment.strategies[first.pick.strategy]
    assert (saved.name, saved.rule) == (strategy.name, strategy.rule)
    assert saved.scenario.policy == strategy.scenario.policy
    (folder / "again.toml").write_text(
        'fleet = "fleet.csv"\nproblem = "blobs:make"\ntime = 10\nseeds = 1\nstrategies = ["a/strategy.toml"]\n'
    )
    from sojourn.training import Experiment

    again = Experiment.read(folder / "again.toml").strategies[0]
    assert (again.rule, again.scenario.policy) == (saved.rule, saved.policy)
    assert again.learning_rates == saved.learning_rates == (first.pick.learning_rate,)


def test_pilot_runs_do_not_read_the_test_set(folder, few):
    """With every test label wrong the rungs are the same to the last digit; only the confirmation differs."""
    text = EXPERIMENT.replace("blobs:make", "blobs:upside_down")
    (folder / "down.toml").write_text(text + OWN)
    tune("down.toml", "down")
    up, down = (
        json.loads((out / "halving.json").read_text()) for out in (few.folder, Path("down"))
    )
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


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed_it_gives_the_same_answer(commands, folder, tuned):
    for pause in (0.5, 1.0, 1.5):
        child = commands.start(folder, "tune", "blobs.toml", "--out", "killed")
        time.sleep(pause)
        child.kill()
        assert child.wait().code in (0, -signal.SIGKILL)
    tune("blobs.toml", "killed")
    assert answer("killed") == answer(tuned.folder)


def test_killed_while_a_rung_is_kept_it_counts_its_gradients_once(folder, few, monkeypatch):
    """Pilots are on disk, their rung is not yet: it goes on from the rung before."""
    real = ledger.Ledger.writing

    def cut_short(self, path):
        if path.name == runner.HALVING and len(list((path.parent / "pilots").iterdir())) == 2:
            raise KeyboardInterrupt
        return real(self, path)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ledger.Ledger, "writing", cut_short)
        tune("own.toml", "cut")
    tune("own.toml", "cut")
    assert answer("cut") == answer(few.folder)


@pytest.mark.slow
def test_a_finished_rung_is_not_run_again(folder, tuned, monkeypatch):
    shutil.copytree(tuned.folder, "out")
    ran = []
    monkeypatch.setattr(runner, "advance_until", lambda *work: ran.append(work))
    tune("blobs.toml", "out")
    assert ran == []


def test_candidates_of_ones_own(folder):
    found = tune("own.toml", "own")
    assert {row.name for row in found.table} == {"busy", "routed"}
    assert set(found.setting.rates.values()) == {(0.05, 0.2)}


def test_by_time_to_a_target(folder):
    found = tune("own.toml", "target", target=0.8)
    assert "It reaches 80% in" in found.sentence
    assert found.setting.criterion.kind == "target"
    nobody = tune("own.toml", "never", target=1.0, time=5)
    assert nobody.verdict.tested == "time to 100%"
    assert "80%" not in nobody.sentence, "nobody asked for another target"


def test_a_budget_that_is_too_small_says_what_takes_longer(folder):
    with pytest.raises(InvalidInput, match=r"a budget of 0 s is too small.* the problem took"):
        tune("blobs.toml", "small", budget=0.01)


@pytest.mark.parametrize("text", ["soon", "-3m", "0", ""])
def test_budgets_are_times(folder, text):
    with pytest.raises(InvalidInput, match="a budget is a time such as"):
        tune("blobs.toml", "out", budget=text)


REGRESSION = """
import torch
from torch import nn
from sojourn.training import Problem
from sojourn.training.problem.metrics import r_squared

def make(clients, seed):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(5, 1, generator=generator)
    def samples(size):
        x = torch.randn(size, 5, generator=generator)
        return x, x @ truth + 0.1 * torch.randn(size, 1, generator=generator)
    model = nn.Linear(5, 1)
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    return Problem(model, [samples(60) for _ in range(clients)], samples(200), nn.functional.mse_loss,
                   batch_size=8, metrics={"r2": r_squared}, primary="r2")
"""


def test_a_regression_tuned_by_r2_has_the_times_of_its_summary(folder):
    """No accuracy exists here: the target, the sentence and the table are of r2."""
    (folder / "line.py").write_text(REGRESSION)
    (folder / "line.toml").write_text(EXPERIMENT.replace("blobs:make", "line:make") + OWN)
    found = tune("line.toml", "line", target=0.9)
    assert "reaches r2 0.9 in" in found.sentence
    assert "%" not in found.sentence.partition("Holds under")[0]
    summary = json.loads(Path("line/summary.json").read_text())
    for entry in summary["strategies"]:
        row = next(row for row in found.table if row.name == entry["name"])
        assert entry["time_to"]["0.9"]["mean"] == pytest.approx(float(row.score.mean), rel=1e-12)
    final = tune("line.toml", "final")
    assert final.verdict.tested == "final r2"
    finals = json.loads(Path("final/summary.json").read_text())["strategies"]
    assert finals[0]["final"]["mean"] == pytest.approx(float(final.pick.score.mean), rel=1e-12)


def test_the_final_loss_is_that_of_the_last_row(few):
    """One definition of the final loss in answer, table, summary and history."""
    last = [history.test_loss[-1] for history in few.pick.histories]
    assert few.pick.score.mean == pytest.approx(sum(last) / len(last), rel=1e-12)
    assert few.verdict.tested == "final test loss"
    shown = answer(few.folder)["confirmed"][0]["score"]["mean"]
    summary = json.loads((few.folder / "summary.json").read_text())["strategies"][0]
    assert shown == pytest.approx(summary["final_loss"]["mean"], rel=1e-12)


def test_a_strategy_without_an_update_is_called_so(folder):
    (folder / "slow.toml").write_text(
        EXPERIMENT.replace("time = 30", "time = 3")
        + OWN
        + '[[strategy]]\nname = "waits"\nrule = { name = "fedbuff", buffer-size = 500 }\n'
        + 'policy = "never-queue"\n'
    )
    found = tune("slow.toml", "slow")
    assert "waits makes no update" in found.sentence
    assert answer("slow")["confirmed"][-1]["without_update"]


def test_the_answer_says_under_which_other_conditions_it_holds(few):
    """Two laws of service times, other speeds, a class gone, clients away: all in the answer."""
    conditions = answer(few.folder)["conditions"]
    names = [row["condition"] for row in conditions]
    assert names[0] == "conditions are as assumed"
    assert set(names[1:]) == {
        "service times are deterministic",
        "service times are log-normal",
        "speeds are 20 % off",
        "the slowest class is gone",
        "a third of the clients are away at any time",
    }
    assert all(len(row["scores"]) == 2 for row in conditions)
    assert "Holds under" in few.verdict.because


@pytest.mark.slow
def test_a_robust_choice_has_the_best_worst_case(folder):
    found = tune("own.toml", "robust", robust=True)
    pick = Candidate(found.pick.strategy, found.pick.learning_rate)
    worst = {c: found.robustness.worst(c) for c in found.robustness.names}
    assert pick in worst
    first = found.robustness.best()
    assert worst[first] == min(worst.values())
    assert first.strategy in {row.strategy for row in found.table[:3]}


def test_accuracy_against_epsilon_is_shown(tmp_path):
    """Private strategies are confirmed though they lose, in the table and on the page, with their epsilon."""
    write_inputs(tmp_path)
    noisy = [
        f'[[strategy]]\nname = "noise {noise}"\npolicy = "never-queue"\n'
        f'rule = {{ name = "async-sgd", privacy-clip = 1.0, privacy-noise = {noise}.0 }}\n'
        for noise in (1, 4)
    ]
    plain, _ = OWN.replace("[0.05, 0.2]", "0.2").split('[[strategy]]\nname = "routed"')
    text = EXPERIMENT.replace("time = 30", "time = 8") + plain + "".join(noisy)
    (tmp_path / "private.toml").write_text(text)
    with contextlib.chdir(tmp_path):
        tuned = dataclasses.replace(tune("private.toml", "out"), folder=tmp_path / "out")
    console = Console(record=True, width=160, file=io.StringIO())
    show_confirmed(tuned, console)
    shown = console.export_text()
    section = privacy_section(RunFolder(tmp_path / "out").read(), 1)
    assert section is not None
    rows = {row[0]: row for row in section.tables[0].rows}
    answers = {row.name: row.histories for row in tuned.table}
    for name, noise in (("noise 1", 1.0), ("noise 4", 4.0)):
        assert name in shown
        spent = [float(history.metrics["epsilon"][-1]) for history in answers[name]]
        assert rows[name][1:3] == (f"{noise:g}", number(max(spent)))
        assert number(max(spent)) in shown
    assert rows["busy"][1:3] == ("none", "infinite")
    [series] = section.figures[0].views[0].series
    assert series.x.tolist() == sorted(series.x.tolist())
    assert len(series.x) == 2

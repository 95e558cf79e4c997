"""``sojourn train`` as a user types it."""

import io
import json
import signal
import time
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import sojourn as sj
from sojourn.cli.train import _columns, _show, _warnings
from sojourn.runs.folder import Run
from sojourn.runs.history import History
from sojourn.training.experiment.build import build_problem
from sojourn.training.experiment.engines import LocalEngine
from sojourn.training.experiment.experiment import Experiment
from sojourn.training.experiment.run import run_experiment
from sojourn.training.experiment.size import in_words

EXPERIMENT = """
fleet = "three-clusters"
partition = "dirichlet"
rounds = {rounds}
concurrency = 30
learning-rate = {rates}
seeds = 2
strategies = ["uniform", "balanced"]
evaluate-every = 50
batched = false
threads = 1
checkpoint-seconds = {checkpoint}
"""


def write(folder, rounds=200, rates="0.05", checkpoint=0.0, more=""):
    text = EXPERIMENT.format(rounds=rounds, rates=rates, checkpoint=checkpoint) + more
    (folder / "e.toml").write_text(text)


@pytest.fixture
def start(commands, tmp_path):
    """``sojourn train e.toml ...`` that goes on by itself."""
    return partial(commands.start, tmp_path, "train", "e.toml")


def wait_for(condition, process, seconds=200):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.wait()
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def test_one_folder_holds_everything(run, tmp_path):
    write(tmp_path, rates="[0.01, 0.05]")
    result = run("train", "e.toml", "--out", "out")
    assert result.code == 0, result.error
    assert "strategy" in result.out
    assert "balanced" in result.out
    assert "±" in result.out
    assert "written to out" in result.out
    assert "its page: sojourn report out" in result.out
    said = result.error.splitlines()
    marks = ("%", ": loading", "runs, about")
    assert all(any(mark in line for mark in marks) for line in said), (
        "how much it is, and how far, where it takes long"
    )
    out = tmp_path / "out"
    histories = History.read(out / "history.jsonl")
    assert [(h.strategy, h.seed) for h in histories] == [
        ("uniform", 0),
        ("uniform", 1),
        ("balanced", 0),
        ("balanced", 1),
    ]
    assert {0, 50, 100, 150, 200} < set(histories[0].round.tolist())
    summary = json.loads((out / "summary.json").read_text())
    assert summary["provenance"]["inputs"]["experiment"]["rounds"] == 200
    entry = summary["strategies"][1]
    accuracies = [h.final_accuracy for h in histories[2:]]
    assert entry["final_accuracy"]["mean"] == pytest.approx(sum(accuracies) / 2)
    assert [pilot["learning_rate"] for pilot in entry["pilots"]] == [0.01, 0.05]
    assert tomllib.loads((out / "experiment.toml").read_text())["fleet"] == "three-clusters"
    again = Experiment.read(out / "experiment.toml")
    run_experiment(again, tmp_path / "again", LocalEngine())
    assert (tmp_path / "again/history.jsonl").read_bytes() == (out / "history.jsonl").read_bytes()


def history(name, seed):
    """A run that ends at 94, 95 or 96 % after 17 million gradients, and is at 50 % at 120 to 124."""
    time = np.array([0.0, 120.0 + 2.0 * seed, 1000.0])
    ends = np.array([0.1, 0.5, 0.94 + 0.01 * seed])
    return History(
        strategy=name,
        seed=seed,
        learning_rate=0.0316228,
        clock="virtual",
        round=np.arange(3),
        time=time,
        test_loss=1.0 - ends,
        test_accuracy=ends,
        train_loss=np.ones(3),
        staleness=np.ones(3),
        gradients=np.array([0, 5, 17345678]),
        updates=np.array([0, 5, 17345679]),
    )


def test_a_metric_of_one_strategy_is_shown_wherever_the_strategy_stands():
    private = replace(history("private", 0), metrics={"epsilon": np.array([0.0, 1.0, 3.0])})
    runs = (private, history("uniform", 0))
    summary = {"strategies": []}
    for order, texts in ((runs, ["3", "–"]), (runs[::-1], ["–", "3"])):
        assert _columns(Run("mine", order, {}, summary, {}, Path("mine")))["epsilon"] == texts


def test_one_warning_names_all_strategies_whose_best_rate_is_at_an_edge():
    edges = {"a": "largest", "b": None, "c": "largest", "d": "smallest"}
    summary = {
        "strategies": [
            {"name": name, "learning_rate_at_edge": edge} for name, edge in edges.items()
        ]
    }
    runs = tuple(history(name, 0) for name in edges)
    larger, smaller = _warnings(Run("mine", runs, {}, summary, {}, Path("mine")))
    assert "the largest that was tried for a (0.0316228); c (0.0316228). A larger one" in larger
    assert "the smallest that was tried for d (0.0316228). A smaller one" in smaller


@pytest.mark.parametrize("command", ["train", "tune"])
def test_a_folder_that_cannot_be_is_refused_before_anything_is_computed(run, tmp_path, command):
    (tmp_path / "e.toml").write_text(
        'fleet = "three-clusters"\ntime = 10\nlearning-rate = 0.1\nstrategies = ["uniform"]\n'
    )
    done = run(command, "e.toml", "--out", "e.toml/inside")
    assert done.code == 2
    assert (
        done.error == "error: e.toml/inside: cannot be written (e.toml is a file): give a folder\n"
    )


@pytest.mark.parametrize("command", ["compare", "figure"])
def test_a_folder_that_is_not_there_is_said(run, command):
    assert "nowhere: there is no such folder" in run(command, "nowhere").error


def test_a_folder_is_no_fleet(run):
    assert run("analyze", ".").error == "error: . is a folder, not a fleet's file\n"
    assert (
        "plan.toml: a plan, a strategy or an experiment; a fleet is"
        in run("plan", "plan.toml").error
    )


def test_the_help_of_every_command_breaks_lines_only_at_the_edge(run):
    shown = run("fleet", "estimate", "--help").out
    words = "left out. Devices without a finished task are left out and named."
    assert any(line.strip().endswith(words) for line in shown.splitlines()), shown


NUMBERS = {"0.0316228", "95.0±0.6%", "122.0±1.2", "not reached"}


@pytest.mark.parametrize(
    ("width", "shown", "dropped"),
    [
        (120, {*NUMBERS, "17345678", "17345679"}, set()),
        (100, {*NUMBERS, "17345678", "17345679"}, set()),
        (90, {*NUMBERS, "17345678"}, {"17345679", "updates"}),
        (80, NUMBERS, {"17345678", "17345679", "gradients", "updates"}),
        (70, NUMBERS, {"17345678", "17345679", "gradients", "updates"}),
    ],
)
def test_a_narrow_terminal_shows_fewer_columns_but_whole_numbers(width, shown, dropped):
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    long = "generalized with the square-root routing [m = 30]"
    names = ("uniform", long)
    entry = {"time_to": {"0.5": {}, "0.99": {}}, "learning_rate_at_edge": None}
    shown_run = Run(
        name="mine",
        histories=tuple(history(name, seed) for name in names for seed in range(3)),
        experiment={},
        summary={"strategies": [{"name": name, **entry} for name in names]},
        networks={},
        path=Path("mine"),
    )
    _show(shown_run, console, "uniform")
    table = console.file.getvalue().split("rate: learning rate")[0].split("left out")[0]
    assert all(table.count(text) >= 2 for text in shown)
    assert not any(text in table for text in dropped)
    assert "…" not in table
    assert max(map(len, table.splitlines())) <= width
    assert all(word in table for word in long.split())


def test_what_is_piped_is_whole_however_narrow_the_terminal(run, tmp_path):
    write(tmp_path, rounds=50, more='[[strategy]]\nname = "a rather long name of a strategy"\n')
    done = run("train", "e.toml", "--out", "out", COLUMNS="40")
    assert done.code == 0, done.error
    heading, *rows = done.out.splitlines()[:4]
    assert heading.split()[-2:] == ["gradients", "updates"]
    assert rows[2].startswith("a rather long name of a strategy")
    assert all(row.split()[-2:] == ["50", "50"] for row in rows)


def test_killed_and_resumed_is_the_same_to_the_bit(run, start, tmp_path):
    write(tmp_path, rounds=600)
    run_experiment(Experiment.read(tmp_path / "e.toml"), tmp_path / "whole", LocalEngine())
    cells = tmp_path / "killed" / "cells"
    process = start("--out", "killed")
    wait_for(lambda: len(list(cells.glob("[!.]*.jsonl"))) == 1, process)
    wait_for(lambda: any(cells.glob("*.checkpoint")), process)
    process.kill()
    assert process.wait().code == -signal.SIGKILL
    finished = {path.name: path.stat().st_mtime_ns for path in cells.glob("[!.]*.jsonl")}
    assert 1 <= len(finished) < 4
    assert not (tmp_path / "killed" / "history.jsonl").exists()
    result = run("train", "e.toml", "--out", "killed", "--resume")
    assert result.code == 0, result.error
    for name, when in finished.items():
        assert (cells / name).stat().st_mtime_ns == when
    whole, killed = (tmp_path / name / "history.jsonl" for name in ("whole", "killed"))
    assert killed.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_an_interrupted_run_says_how_to_go_on(start, tmp_path, jobs):
    write(tmp_path, rounds=1000)
    process = start("--out", "out", "--jobs", jobs)
    wait_for(lambda: any((tmp_path / "out" / "cells").glob("*.checkpoint")), process)
    process.send_signal(signal.SIGINT)
    done = process.wait()
    assert done.code == 130
    assert "sojourn train e.toml --out out --resume" in done.error
    assert "Traceback" not in done.error
    experiment = Experiment.read(tmp_path / "e.toml")
    run_experiment(experiment, tmp_path / "out", LocalEngine(), resume=True)
    assert len(History.read(tmp_path / "out" / "history.jsonl")) == 4


def test_a_diverging_rate_stops_that_strategy_and_keeps_the_rest(run, tmp_path):
    write(tmp_path, more='[[strategy]]\nname = "wild"\nlearning-rate = 1e30\n')
    result = run("train", "e.toml", "--out", "out")
    assert result.code == 0, result.error
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    uniform, _, wild = summary["strategies"]
    assert uniform["final_accuracy"]["mean"] > 0.3
    assert [run["seed"] for run in wild["diverged"]] == [0, 1]
    rounds = [run["round"] for run in wild["diverged"]]
    assert f"wild: diverged in round {rounds[0]} with seed 0" in result.out
    assert wild["final_accuracy"]["mean"] is None


def test_a_plan_is_followed_and_kept(run, tmp_path):
    constants = sj.LearningConstants(15.0, 1.0, 3.0, 10.0)
    objective = sj.PerTime(constants, learning_rate=0.01, rounds=0)
    plan = sj.plan(sj.built_in_fleet("three-clusters"), objective, concurrency=30)
    plan.write(tmp_path / "best.toml")
    write(tmp_path, rounds=50, more='[[strategy]]\nrouting = "best.toml"\n')
    result = run("train", "e.toml", "--out", "out")
    assert result.code == 0, result.error
    kept = tmp_path / "out" / "plans" / "best.toml"
    assert kept.read_bytes() == (tmp_path / "best.toml").read_bytes()
    strategy = Experiment.read(tmp_path / "out" / "experiment.toml").strategies[-1]
    assert strategy.name == "best"
    assert sorted(strategy.network.client_routing) == sorted(plan.network.client_routing)
    rates = plan.fleet.expand(plan.fleet.service_rates)
    network = strategy.network
    assert network.fleet.expand(network.fleet.service_rates).tolist() == rates.tolist()


def test_who_holds_what_is_drawn(run, tmp_path):
    write(tmp_path)
    result = run("train", "e.toml", "--partition-figure", "who.png")
    assert result.code == 0, result.error
    assert (tmp_path / "who.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def without_data(monkeypatch):
    monkeypatch.delenv("SOJOURN_DATA", raising=False)


@pytest.mark.usefixtures("without_data")
@pytest.mark.parametrize(
    ("more", "arguments", "message"),
    [
        ("colour = 3", (), "unknown key 'colour'"),
        ('data = "cifar-10"', ("--data-dir", "."), "data set cifar-10 is not on this machine"),
        ("", ("--partition-figure", "a.txt"), "must end in .png or .svg"),
    ],
)
def test_mistakes_get_a_sentence(run, tmp_path, more, arguments, message):
    write(tmp_path)
    text = (tmp_path / "e.toml").read_text()
    (tmp_path / "e.toml").write_text(f"{more}\n{text}")
    result = run("train", "e.toml", "--out", "out", *arguments)
    assert result.code == 2, result.out
    assert message in result.error
    assert "Traceback" not in result.error
    assert not (tmp_path / "out" / "history.jsonl").exists()


@pytest.mark.parametrize("command", ["train", "tune", "calibrate"])
def test_a_strategy_is_no_experiment(run, command):
    run("plan", "three-clusters", "--out", "plan.toml")
    result = run(command, "plan.toml")
    assert result.code == 2
    assert "plan.toml: a plan or a strategy, not an experiment" in result.error
    assert 'strategies = ["plan.toml"]' in result.error


def test_an_existing_folder_is_not_overwritten(run, tmp_path):
    write(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("dear")
    result = run("train", "e.toml", "--out", "out")
    assert result.code == 2
    assert "exists and is not empty. Give another --out" in result.error
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["letter.txt"]


def test_what_a_table_takes_is_said_before_the_run(run, tmp_path):
    own = '[[strategy]]\nname = "table"\nrule = "ace"\n'
    text = EXPERIMENT.format(rounds=4, rates="0.05", checkpoint=0.0)
    (tmp_path / "e.toml").write_text(
        text.replace('strategies = ["uniform", "balanced"]\n', "") + own
    )
    result = run("train", "e.toml", "--out", "out")
    assert result.code == 0, result.error
    size = build_problem(Experiment.read(tmp_path / "e.toml"), 0).initial_weights().numel()
    line = next(line for line in result.error.splitlines() if "runs, about" in line)
    assert "a run of 'table' holds" in line
    numbers = 31 * size + 30  # a gradient of every client and their mean, and who was heard
    assert f"the rule {in_words(4 * numbers)}" in line

"""Experiments: what is read, what is refused, and what it means to use the same seed."""

import dataclasses
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch

import sojourn as sj
from sojourn._support.configuration import Table
from sojourn._support.files import file_name
from sojourn.dispatch import POLICIES
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.fleet import ROUTINGS, Network
from sojourn.rules import RULES, FedBuff
from sojourn.runs.history import History
from sojourn.runs.summary import best_learning_rate, summarize_strategy
from sojourn.training.experiment import build
from sojourn.training.experiment.build import build_problem, validation_problem
from sojourn.training.experiment.engines import LocalEngine
from sojourn.training.experiment.experiment import Experiment, experiment_from_table
from sojourn.training.experiment.run import run_experiment
from tests.training.small import final_run

SMALL = {
    "fleet": "three-clusters",
    "rounds": 60,
    "concurrency": 30,
    "learning-rate": 0.05,
    "seeds": 2,
    "strategies": ["uniform", "balanced"],
    "batched": False,
    "threads": 1,
}


def made(folder, **changes):
    values = {key: value for key, value in {**SMALL, **changes}.items() if value is not None}
    return experiment_from_table(Table(values, "e.toml"), folder)


def history(**changes):
    columns = {key: [1.0, 1.0] for key in ("test_loss", "train_loss", "staleness")}
    values = {
        **columns,
        "strategy": "uniform",
        "seed": 0,
        "learning_rate": 0.1,
        "clock": "virtual",
        "round": [0, 10],
        "time": [0.0, 5.0],
        "test_accuracy": [0.1, 0.9],
        "gradients": [0, 10],
        "updates": [0, 10],
        **changes,
    }
    return History(**values)


def test_data_that_go_with_speed_follow_the_fleet(tmp_path):
    """Slow clients hold digits 0 to 3, medium ones 4 to 6, fast ones 7 to 9, whoever they are."""
    (tmp_path / "reversed.csv").write_text("service_rate,count\n1,10\n0.1,10\n0.01,10\n")
    for fleet, slow in (("three-clusters", 0), ("reversed.csv", 29)):
        problem = build_problem(made(tmp_path, fleet=fleet, partition="by-speed(1.0)"), seed=3)
        held = [sorted(set(y.tolist())) for _, y in problem.train_sets]
        assert held[slow] == [0, 1, 2, 3]
        assert held[15] == [4, 5, 6]
        assert held[29 - slow] == [7, 8, 9]


def test_ten_lines_are_enough(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(
        'fleet = "three-clusters"\ndata = "digits"\npartition = "dirichlet"\nmodel = "mlp"\n'
        "time = 1000\nconcurrency = 30\nlearning-rate = [0.01, 0.03, 0.1]\nseeds = 3\n"
        'strategies = ["uniform", "balanced", "square-root"]\n'
    )
    experiment = Experiment.read(path)
    assert [strategy.name for strategy in experiment.strategies] == [
        "uniform",
        "balanced",
        "square-root",
    ]
    assert experiment.strategies[2].learning_rates == (0.01, 0.03, 0.1)
    assert experiment.seeds == (0, 1, 2)
    assert not set(experiment.pilot_seeds) & set(experiment.seeds)
    assert len(experiment.pilot_seeds) == 1


def test_strategies_have_their_own_rule_law_concurrency_and_rates(tmp_path):
    table = {
        "name": "buffered",
        "routing": [0.02, 0.03, 0.05],
        "rule": {"name": "fedbuff", "buffer-size": 5},
        "local-steps": 3,
        "concurrency": 12,
        "learning-rate": 0.2,
        "law": {"name": "lognormal", "sigma": 0.5},
        "policy": "routed",
    }
    experiment = made(tmp_path, strategy=[table])
    strategy = experiment.strategies[-1]
    assert strategy.rule == FedBuff(buffer_size=5, local_steps=3)
    assert strategy.network == sj.Network(experiment.fleet, [0.02, 0.03, 0.05], 12)
    assert strategy.scenario.law_text == "lognormal(sigma=0.5)"
    assert strategy.learning_rates == (0.2,)
    assert experiment.strategies[0].network.concurrency == 30


def test_a_routing_may_be_given_client_by_client(tmp_path):
    routing = [0.01] * 10 + [0.02] * 10 + [0.25, 0.25] + [0.025] * 8
    strategy = made(tmp_path, strategy=[{"routing": routing}]).strategies[-1]
    assert strategy.network.client_routing.tolist() == routing
    assert strategy.network.fleet.size == 30


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concurency": 3}, "unknown key 'concurency': did you mean 'concurrency'"),
        ({"fleet": "three-cluster"}, "did you mean 'three-clusters'"),
        ({"fleet": "none.csv"}, "No such file"),
        ({"rounds": None}, "give either 'time' or 'rounds'"),
        ({"time": 10.0}, "give either 'time' or 'rounds'"),
        ({"rounds": 0}, "must last longer than 0"),
        ({"data": "mnist"}, "e.toml: unknown data set 'mnist'"),
        ({"partition": "labels(0)"}, "e.toml: partition 'labels"),
        ({"model": "resnet"}, "e.toml: unknown model 'resnet'"),
        ({"batch-size": 0}, "'batch-size' must be at least 1"),
        ({"start": "spred"}, "did you mean 'spread'"),
        ({"learning-rate": None}, "'learning-rate' is missing"),
        ({"learning-rate": -0.1}, "must be positive and finite"),
        ({"learning-rate": [0.1, 0.1]}, "different numbers"),
        ({"learning-rate": []}, "different numbers"),
        ({"learning-rate": [0.1, "x"]}, "must be positive and finite; it is 'x'"),
        ({"seeds": 0}, "'seeds' must be at least 1"),
        ({"seeds": [1, 1]}, "different numbers"),
        ({"seeds": [-1]}, "seed must be a whole number of at least 0"),
        ({"targets": [80]}, "accuracies above 0 and up to 1; 80 is not"),
        ({"evaluate-every": 0}, "'evaluate-every' must be at least 1"),
        ({"strategies": None}, "nothing to compare"),
        ({"strategies": ["balance"]}, "did you mean 'balanced'"),
        ({"strategies": [["uniform"]]}, r"goes into a \[\[strategy\]\] table"),
        ({"strategies": ["uniform", "uniform"]}, "two strategies are called 'uniform'"),
        ({"strategies": ["no.toml"]}, "no.toml: cannot be read"),
        ({"rule": "async"}, "unknown rule 'async'"),
        ({"rule": {"name": "fedbuff", "bufer-size": 3}}, "did you mean 'buffer-size'"),
        ({"law": "gauss"}, "unknown law 'gauss'"),
        ({"law": {"sigma": 1.0}}, "must have a 'name'"),
        ({"policy": "random"}, "unknown policy 'random'"),
        ({"strategies": None, "strategy": [{"rule": "fedbuff", "concurrency": 31}]}, "31"),
        ({"rule": "fedbuff"}, "'uniform' would have no effect.*that of the rule 'fedbuff'"),
        ({"rule": "async-sgd", "policy": "shuffled"}, "with policy 'shuffled' clients are not"),
        ({"strategy": [{"name": "a", "rule": "fedavg", "routing": [0.01, 0.04, 0.05]}]}, "routed"),
        (
            {"start": "stationary", "strategy": [{"name": "a", "rule": "fedavg"}]},
            "stationary start",
        ),
        ({"concurrency": 0}, "at least 1"),
        ({"strategy": [{"routing": [0.5, 0.5]}]}, "one entry per class"),
        ({"strategy": [{"routing": [0.1, 0.1, 0.1]}]}, "must sum to 1"),
        ({"strategy": [{"name": "a", "local-steps": 0}]}, "local-steps must be a whole number"),
        ({"rule": {"name": "async-sgd", "proximal": 0.1}}, "no effect.*'async-sgd' sends one"),
        ({"strategy": [{"name": "a", "learning-rate": [0.1, 0.2]}]}, "equally many learning rates"),
        ({"strategy": [{"name": "a", "routings": "uniform"}]}, "did you mean 'routing'"),
        ({"problem": "nonsense"}, "package.module:function"),
        ({"problem": "a.b:c", "data": "digits"}, "'data' has no meaning beside 'problem'"),
    ],
)
def test_mistakes_are_said_with_their_place(tmp_path, changes, message):
    with pytest.raises(InvalidFile, match=message) as raised:
        made(tmp_path, **changes)
    assert "e.toml" in str(raised.value) or "no.toml" in str(raised.value)


def test_a_plan_without_effect_is_refused(tmp_path):
    plan = sj.plan(sj.built_in_fleet("three-clusters"), sj.Throughput(), concurrency=5)
    plan.write(tmp_path / "p.toml", sj.Routed())
    with pytest.raises(InvalidFile, match=r"e\.toml.*copy the concurrency"):
        made(tmp_path, strategy=[{"policy": "idle", "routing": "p.toml"}])


def test_every_key_and_knob_is_documented(tmp_path, monkeypatch):
    asked = set()
    take = Table.take

    def taking(self, key, *args, **kwargs):
        asked.add(key)
        return take(self, key, *args, **kwargs)

    monkeypatch.setattr(Table, "take", taking)
    made(tmp_path, strategy=[{"name": name, "rule": name} for name in RULES])
    made(tmp_path, strategies=None, strategy=[{"name": "a"}])
    text = (Path(__file__).parents[2] / "docs" / "commands" / "train.md").read_text()
    names = asked | set(RULES) | set(POLICIES) | set(ROUTINGS)
    assert {"pilot-seeds", "buffer-size", "law", "proximal"} < names
    missing = {name for name in names if f"`{name}`" not in text and f"[{name}]" not in text}
    assert missing == set()


def test_what_was_run_can_be_read_again(tmp_path):
    sj.Fleet([0.5, 2.0], counts=[3, 4], names=["old", "new"]).to_csv(tmp_path / "mine.csv")
    experiment = made(
        tmp_path,
        fleet="mine.csv",
        strategy=[
            {"name": "p*", "routing": [0.2, 0.1], "rule": "fedasync", "policy": "routed"},
            {"name": "idle", "rule": "fedasync", "concurrency": 5},
            {"name": "late", "law": {"name": "pareto", "shape": 3.0}},
        ],
    )
    experiment.fleet.to_csv(tmp_path / "fleet.csv")
    again = experiment_from_table(Table(experiment.to_table(), "again"), tmp_path)
    assert again.signature() == experiment.signature()
    assert again.to_table() == experiment.to_table()
    assert "routing" not in experiment.to_table()["strategy"][3]
    assert tomli_w.dumps(experiment.to_table())


def test_a_data_directory_is_relative_to_the_experiments_file(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "e.toml").write_text(tomli_w.dumps({**SMALL, "data-dir": "files"}))
    experiment = Experiment.read(tmp_path / "e.toml")
    assert experiment.data_dir == str(tmp_path / "files")
    assert experiment.to_table()["data-dir"] == str(tmp_path / "files")
    assert made(tmp_path, **{"data-dir": "/data"}).data_dir == "/data"


def test_pilot_seeds_are_never_final_seeds(tmp_path):
    experiment = made(
        tmp_path,
        **{"seeds": [1_000_000, 1_000_002], "learning-rate": [0.1, 0.2]},
        **{"pilot-seeds": 3},
    )
    assert experiment.pilot_seeds == (1_000_001, 1_000_003, 1_000_004)


def test_the_same_seed_is_the_same_world_for_every_strategy(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "MOST_KEPT_BYTES", 0)
    experiment = made(tmp_path, partition="dirichlet")
    first, other, again = (build_problem(experiment, seed) for seed in (3, 4, 3))
    assert first is not again
    assert torch.equal(first.initial_weights(), again.initial_weights())
    assert first.train_sizes == again.train_sizes
    for client in (0, 29):
        assert torch.equal(first.batch(client, 5, 3)[0], again.batch(client, 5, 3)[0])
    assert not torch.equal(first.initial_weights(), other.initial_weights())
    assert first.train_sizes != other.train_sizes
    uniform, twin = (
        final_run(
            dataclasses.replace(experiment, strategies=(experiment.strategies[0],) * 2), i, 3, 0.05
        )
        for i in (0, 1)
    )
    assert np.array_equal(uniform.test_loss, twin.test_loss)


def test_local_steps_cost_time(tmp_path):
    strategies = [
        {"name": "one", "rule": "fedasync", "policy": "routed"},
        {"name": "four", "rule": "fedasync", "local-steps": 4, "policy": "routed"},
    ]
    experiment = made(tmp_path, strategies=None, strategy=strategies)
    one, four = (final_run(experiment, i, 0, 0.05) for i in (0, 1))
    assert four.time[-1] == pytest.approx(4 * one.time[-1], rel=1e-12)
    assert four.gradients[-1] == 4 * one.gradients[-1]


def test_local_work_at_the_top_is_that_of_all_strategies_which_say_none(tmp_path):
    own = {"name": "fedasync", "local-steps": 3}
    strategies = [
        {"name": "usual"},
        {"name": "rule", "rule": "fedasync"},
        {"name": "steps", "rule": "fedasync", "local-steps": 4},
        {"name": "of the rule", "rule": own},
        {"name": "epochs", "rule": "fedasync", "local-epochs": 2.0},
    ]
    given = {"strategies": None, "strategy": strategies}
    found = made(tmp_path, **given, **{"local-steps": 2}).strategies
    assert [strategy.rule.local_steps for strategy in found[:4]] == [2, 2, 4, 3]
    assert [strategy.scenario.work for strategy in found[:4]] == [2, 2, 4, 3]
    assert [strategy.local_epochs for strategy in found] == [None] * 4 + [2.0]
    found = made(tmp_path, **given, **{"local-epochs": 1.5}).strategies
    assert [strategy.local_epochs for strategy in found] == [1.5, 1.5, None, None, 2.0]


PROBLEM = """
import torch
from sojourn.training import Problem


def quadratic(clients, seed):
    x = torch.ones(8, 2)
    sets = [(x * (i + seed), torch.zeros(8, 1)) for i in range(1, clients + 1)]
    model = torch.nn.Linear(2, 1)
    return Problem(model, sets, sets[0], torch.nn.functional.mse_loss, batch_size=4)

def wrong(clients, seed):
    return None

def too_few(clients, seed):
    return quadratic(clients - 1, seed)
"""


def test_a_problem_of_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "own_problem.py").write_text(PROBLEM)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    experiment = made(tmp_path, problem="own_problem:quadratic", rounds=5)
    assert build_problem(experiment, 0).clients == 30
    assert sys.path == before
    for name, message in [
        ("own_problem:wrong", "returned a NoneType"),
        ("own_problem:too_few", "29 clients; the fleet has 30"),
        ("own_problem:missing", "there is no 'missing'"),
        ("not_there:f", "cannot be imported"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            build_problem(made(tmp_path, problem=name), 0)
    sys.modules.pop("own_problem")


COUNTED = """
from pathlib import Path
import torch
from sojourn.training import Problem


def counted(clients, seed):
    with Path("calls").open("a") as calls:
        calls.write(f"{clients} {seed}\\n")
    x = torch.ones(8, 2)
    return Problem(torch.nn.Linear(2, 1), [(x, x[:, :1])] * clients, (x, x[:, :1]))
"""


def test_a_problem_is_made_twice_and_then_kept(tmp_path, monkeypatch):
    """Twice, to see that it repeats. Seeds take turns, and speeds that are off change no data."""
    (tmp_path / "counted_problem.py").write_text(COUNTED)
    monkeypatch.chdir(tmp_path)
    calls = tmp_path / "calls"
    experiment = made(tmp_path, problem="counted_problem:counted")
    rates = 2 * experiment.fleet.service_rates
    faster = dataclasses.replace(experiment, fleet=experiment.fleet.with_rates(rates))
    first = build_problem(experiment, 0)
    for asked in (experiment, faster):
        for seed in (1, 0):
            build_problem(asked, seed)
            validation_problem(asked, seed)
    assert build_problem(faster, 0) is first
    assert sorted(calls.read_text().split("\n")[:-1]) == ["30 0", "30 0", "30 1", "30 1"]
    # Large problems are not kept beside one another; made anew, they are made once.
    monkeypatch.setattr(build, "MOST_KEPT_BYTES", 100)
    for seed in (2, 3, 2):
        build_problem(experiment, seed)
    assert calls.read_text().split("\n")[4:-1] == ["30 2", "30 2", "30 3", "30 3", "30 2"]
    sys.modules.pop("counted_problem")


def summarized(strategy, histories, targets=()):
    return summarize_strategy(
        strategy.name,
        histories,
        network=strategy.network,
        rule=strategy.rule,
        law=strategy.scenario.law_text,
        policy=strategy.scenario.policy,
        learning_rate=0.1,
        targets=targets,
    )


def test_a_routing_is_reported_only_where_tasks_follow_it(tmp_path):
    experiment = made(
        tmp_path,
        strategies=None,
        strategy=[
            {"name": "idle", "rule": "fedbuff"},
            {"name": "routed", "rule": "fedbuff", "policy": "routed", "routing": "balanced"},
        ],
    )
    idle, routed = (summarized(s, [history()]) for s in experiment.strategies)
    assert "network" not in idle
    assert Network.from_table(routed["network"]) == experiment.strategies[1].network


def test_means_leave_out_diverged_runs_and_say_so(tmp_path):
    strategy = made(tmp_path).strategies[0]
    good = history(), history(seed=1, test_accuracy=[0.3, 0.7])
    lost = history(seed=2, diverged_at=4)
    entry = summarized(strategy, [*good, lost], targets=[0.8, 0.5])
    assert entry["final_accuracy"] == {"mean": 0.8, "standard_error": pytest.approx(0.1)}
    assert entry["mean_accuracy"]["mean"] == pytest.approx(0.5)
    unknown = dict.fromkeys(("mean", "standard_error", "resolution"))
    assert entry["time_to"]["0.8"] == {**unknown, "reached": 2}
    assert entry["time_to"]["0.5"]["mean"] == 5.0
    assert entry["diverged"] == [{"seed": 2, "round": 4}]


def test_learning_rates_are_judged_by_mean_accuracy_over_time():
    pilots = {
        0.01: [history(test_accuracy=[0.1, 0.5])],
        0.1: [history(test_accuracy=[0.1, 0.8])],
        1.0: [history(test_accuracy=[0.9, 0.9], diverged_at=12)],
    }
    assert best_learning_rate(pilots) == 0.1
    assert best_learning_rate(dict.fromkeys((0.3, 0.1), pilots[1.0])) == 0.1


def test_without_labels_learning_rates_are_judged_by_loss():
    nothing = [math.nan, math.nan]
    pilots = {
        rate: [history(test_accuracy=nothing, test_loss=[1.0, loss])]
        for rate, loss in ((0.01, 0.9), (0.1, 0.2), (1.0, 0.5))
    }
    assert best_learning_rate(pilots) == 0.1


def test_pilots_try_every_rate_for_every_strategy_and_keep_the_best(tmp_path):
    experiment = made(tmp_path, **{"learning-rate": [0.001, 0.1], "pilot-seeds": 2})
    summary = run_experiment(experiment, tmp_path / "out", LocalEngine())
    assert len(list((tmp_path / "out" / "cells").iterdir())) == 2 * 2 * 2 + 2 * 2
    for entry in summary["strategies"]:
        scores = {pilot["learning_rate"]: pilot["score"] for pilot in entry["pilots"]}
        assert entry["learning_rate"] == max(scores, key=scores.get)


def test_file_names_are_safe():
    assert file_name("../../etc/passwd") == "etc-passwd"
    assert file_name("p*") == "p"
    assert file_name("..") == "strategy"


@pytest.mark.slow
@pytest.mark.data
def test_the_optimal_routing_for_rounds_wins_on_fashion_mnist(tmp_path):
    """Section 3.3: n = 20, m = 100, heterogeneous split; by at least 3 points at the end."""
    if not (Path(os.environ.get("SOJOURN_DATA") or "nowhere") / "fashion-mnist").is_dir():
        pytest.skip("fashion-mnist is not in $SOJOURN_DATA")
    constants = sj.LearningConstants(15.0, 1.0, 3.0, 10.0)
    objective = sj.PerRound(constants, learning_rate=0.01, rounds=0)
    best = sj.optimize_routing(sj.built_in_fleet("twenty"), 100, objective).network.routing
    assert best[0] == pytest.approx(0.5145, abs=1e-4)
    experiment = made(
        tmp_path,
        fleet="twenty",
        data="fashion-mnist",
        partition="dirichlet",
        rounds=3000,
        concurrency=100,
        seeds=3,
        batched=None,
        strategy=[{"name": "G-optimal", "routing": best.tolist()}],
        **{"batch-size": 128, "learning-rate": 0.01},
    )
    summary = run_experiment(experiment, tmp_path / "out", LocalEngine(jobs=2))
    uniform, balanced, optimal = (
        entry["final_accuracy"]["mean"] for entry in summary["strategies"]
    )
    assert optimal >= uniform + 0.03
    assert optimal >= balanced + 0.03

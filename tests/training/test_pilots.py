"""Learning rates are chosen by pilots in lockstep, on samples held out of training, wherever they run."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import torch

from sojourn.errors import InvalidInput
from sojourn.live.watcher import Follower
from sojourn.runs.history import History
from sojourn.training.experiment import build
from sojourn.training.experiment.build import (
    MOST_HELD_OUT,
    VALIDATION,
    build_problem,
    held_out_counts,
    validation_problem,
)
from sojourn.training.experiment.engines import DaskEngine, LocalEngine
from sojourn.training.experiment.experiment import FIRST_PILOT_SEED, Experiment
from sojourn.training.experiment.jobs import Job, pilots_of, run_jobs
from sojourn.training.experiment.preflight import preflight
from sojourn.training.experiment.run import prepare_folder, run_experiment
from tests.training.cluster import PATIENCE, dask_cluster
from tests.training.test_checkpoint import Interrupted
from tests.training.test_experiment import made
from tests.training.test_grow import grown, same

RATES = [0.01, 0.05, 0.2]
SEED = FIRST_PILOT_SEED
TRIED = {"learning-rate": RATES, "batched": True, "lockstep": True, "seeds": 1}
"""Three learning rates in lockstep."""


def pilot_files(folder):
    return {path.name: path.read_bytes() for path in (folder / "cells").glob("*_pilot*.jsonl")}


def judged(folder):
    """The choice of each strategy, and what it was made by."""
    entries = json.loads((folder / "summary.json").read_text())["strategies"]
    return [(entry["name"], entry["learning_rate"], entry["pilots"]) for entry in entries]


class Unread:
    """A test set that nobody may look at."""

    def refuse(self, *_):
        raise AssertionError("the test set was read")

    __iter__ = __getitem__ = __len__ = refuse


@pytest.mark.parametrize("lockstep", [True, False])
def test_pilots_do_not_read_the_test_set(tmp_path, monkeypatch, lockstep):
    """Pilot seeds are of pilots alone; final runs do read it."""
    whole, built = build._built, []

    def unread(experiment, seed):
        problem = whole(experiment, seed)
        if seed >= FIRST_PILOT_SEED:
            problem._test = Unread()
            built.append(seed)
        return problem

    monkeypatch.setattr(build, "_built", unread)
    monkeypatch.setattr(build, "_recent", build._Recent())
    experiment = made(tmp_path, **{**TRIED, "lockstep": lockstep, "pilot-seeds": 2})
    run_experiment(experiment, tmp_path / "out", LocalEngine())
    assert built == [SEED, SEED + 1]
    assert len(History.read(tmp_path / "out/history.jsonl")) == 2


def test_pilots_are_judged_on_samples_that_no_client_trains_on(tmp_path):
    experiment = made(tmp_path, **TRIED, partition="dirichlet")
    problem, held = build_problem(experiment, SEED), validation_problem(experiment, SEED)
    assert held is validation_problem(experiment, SEED)
    numbers = held_out_counts(problem.train_sizes, VALIDATION)
    assert len(held.test_set[1]) == sum(numbers) > 300
    for (x, _), (left, _), number in zip(problem.train_sets, held.train_sets, numbers, strict=True):
        assert len(left) == len(x) - number > 0
    whole, left, away = (
        {row.numpy().tobytes() for row in rows}
        for rows in (problem.samples.x, held.samples.x, held.test_set[0])
    )
    assert left | away == whole
    assert len(left & away) <= len(problem.samples.x) - len(whole), (
        "only digits that are there twice"
    )
    assert torch.equal(held.initial_weights(), problem.initial_weights())
    [(first, *_)] = run_jobs([(experiment, Job(0, SEED, tuple(RATES), pilot=True), None)])
    loss, accuracy = held.evaluate(held.initial_weights())
    assert (first.test_loss[0], first.test_accuracy[0]) == (loss, accuracy)


def test_of_many_samples_no_more_are_held_out_than_tell():
    assert sum(held_out_counts([6000] * 10, 0.25)) == MOST_HELD_OUT
    assert held_out_counts([2] * 5 + [1], 0.25) == [1] * 5 + [0], (
        "where a quarter rounds to nothing"
    )
    with pytest.raises(InvalidInput, match="no client has two"):
        held_out_counts([1, 1, 1], 0.25)


def lockstep_and_solo(folder, **changes):
    """Histories of pilots in lockstep and one by one, and the folders."""
    for name, lockstep in (("together", True), ("alone", False)):
        experiment = made(folder, **{**TRIED, "batched": False, **changes, "lockstep": lockstep})
        run_experiment(experiment, folder / name, LocalEngine())
    found = [
        {
            (history.strategy, history.learning_rate): history
            for path in (folder / name / "cells").glob("*_pilot*.jsonl")
            for history in History.read(path)
        }
        for name in ("together", "alone")
    ]
    assert found[0].keys() == found[1].keys()
    return [(history, found[1][key]) for key, history in found[0].items()]


KINDS = {
    "gradients": {},
    "weighed by size": {"client-weights": "size", "partition": "dirichlet"},
    "a target": {"stop-at": 0.3, "refine": False},
    "time units": {"rounds": None, "time": 60.0},
    "differences": {
        "strategies": None,
        "strategy": [{"name": "buffered", "rule": "fedbuff", "local-steps": 2}],
    },
    "tasks that begin anew": {
        "strategies": None,
        "strategy": [
            {
                "name": "restarted",
                "rule": "ringmaster",
                "policy": {"name": "restart", "max-staleness": 10},
            }
        ],
    },
}


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_in_lockstep_pilots_are_solo_runs_up_to_rounding(tmp_path, changes):
    for one, other in lockstep_and_solo(tmp_path, **changes):
        assert np.array_equal(one.round, other.round)
        assert np.array_equal(one.time, other.time)
        np.testing.assert_allclose(one.test_loss, other.test_loss, rtol=1e-4)
        assert one.round[-1] == 60 or "time" in changes, "to the end, whatever the target"
    together, alone = (judged(tmp_path / name) for name in ("together", "alone"))
    assert [row[:2] for row in together] == [row[:2] for row in alone]


LINEAR = """
import torch
from sojourn.training import Problem

def line(clients, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(clients, 20, 3, generator=generator)
    y = x.sum(-1, keepdim=True) + 0.1 * torch.randn(clients, 20, 1, generator=generator)
    model = torch.nn.Linear(3, 1)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return Problem(model, list(zip(x, y)), (x[0], y[0]), torch.nn.functional.mse_loss, batch_size=4)

def one_sample_each(clients, seed):
    x, y = torch.ones(clients, 1, 3), torch.zeros(clients, 1, 1)
    return Problem(torch.nn.Linear(3, 1), list(zip(x, y)), (x[0], y[0]), torch.nn.functional.mse_loss)
"""


@pytest.fixture
def line(tmp_path, monkeypatch):
    (tmp_path / "line_of_a_test.py").write_text(LINEAR)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("line_of_a_test", None)


def test_without_labels_the_rate_with_the_least_loss_is_chosen(tmp_path, line):
    own = {"problem": "line_of_a_test:line", "learning-rate": [1e-4, 0.02, 1e9]}
    experiment = made(tmp_path, **{**TRIED, **own, "batched": None, "lockstep": None})
    summary = run_experiment(experiment, tmp_path / "out", LocalEngine())
    assert Experiment.read(tmp_path / "out/experiment.toml").lockstep is True
    for entry in summary["strategies"]:
        assert entry["learning_rate"] == 0.02
        assert [bool(pilot["diverged"]) for pilot in entry["pilots"]] == [False, False, True]
        assert entry["pilots"][2]["score"] is None


def test_where_nobody_can_spare_a_sample_it_is_said_before_anything_is_written(tmp_path, line):
    one_each = {"problem": "line_of_a_test:one_sample_each", "rounds": 5}
    with pytest.raises(InvalidInput, match="no client has two"):
        run_experiment(made(tmp_path, **{**TRIED, **one_each}), tmp_path / "out", LocalEngine())
    assert not (tmp_path / "out").exists()
    single = made(tmp_path, **one_each, **{"learning-rate": 0.1})
    assert run_experiment(single, tmp_path / "out", LocalEngine())["strategies"]


def test_lockstep_is_chosen_by_the_kind_of_model_and_kept_with_the_folder(tmp_path):
    def chosen(**changes):
        return preflight(made(tmp_path, **{"learning-rate": RATES, **changes})).lockstep

    assert chosen(batched=None) is chosen(batched=True) is True
    assert chosen(batched=False) is chosen(batched=True, lockstep=False) is False
    assert chosen(batched=False, lockstep=True) is True
    assert chosen(batched=None, model="mlp(20000)") is False, "too large to gain from a stack"
    experiment = made(tmp_path, **{**TRIED, "lockstep": None})
    run_experiment(experiment, tmp_path / "out", LocalEngine())
    again = Experiment.read(tmp_path / "out/experiment.toml")
    assert (again.batched, again.lockstep) == (True, True)
    assert {len(part.learning_rates) for part in pilots_of(again)} == {3}
    run_experiment(again, tmp_path / "again", LocalEngine())
    assert pilot_files(tmp_path / "out") == pilot_files(tmp_path / "again")
    assert sorted(pilot_files(tmp_path / "out")) == [
        f"{name}_seed-{SEED}_pilots.jsonl" for name in ("balanced", "uniform")
    ]


DROPOUT = """
import torch
from sojourn.training import Problem

def problem(clients, seed):
    x = torch.ones(8, 3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(), torch.nn.Linear(4, 2))
    return Problem(model, [(x, x[:, 0].long())] * clients, (x, x[:, 0].long()), batch_size=4)
"""


def test_lockstep_that_cannot_be_is_refused(tmp_path, monkeypatch):
    (tmp_path / "dropout_of_a_test.py").write_text(DROPOUT)
    monkeypatch.chdir(tmp_path)
    own = {"problem": "dropout_of_a_test:problem", "rounds": 5, "batched": None}
    with pytest.raises(InvalidInput, match=r"lockstep = true, but this model.*Leave out lockstep"):
        preflight(made(tmp_path, **{**TRIED, **own}))
    assert preflight(made(tmp_path, **{**TRIED, **own, "lockstep": None})).lockstep is False
    sys.modules.pop("dropout_of_a_test")


@pytest.mark.parametrize(
    "stages", [([0.01, 0.2], RATES), (RATES, [0.01, 0.2])], ids=["more", "fewer"]
)
def test_a_folder_that_grows_or_shrinks_by_a_rate_equals_one_made_whole(tmp_path, stages):
    first, second = grown(tmp_path, *({**TRIED, "learning-rate": rates} for rates in stages))
    assert [part.learning_rates for part in first if part.pilot] == [tuple(stages[0])] * 2
    assert [part.learning_rates for part in second if part.pilot] == [tuple(stages[1])] * 2, (
        "how a stack is rounded may depend on all who are in it"
    )
    assert same(tmp_path)
    assert pilot_files(tmp_path / "grown") == pilot_files(tmp_path / "whole")


@pytest.mark.parametrize("length", [{"rounds": 60}, {"rounds": None, "time": 40.0}])
def test_with_a_longer_horizon_all_pilots_are_made_again(tmp_path, length):
    """Whatever target they may have reached, and if they diverged: their rows are at other times."""
    key = "time" if "time" in length else "rounds"
    options = {**TRIED, "learning-rate": [0.05, 0.2, 1e9], "stop-at": 0.15}
    grown(tmp_path, {**options, **length}, {**options, **length, key: 2 * length[key]})
    assert pilot_files(tmp_path / "grown") == pilot_files(tmp_path / "whole")
    assert len(list((tmp_path / "grown/cells").glob("*_pilots.jsonl.shorter"))) == 2


def interrupted(experiment, part, folder, monkeypatch, *, after):
    """Interrupt pilots when this fraction of them is done."""
    monkeypatch.setattr("sojourn.training.replay.stack.SECONDS_PER_PROGRESS", 0.0)
    monkeypatch.setattr("sojourn.training.replay.checkpoint.LEAST_SECONDS_PER_WRITE", 0.0)

    def advance(done):
        if after <= done < 1.0:
            raise Interrupted

    with pytest.raises(Interrupted):
        run_jobs([(experiment, part, folder)], advance)


@pytest.mark.parametrize("rates", [RATES, [0.05, 0.2, 1e9]], ids=["all go on", "one diverged"])
@pytest.mark.parametrize("lockstep", [True, False])
def test_broken_off_pilots_go_on_where_they_were(tmp_path, monkeypatch, rates, lockstep):
    options = {**TRIED, "learning-rate": rates, "lockstep": lockstep, "checkpoint-seconds": 0.0}
    experiment = prepare_folder(
        made(tmp_path, **options), tmp_path / "out", LocalEngine(), resume=False
    )
    part = pilots_of(experiment)[0]
    interrupted(experiment, part, tmp_path / "out", monkeypatch, after=0.5)
    (checkpoint,) = (tmp_path / "out/cells").iterdir()
    seen = {run.history.learning_rate: run for run in Follower(tmp_path / "out").runs()}
    assert tuple(seen) == part.learning_rates, "the live view shows every one of them"
    assert {run.history.strategy for run in seen.values()} == {"uniform"}
    assert not any(run.ended for run in seen.values())
    fractions = []
    [resumed] = run_jobs([(experiment, part, tmp_path / "out")], fractions.append)
    assert fractions[0] > 0.5
    assert not checkpoint.exists()
    [whole] = run_jobs([(experiment, part, None)])
    assert [repr(h.to_records()) for h in resumed] == [repr(h.to_records()) for h in whole]


def test_broken_off_pilots_of_other_rates_are_begun_anew(tmp_path, monkeypatch):
    options = {**TRIED, "checkpoint-seconds": 0.0}
    experiment = prepare_folder(
        made(
            tmp_path,
            **options,
        ),
        tmp_path / "grown",
        LocalEngine(),
        resume=False,
    )
    interrupted(experiment, pilots_of(experiment)[0], tmp_path / "grown", monkeypatch, after=0.5)
    more = made(tmp_path, **{**options, "learning-rate": [0.005, *RATES]})
    run_experiment(more, tmp_path / "grown", LocalEngine(), resume=True)
    run_experiment(more, tmp_path / "whole", LocalEngine())
    assert same(tmp_path)
    assert pilot_files(tmp_path / "grown") == pilot_files(tmp_path / "whole")


def test_the_weights_of_pilots_are_not_kept(tmp_path):
    options = {**TRIED, "strategies": ["uniform"], "keep-weights": True}
    run_experiment(made(tmp_path, **options), tmp_path / "out", LocalEngine())
    (path,) = (tmp_path / "out/weights").iterdir()
    assert path.name.startswith("uniform_seed-0_rate-")
    before = pilot_files(tmp_path / "out")
    run_experiment(made(tmp_path, **options), tmp_path / "out", LocalEngine(), resume=True)
    assert pilot_files(tmp_path / "out") == before


def test_pilots_on_the_test_set_of_an_earlier_version_are_not_taken_up(tmp_path):
    """They had files like those of final runs; the live view shows who took their place."""
    experiment = made(tmp_path, **TRIED, strategies=["uniform"])
    run_experiment(experiment, tmp_path / "new", LocalEngine())
    run_experiment(dataclasses.replace(experiment, lockstep=False), tmp_path / "old", LocalEngine())
    for path in list((tmp_path / "old/cells").glob("*_pilot-*.jsonl")):
        text = path.read_text().replace('"test_loss": ', '"test_loss": 9')
        path.with_name(path.name.replace("_pilot-", "_rate-")).write_text(text)
        path.unlink()
    again = made(tmp_path, **{**TRIED, "lockstep": False}, strategies=["uniform"])
    run_experiment(again, tmp_path / "old", LocalEngine(), resume=True)
    assert [row[:2] for row in judged(tmp_path / "old")] == [
        row[:2] for row in judged(tmp_path / "new")
    ]
    runs = Follower(tmp_path / "old").runs()
    assert len(runs) == len(RATES) + 1
    assert max(float(run.history.test_loss[0]) for run in runs) < 9


@pytest.mark.processes
@pytest.mark.timeout(2 * PATIENCE)
def test_pilots_are_the_same_in_one_process_in_two_and_on_dask(commands, tmp_path):
    experiment = made(tmp_path, **TRIED)
    run_experiment(experiment, tmp_path / "one", LocalEngine())
    run_experiment(experiment, tmp_path / "two", LocalEngine(jobs=2))
    with dask_cluster(commands, tmp_path, workers=1) as (address, _):
        run_experiment(experiment, tmp_path / "dask", DaskEngine(address))
    files = pilot_files(tmp_path / "one")
    assert len(files) == 2
    for name in ("two", "dask"):
        assert pilot_files(tmp_path / name) == files
        assert judged(tmp_path / name) == judged(tmp_path / "one")
        assert (tmp_path / name / "history.jsonl").read_bytes() == (
            tmp_path / "one/history.jsonl"
        ).read_bytes()

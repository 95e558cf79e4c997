"""A folder that grows holds what one run made whole would hold, to the bit."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import torch

from sojourn._support.arrays import read_tensors, write_tensors
from sojourn._support.files import alone_in
from sojourn._support.ledger import accept_edits, noted
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.runs.history import History
from sojourn.training import load_weights
from sojourn.training.experiment.build import build_problem, client_weights_of
from sojourn.training.experiment.engines import LocalEngine
from sojourn.training.experiment.jobs import schedule_of
from sojourn.training.experiment.run import run_experiment
from sojourn.training.replay.replay import replay

from .small import final_run
from .test_experiment import made


class Counting(LocalEngine):
    """Keeps which parts were run."""

    ran: list

    def run(self, experiment, parts, folder, advance):
        self.ran.extend(parts)
        return super().run(experiment, parts, folder, advance)


def grown(tmp_path, *stages):
    """Run one stage after the other in one folder; which parts each had to run."""
    ran = []
    for number, changes in enumerate(stages):
        engine = Counting()
        object.__setattr__(engine, "ran", [])
        experiment = made(tmp_path, **changes)
        run_experiment(experiment, tmp_path / "grown", engine, resume=number > 0)
        ran.append(engine.ran)
    run_experiment(made(tmp_path, **stages[-1]), tmp_path / "whole", LocalEngine())
    return ran


def same(tmp_path):
    files = [(tmp_path / name / "history.jsonl").read_bytes() for name in ("grown", "whole")]
    summaries = [
        json.loads((tmp_path / name / "summary.json").read_text())["strategies"]
        for name in ("grown", "whole")
    ]
    return files[0] == files[1] and summaries[0] == summaries[1]


def test_more_seeds_one_more_strategy_other_targets(tmp_path):
    small = {"seeds": 1, "strategies": ["uniform"]}
    large = {"seeds": 2, "strategies": ["uniform", "square-root"], "targets": [0.3]}
    first, second = grown(tmp_path, small, large)
    assert len(first) == 1
    assert sorted((cell.strategy, cell.seed) for cell in second) == [(0, 1), (1, 0), (1, 1)]
    assert same(tmp_path)


def test_more_learning_rates(tmp_path):
    small = {"seeds": 1, "learning-rate": [0.001, 0.01], "strategies": ["uniform"]}
    first, second = grown(tmp_path, small, {**small, "learning-rate": [0.001, 0.01, 0.1]})
    assert len(first) == 3
    assert {part.learning_rates for part in second} == {(0.1,)}, "one by one, so others stay"
    assert same(tmp_path)


@pytest.mark.parametrize("length", [{"rounds": 60}, {"rounds": None, "time": 3.0}])
def test_a_longer_horizon(tmp_path, length):
    key = "time" if "time" in length else "rounds"
    longer = {**length, key: 2 * length[key]}
    grown(tmp_path, {"seeds": 1, **length}, {"seeds": 1, **longer})
    assert same(tmp_path)
    assert len(list((tmp_path / "grown/cells").glob("*.shorter"))) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 30}, "its 'rounds' is 60, and 30 is shorter"),
        ({"partition": "dirichlet"}, "its 'partition' differs"),
        ({"concurrency": 20}, "the 'concurrency' of its strategy 'uniform' differs"),
        ({"stop-at": 0.5}, "its 'stop-at' differs"),
        ({"rounds": None, "time": 5.0}, "differs"),
    ],
)
def test_what_would_change_what_is_kept_is_refused_by_name(tmp_path, changes, message):
    first = made(tmp_path, seeds=1)
    run_experiment(first, tmp_path / "out", LocalEngine())
    before = (tmp_path / "out/history.jsonl").read_bytes()
    with pytest.raises(InvalidFile, match=message):
        run_experiment(
            made(tmp_path, seeds=1, **changes), tmp_path / "out", LocalEngine(), resume=True
        )
    assert (tmp_path / "out/history.jsonl").read_bytes() == before


def test_final_weights_are_kept_on_request_and_load_in_one_line(tmp_path):
    small = {"seeds": 1, "strategies": ["uniform"]}
    run_experiment(made(tmp_path, **small), tmp_path / "out", LocalEngine())
    assert not (tmp_path / "out/weights").exists()
    kept = made(tmp_path, **small, **{"keep-weights": True})
    run_experiment(kept, tmp_path / "out", LocalEngine(), resume=True)
    (path,) = (tmp_path / "out/weights").iterdir()
    problem = build_problem(kept, 0)
    model = problem.trained_model(problem.initial_weights())
    model.load_state_dict(load_weights(path))
    (history,) = History.read(tmp_path / "out/history.jsonl")
    x, y = problem.test_set
    accuracy = float((model(x).argmax(1) == y).double().mean())
    assert accuracy == pytest.approx(history.final_accuracy, abs=1e-12)


def test_the_file_of_weights_is_what_others_read(tmp_path):
    arrays = {
        "a.weight": torch.randn(3, 2).numpy(),
        "steps": torch.tensor(5).numpy(),
        "empty": torch.zeros(0, 4, dtype=torch.float64).numpy(),
    }
    write_tensors(tmp_path / "w.safetensors", arrays)
    for name, array in read_tensors(tmp_path / "w.safetensors").items():
        assert array.dtype == arrays[name].dtype
        assert array.shape == arrays[name].shape
        assert (array == arrays[name]).all()
    numpy = pytest.importorskip("safetensors.numpy")
    theirs = numpy.load_file(tmp_path / "w.safetensors")
    assert all((theirs[name] == array).all() for name, array in arrays.items())


def test_half_a_file_of_weights_is_refused(tmp_path):
    write_tensors(tmp_path / "w", {"a": torch.randn(9).numpy()})
    (tmp_path / "half").write_bytes((tmp_path / "w").read_bytes()[:-5])
    with pytest.raises(InvalidFile, match="not a whole safetensors file"):
        read_tensors(tmp_path / "half")


CARELESS = """
import random
import numpy as np
import torch
from sojourn.training import Problem

def build(clients, seed, draw):
    x = torch.randn(clients, 8, 3) + draw
    y = (x[..., 0] > 0).long()
    return Problem(torch.nn.Linear(3, 2), list(zip(x, y)), (x[0], y[0]), batch_size=4)

def all_global(clients, seed):
    return build(clients, seed, random.random() + np.random.rand())

def unseeded(clients, seed):
    return build(clients, seed, float(np.random.default_rng().random()))
"""


@pytest.fixture
def careless(tmp_path, monkeypatch):
    (tmp_path / "careless.py").write_text(CARELESS)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("careless", None)


def test_a_problem_that_draws_from_global_generators_is_the_same_for_all_strategies(
    tmp_path, careless
):
    experiment = made(tmp_path, problem="careless:all_global", rounds=5)
    before = torch.random.get_rng_state()
    first = final_run(experiment, 0, 3, 0.05)
    torch.randn(7)
    again = final_run(experiment, 1, 3, 0.05)
    other = final_run(experiment, 0, 4, 0.05)
    assert first.test_loss[0] == again.test_loss[0] != other.test_loss[0]
    torch.random.set_rng_state(before)
    one = build_problem(experiment, 5).initial_weights()
    assert torch.equal(before, torch.random.get_rng_state())
    build_problem(experiment, 6)
    assert torch.equal(one, build_problem(experiment, 5).initial_weights())


def test_a_problem_that_differs_when_built_twice_is_refused(tmp_path, careless):
    with pytest.raises(InvalidInput, match="called twice with seed 0 it gives different training"):
        build_problem(made(tmp_path, problem="careless:unseeded"), 0)


def test_the_best_learning_rate_at_the_edge_of_the_list_is_said(tmp_path):
    experiment = made(tmp_path, seeds=1, strategies=["uniform"], **{"learning-rate": [1e-5, 0.1]})
    summary = run_experiment(experiment, tmp_path / "out", LocalEngine())
    assert summary["strategies"][0]["learning_rate_at_edge"] == "largest"
    middle = dataclasses.replace(
        experiment,
        strategies=(
            dataclasses.replace(experiment.strategies[0], learning_rates=(1e-5, 0.1, 1e9)),
        ),
    )
    grown = run_experiment(middle, tmp_path / "out", LocalEngine(), resume=True)
    assert grown["strategies"][0]["learning_rate_at_edge"] is None


def test_clients_weighted_by_size_learn_otherwise(tmp_path):
    options = {"partition": "dirichlet", "seeds": 1}
    equal, sized = (
        final_run(made(tmp_path, **options, **{"client-weights": by}), 0, 0, 0.05)
        for by in ("equal", "size")
    )
    assert equal.test_loss[0] == sized.test_loss[0]
    assert equal.test_loss[-1] != sized.test_loss[-1]
    with pytest.raises(InvalidFile, match="unknown client weights 'sizes'"):
        made(tmp_path, **{"client-weights": "sizes"})


def test_clients_weighted_by_the_fleet(tmp_path):
    weights = [5.0, 1.0, 3.0]
    rows = [f"{rate},10,{weight}" for rate, weight in zip((0.01, 0.1, 1.0), weights, strict=True)]
    (tmp_path / "fleet.csv").write_text("\n".join(["service_rate,count,weight", *rows]))
    by_fleet = made(tmp_path, fleet="fleet.csv", seeds=1)
    assert by_fleet.client_weights == "fleet"
    problem = build_problem(by_fleet, 0)
    relative = by_fleet.fleet.expand(weights) / 3.0
    np.testing.assert_allclose(client_weights_of(by_fleet, problem), relative, rtol=1e-14)
    history = final_run(by_fleet, 0, 0, 0.05)
    strategy = by_fleet.strategies[0]
    schedule = schedule_of(by_fleet, strategy, 0, rounds=by_fleet.rounds, time=by_fleet.time)
    unsaid = replay(schedule, problem, strategy.rule, learning_rate=0.05, seed=0, batched=False)
    given = replay(
        *(schedule, problem, strategy.rule),
        **{"learning_rate": 0.05, "seed": 0, "batched": False, "client_weights": 2.0 * relative},
    )
    np.testing.assert_allclose(unsaid.weights, given.weights, rtol=1e-4, atol=1e-6)
    assert history.test_loss[-1] == pytest.approx(unsaid.test_loss[-1], rel=1e-4)
    equal = final_run(made(tmp_path, seeds=1), 0, 0, 0.05)
    assert history.test_loss[-1] != pytest.approx(equal.test_loss[-1], rel=1e-3)
    for by in ("size", "equal"):
        with pytest.raises(InvalidFile, match=f'"{by}", but the fleet has a column .weight.'):
            made(tmp_path, fleet="fleet.csv", **{"client-weights": by})
    with pytest.raises(InvalidFile, match="but the fleet has no column 'weight'"):
        made(tmp_path, **{"client-weights": "fleet"})


def test_small_problems_of_ones_own_use_one_thread_unless_told(tmp_path, careless):
    own = {"problem": "careless:all_global", "rounds": 5, "seeds": 1, "strategies": ["uniform"]}
    for asked, used in ((None, 1), (2, 2)):
        folder = tmp_path / f"threads {used}"
        experiment = dataclasses.replace(made(tmp_path, **own), threads=asked, batched=None)
        run_experiment(experiment, folder, LocalEngine(1))
        assert f"threads = {used}\n" in (folder / "experiment.toml").read_text()


def test_an_accuracy_that_was_edited_by_hand_is_not_used(tmp_path):
    """Its file can be deleted, and is then computed again, or accepted as it is."""
    small = {"seeds": 1, "strategies": ["uniform"]}
    run_experiment(made(tmp_path, **small), tmp_path / "out", LocalEngine())
    before = (tmp_path / "out" / "history.jsonl").read_bytes()
    [saved] = (tmp_path / "out" / "cells").glob("*rate-*.jsonl")
    rows = [json.loads(line) for line in saved.read_text().splitlines()]
    rows[-1]["test_accuracy"] = 0.999
    saved.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InvalidFile, match="changed since it was written"):
        run_experiment(made(tmp_path, **small), tmp_path / "out", LocalEngine(), resume=True)
    accept_edits(True)
    try:
        run_experiment(made(tmp_path, **small), tmp_path / "out", LocalEngine(), resume=True)
        assert any(saved.name in note for note in noted())
        assert "0.999" in (tmp_path / "out" / "history.jsonl").read_text()
    finally:
        accept_edits(False)
    saved.unlink()
    run_experiment(made(tmp_path, **small), tmp_path / "out", LocalEngine(), resume=True)
    assert (tmp_path / "out" / "history.jsonl").read_bytes() == before


def test_two_commands_in_one_folder_one_says_so(tmp_path):
    experiment = made(tmp_path, seeds=1, strategies=["uniform"])
    (tmp_path / "out").mkdir()
    with alone_in(tmp_path / "out"), pytest.raises(InvalidInput, match="another command is writ"):
        run_experiment(experiment, tmp_path / "out", LocalEngine())
    run_experiment(experiment, tmp_path / "out", LocalEngine())

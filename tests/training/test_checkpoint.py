"""A run that was killed goes on to the same history, to the bit."""

import os
import pickle
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sojourn.errors import InvalidFile, InvalidInput
from sojourn.rules import (
    RULES,
    Adam,
    AsyncSGD,
    Cosine,
    FedBuff,
    GeneralizedAsyncSGD,
    Momentum,
    ServerState,
)
from sojourn.training import Checkpoint
from sojourn.training.replay.checkpoint import CheckpointFile, digest
from sojourn.training.replay.replay import replay
from sojourn.training.replay.state import ReplayState, Version
from tests.training.small import CLASSES, perceptron, small_problem, small_schedule

ROOT = Path(__file__).parents[2]
ROUNDS, BROKEN_OFF = 100, 40


class Interrupted(Exception):
    pass


def interrupt_after(rounds):
    def advance(done, total):
        if rounds <= done < total:
            raise Interrupted

    return advance


def run(
    path=None, *, rule=None, batched=False, progress=False, rounds=ROUNDS, model=None, **changes
):
    rule = rule or GeneralizedAsyncSGD()
    schedule = small_schedule(
        concurrency=4, rounds=rounds, policy=rule.policy, work=rule.local_steps
    )
    options = {"learning_rate": 0.1, "seed": 1, "evaluate_every": 30, **changes}
    checkpoint = None if path is None else Checkpoint(path, seconds=0.0)
    return replay(
        schedule,
        small_problem(model=model or perceptron()),
        rule,
        batched=batched,
        progress=progress,
        checkpoint=checkpoint,
        **options,
    )


def records(history):
    return repr(history.to_records())


def interrupted(path, monkeypatch, **options):
    """Break a run off on its way, and say in which round its checkpoint is."""
    monkeypatch.setattr("sojourn.training.replay.stack.SECONDS_PER_PROGRESS", 0.0)
    monkeypatch.setattr("sojourn.training.replay.checkpoint.LEAST_SECONDS_PER_WRITE", 0.0)
    with pytest.raises(Interrupted):
        run(path, progress=interrupt_after(BROKEN_OFF), **options)


WITH_OPTIMISERS = [
    AsyncSGD(debias=0.5, server=Momentum(schedule=Cosine())),
    AsyncSGD(server=Adam(amsgrad=True)),
    FedBuff(buffer_size=3, server=Adam(clip=0.1)),
    AsyncSGD(local_steps=2, local_learning_rate=0.05, server=Momentum()),
]


@pytest.mark.parametrize("rule", [*(kind() for kind in RULES.values()), *WITH_OPTIMISERS], ids=repr)
@pytest.mark.parametrize("batched", [False, True])
def test_an_interrupted_run_goes_on_to_the_same_history(tmp_path, monkeypatch, rule, batched):
    path = tmp_path / "run.checkpoint"
    interrupted(path, monkeypatch, rule=rule, batched=batched)
    rounds = []
    resumed = run(
        path, rule=rule, batched=batched, progress=lambda done, total: rounds.append(done)
    )
    assert rounds[0] > BROKEN_OFF
    whole = run(rule=rule, batched=batched)
    assert records(resumed) == records(whole)
    assert np.array_equal(resumed.weights, whole.weights)


@pytest.mark.parametrize("rule", [AsyncSGD(), AsyncSGD(local_steps=3)], ids=repr)
def test_units_dropped_at_random_are_the_same_after_an_interruption(tmp_path, monkeypatch, rule):
    def model():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, CLASSES))

    assert small_problem(model=model()).uses_dropout
    path = tmp_path / "run.checkpoint"
    interrupted(path, monkeypatch, rule=rule, model=model())
    torch.manual_seed(99)
    resumed = run(path, rule=rule, model=model())
    torch.rand(5)
    whole = run(rule=rule, model=model())
    assert records(resumed) == records(whole)
    assert np.array_equal(resumed.weights, whole.weights)


def test_the_choice_between_plain_and_batched_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "run.checkpoint"
    monkeypatch.setattr("sojourn.training.problem.gradients.TRIAL_ROUNDS", 1)
    monkeypatch.setattr("sojourn.training.problem.gradients.SHORTEST_RUN", 2)
    monkeypatch.setattr("sojourn.training.problem.gradients.HEAVY_TASK", float("inf"))
    monkeypatch.setattr("sojourn.training.problem.gradients.WORTHWHILE", float("inf"))
    interrupted(path, monkeypatch, batched=None)
    whole = run(batched=None)
    monkeypatch.setattr("sojourn.training.problem.gradients.WORTHWHILE", 0.0)
    resumed = run(path, batched=None)
    assert resumed.provenance["inputs"]["batched"] is True
    assert records(resumed) == records(whole)
    assert np.array_equal(resumed.weights, whole.weights)


def test_a_finished_run_is_not_run_again(tmp_path):
    path = tmp_path / "run.checkpoint"
    first = run(path)
    rounds = []
    again = run(path, progress=lambda done, total: rounds.append(done))
    assert rounds == [ROUNDS]
    assert records(again) == records(first)


def test_a_run_that_diverged_stays_so(tmp_path):
    path = tmp_path / "run.checkpoint"
    first = run(path, learning_rate=1e30)
    assert first.diverged_at is not None
    assert run(path, learning_rate=1e30).diverged_at == first.diverged_at


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"learning_rate": 0.2}, "its learning rate differs"),
        ({"seed": 2}, "its seed differs"),
        ({"rule": AsyncSGD()}, "its rule differs"),
        ({"rounds": 300}, "its schedule differs"),
        ({"evaluate_every": 31, "seed": 5}, "its seed and spacing of evaluations differ"),
        ({"batched": True}, "its batched differs"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(tmp_path, change, what):
    path = tmp_path / "run.checkpoint"
    run(path)
    with pytest.raises(InvalidFile, match=what):
        run(path, **change)


def test_another_problem_is_refused(tmp_path):
    path, schedule = tmp_path / "run.checkpoint", small_schedule(rounds=10)
    options = {"learning_rate": 0.1, "seed": 1, "evaluate_every": 5, "checkpoint": path}
    replay(schedule, small_problem(), AsyncSGD(), **options)
    with pytest.raises(InvalidFile, match="its problem differs"):
        replay(schedule, small_problem(batch_size=9), AsyncSGD(), **options)


def with_activation(activation):
    model = perceptron()
    model[2] = activation
    return model


def shifted(x, generator):
    return x + 1


@pytest.mark.parametrize(
    "change",
    [
        {"model": with_activation(nn.Tanh())},
        {"loss": nn.functional.nll_loss},
        {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)},
        {"augment": shifted},
    ],
    ids=["structure", "loss", "smoothing", "augmentation"],
)
def test_what_does_not_show_in_the_weights_is_not_changed_either(tmp_path, change):
    path, schedule = tmp_path / "run.checkpoint", small_schedule(rounds=10)
    options = {"learning_rate": 0.1, "seed": 1, "evaluate_every": 5, "checkpoint": path}
    replay(schedule, small_problem(loss=nn.CrossEntropyLoss()), AsyncSGD(), **options)
    replay(schedule, small_problem(loss=nn.CrossEntropyLoss()), AsyncSGD(), **options)
    with pytest.raises(InvalidFile, match="its problem differs"):
        other = small_problem(**{"loss": nn.CrossEntropyLoss(), **change})
        replay(schedule, other, AsyncSGD(), **options)


@pytest.mark.parametrize("spoil", ["truncate", "text", "pickle", "pickled array", "empty"])
def test_a_spoilt_checkpoint_is_refused_and_nothing_is_unpickled(tmp_path, spoil):
    path, marker = tmp_path / "run.checkpoint", tmp_path / "ran"
    run(path)
    whole = path.read_bytes()

    class Harmful:
        def __reduce__(self):
            return os.mkdir, (str(marker),)

    if spoil == "truncate":
        path.write_bytes(whole[: len(whole) // 2])
    elif spoil == "text":
        path.write_text("not a checkpoint")
    elif spoil == "pickle":
        path.write_bytes(pickle.dumps(Harmful()))
    elif spoil == "pickled array":
        with path.open("wb") as file:
            np.savez(file, meta=np.array([Harmful()], dtype=object), vectors=np.zeros(1))
    else:
        with zipfile.ZipFile(path, "w"):
            pass
    with pytest.raises(InvalidFile, match="Delete it to start anew"):
        run(path)
    assert not marker.exists()


class Wall:
    """A clock that moves only when it is told to."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("sojourn.training.replay.checkpoint.time.monotonic", lambda: self.now)


@pytest.mark.parametrize(
    ("takes", "due"), [(0.0, 30.0), (1.0, 30.0), (2.0, 40.0)], ids=["instant", "quick", "slow"]
)
def test_writes_are_spaced_and_leave_no_other_file(tmp_path, monkeypatch, takes, due):
    wall, path = Wall(monkeypatch), tmp_path / "run.checkpoint"
    whole = np.savez

    def writing(*args, **kwargs):
        wall.now += takes
        whole(*args, **kwargs)

    monkeypatch.setattr("sojourn.training.replay.checkpoint.np.savez", writing)
    file = CheckpointFile(Checkpoint(path), {})
    weights = np.zeros(2)
    wall.now = 29.9
    assert not file.due
    wall.now = 30.0
    assert file.due
    file.write(ReplayState(ServerState(weights), {0: Version(weights, 0)}))
    written = wall.now
    wall.now = written + due - 0.1
    assert not file.due
    wall.now = written + due
    assert file.due
    assert [file.name for file in tmp_path.iterdir()] == ["run.checkpoint"]


def test_a_negative_spacing_is_refused(tmp_path):
    path = tmp_path / "run.checkpoint"
    with pytest.raises(InvalidInput, match="must not be negative"):
        Checkpoint(path, seconds=-1.0)


def test_shared_weights_are_kept_once(tmp_path):
    path = tmp_path / "run.checkpoint"
    schedule = small_schedule(concurrency=30, rounds=50)
    rule = FedBuff(buffer_size=1000)
    replay(schedule, small_problem(), rule, learning_rate=0.1, seed=1, checkpoint=path)
    with np.load(path) as archive:
        (vectors,) = (archive[name] for name in archive.files if name.startswith("vectors-"))
        assert vectors.shape == (1, small_problem().dimension)
        assert archive["array-0-buffer"].shape == (small_problem().dimension,)


def test_digests_tell_values_apart():
    values = [1, 1.0, "1", np.zeros(2), np.zeros(3), np.zeros(2, dtype=int), torch.ones(2)]
    assert len({digest(value) for value in values}) == len(values)


CHILD = """
import sys
import time
from tests.training.test_checkpoint import long_run

def advance(done, total):
    print(done, flush=True)
    if done >= 1000:
        time.sleep(60)

long_run(sys.argv[1], advance)
"""


def long_run(path=None, progress=False):
    torch.set_num_threads(1)
    return replay(
        small_schedule(concurrency=40, rounds=1500),
        small_problem(),
        GeneralizedAsyncSGD(),
        learning_rate=0.01,
        seed=1,
        checkpoint=None if path is None else Checkpoint(path, seconds=0.0),
        progress=progress,
        batched=False,
    )


def test_killed_and_resumed(tmp_path):
    """The child is killed somewhere beyond round 500; it cannot have come to its end."""
    path = tmp_path / "run.checkpoint"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        reached = next((int(line) for line in child.stdout if int(line) >= 500), 0)
        child.send_signal(signal.SIGKILL)
    finally:
        child.stdout.close()
        child.wait()
    assert reached >= 500
    assert child.returncode == -signal.SIGKILL
    rounds = []
    resumed = long_run(path, lambda done, total: rounds.append(done))
    assert 0 < rounds[0] < 1500
    whole = long_run()
    assert records(resumed) == records(whole)
    assert np.array_equal(resumed.weights, whole.weights)

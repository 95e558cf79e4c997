"""Large models: fewer passes over the memory, and the same bits."""

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

from sojourn import Fleet, Network, simulate, uniform_routing
from sojourn.errors import InvalidInput
from sojourn.rules import AsyncSGD, arrays, server
from sojourn.rules.arrays import LEAST_KEPT, LONG_VECTOR, long_vector
from sojourn.rules.server import moved
from sojourn.training.problem import autograd, batches, flat
from sojourn.training.problem.problem import Problem
from sojourn.training.replay.run import Replay
from sojourn.training.replay.stack import Stack


class Tagger(nn.Module):
    """An embedding with sparse gradients, a layer used twice, and one that is never used."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8, sparse=True)
        self.twice = nn.Linear(8, 8)
        self.idle = nn.Linear(3, 5)
        self.out = nn.Linear(8, 4)

    def forward(self, x):
        hidden = self.words(x)
        return self.out(self.twice(torch.relu(self.twice(hidden))))


def tagger():
    torch.manual_seed(3)
    x, y = torch.randint(50, (60,)), torch.randint(4, (60,))
    return Problem(Tagger(), [(x[:40], y[:40]), (x[40:], y[40:])], (x, y), batch_size=16)


def images():
    torch.manual_seed(4)
    x, y = torch.randn(40, 1, 8, 8), torch.randint(4, (40,))
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
    )
    return Problem(model, [(x, y)], (x, y), batch_size=16, channels_last=True)


def perceptron(batch_size=16):
    """A dense layer that is there twice, and units that are zero."""
    torch.manual_seed(5)
    x, y = torch.randn(40, 12), torch.randint(4, (40,))
    layer = nn.Linear(20, 20)
    layers = nn.Linear(12, 20), nn.ReLU(), layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(20, 4)
    return Problem(nn.Sequential(*layers), [(x, y)], (x, y), batch_size=batch_size)


def one_sample():
    return perceptron(batch_size=1)


@pytest.mark.parametrize("many", [1, 30])
@pytest.mark.parametrize("make", [tagger, images, perceptron, one_sample])
def test_collected_gradients_are_those_added_to_zeros_to_the_bit(make, many, monkeypatch):
    """All are collected, or those of at least 30 weights, and the others added to zeros."""
    usual = make()
    monkeypatch.setattr(flat, "MANY_WEIGHTS", many)
    monkeypatch.setattr(autograd, "LARGE_LAYER", 1)
    collecting = make()
    assert collecting._flat._collects
    assert not usual._flat._collects
    weights = usual.initial_weights().numpy()
    for number in range(3):
        loss, gradient = usual.loss_and_array(weights, 0, number, seed=1)
        other, collected = collecting.loss_and_array(weights, 0, number, seed=1)
        assert loss == other
        assert gradient.tobytes() == collected.tobytes()
        # A task with its own steps adds to the vector of gradients, also after one was collected.
        ends = [p.train_client(weights, 0, number, 1, 2, 0.1)[1] for p in (usual, collecting)]
        assert torch.equal(*ends)


def test_a_gradient_that_somebody_holds_is_not_overwritten(monkeypatch):
    monkeypatch.setattr(flat, "MANY_WEIGHTS", 1)
    problem = images()
    weights = problem.initial_weights().numpy()
    _, first = problem.loss_and_array(weights, 0, 0, seed=1)
    before, view = first.copy(), first[5:]
    del first
    _, second = problem.loss_and_array(weights, 0, 1, seed=1)
    assert not np.array_equal(before, second)
    assert np.array_equal(view, before[5:])
    tensor, kept = torch.from_numpy(second), second.copy()
    del second, view
    problem.loss_and_array(weights, 0, 2, seed=1)
    assert np.array_equal(tensor.numpy(), kept)
    _, third = problem.loss_and_array(weights, 0, 3, seed=1)
    kept = third.copy()
    problem.train_client(weights, 0, 0, 1, 2, 0.1)
    assert np.array_equal(third, kept)


def test_the_memory_of_a_gradient_is_used_again_when_nobody_holds_it(monkeypatch):
    monkeypatch.setattr(flat, "MANY_WEIGHTS", 1)
    problem = images()
    weights = problem.initial_weights().numpy()
    places = {problem.loss_and_array(weights, 0, k, seed=1)[1].ctypes.data for k in range(4)}
    assert len(places) == 1


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("size", [LONG_VECTOR + 7, LEAST_KEPT // 4 + 7])
def test_long_vectors_move_as_short_ones_to_the_bit(kind, size):
    """The larger ones are written past the cache, a line at a time but for the last numbers."""
    rng = np.random.default_rng(5)
    weights, direction = (rng.standard_normal(size + 1).astype(kind)[1:] for _ in range(2))
    direction[:4], weights[:2] = [0.0, -0.0, np.inf, np.nan], [0.0, -0.0]
    for step in (-1e-3, np.float64(0.3), 1e-40):
        parts = [slice(k, k + 1000) for k in range(0, len(weights), 1000)]
        short = np.concatenate([moved(weights[p], step, direction[p]) for p in parts])
        long = moved(weights, step, direction)
        assert long.dtype == kind
        assert long.tobytes() == short.tobytes()


def test_fleets_of_many_clients_cache_few_blocks_and_draw_the_same_batches(monkeypatch):
    def drawn():
        made = batches.Batches(1, lambda client: 20 + client, 4)
        tasks = [(client, number) for number in (0, 40, 80, 0) for client in range(6)]
        found = [made.indices(*task).tolist() for task in tasks]
        return found, max(map(len, made._blocks.values()))

    usual, cached = drawn()
    assert cached == 3
    monkeypatch.setattr(batches, "CACHED_INDICES", 1)
    monkeypatch.setattr(batches, "UNBOUND_CLIENTS", 2)
    assert drawn() == (usual, 1)


def test_gradients_at_weights_that_are_lent_are_those_at_a_copy_to_the_bit(monkeypatch):
    """Vectors at other addresses, of other kinds and read-only ones are copied."""
    problem = tagger()
    for module, name in ((flat, "MANY_WEIGHTS"), (flat, "LENT_WEIGHTS"), (arrays, "LEAST_KEPT")):
        monkeypatch.setattr(module, name, 1)
    lending = tagger()
    usual = problem.initial_weights().numpy()
    lent = moved(np.zeros_like(usual), 1.0, usual)
    shifted = np.empty(len(usual) + 1, dtype=usual.dtype)[1:]
    shifted[:] = usual
    fixed = usual.copy()
    fixed.flags.writeable = False
    for weights in (usual, lent, shifted, fixed, usual.astype(np.float64)):
        before = weights.copy()
        loss, gradient = lending.loss_and_array(weights, 0, 0, seed=1)
        own, expected = problem.loss_and_array(usual, 0, 0, seed=1)
        assert loss == own
        assert gradient.tobytes() == expected.tobytes()
        # What comes next has the vector of its own again, and leaves the version alone.
        end = lending.train_client(usual, 0, 0, 1, 2, 0.1)[1]
        assert torch.equal(end, problem.train_client(usual, 0, 0, 1, 2, 0.1)[1])
        assert lending.evaluate(weights) == problem.evaluate(usual)
        np.testing.assert_array_equal(weights, before)


class Sometimes(nn.Linear):
    """Changes its weights in the second batch only."""

    calls = 0

    def forward(self, x):
        self.calls += self.training
        if self.calls == 3:
            with torch.no_grad():
                self.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


def test_a_model_that_changes_weights_it_was_lent_is_refused(monkeypatch):
    monkeypatch.setattr(flat, "MANY_WEIGHTS", 1)
    monkeypatch.setattr(flat, "LENT_WEIGHTS", 1)
    x, y = torch.randn(20, 4), torch.randint(2, (20,))
    problem = Problem(Sometimes(4, 2), [(x, y)], (x, y), batch_size=8)
    weights = problem.initial_weights().numpy()
    problem.gradient(weights, 0, 0, seed=1)
    with pytest.raises(InvalidInput, match="changed its own weights in a batch, and left them"):
        problem.gradient(weights, 0, 1, seed=1)


def test_long_versions_begin_at_a_line_of_the_cache():
    weights = np.ones(LEAST_KEPT + 3, dtype=np.float32)[1:]
    for _ in range(5):
        weights = moved(weights, 0.5, weights)
        assert weights.ctypes.data % 64 == 0


def test_memory_is_used_again_once_nobody_holds_a_view_of_it():
    size = LEAST_KEPT + 6
    first, second = long_vector(size, np.float32), long_vector(size, np.float32)
    place = first.ctypes.data
    assert second.ctypes.data != place
    view = first[10:20]
    del first
    assert long_vector(size, np.float32).ctypes.data != place
    del view
    assert long_vector(size, np.float32).ctypes.data == place
    assert long_vector(size // 2, np.float64).ctypes.data % 64 == 0


def test_versions_go_into_the_memory_of_those_that_tasks_are_done_with(monkeypatch):
    """So that a run asks for memory only while its tasks in flight become more."""
    for module, name in ((flat, "MANY_WEIGHTS"), (flat, "LENT_WEIGHTS"), (arrays, "LEAST_KEPT")):
        monkeypatch.setattr(module, name, 1)
    monkeypatch.setattr(server, "is_long", lambda first, second: True)
    arrays.forget_free_vectors()
    made: list[int] = []
    memory = arrays._Memory
    monkeypatch.setattr(arrays, "_Memory", lambda *of: made.append(1) or memory(*of))
    fleet = Fleet(np.ones(20))
    network = Network(fleet, uniform_routing(fleet), 20)
    schedule = simulate(network, rounds=100, policy="never-queue", law="deterministic", seed=1)
    torch.manual_seed(5)
    x, y = torch.randn(40, 12), torch.randint(4, (40,))
    problem = Problem(nn.Linear(12, 4), [(x, y)] * 20, (x, y), batch_size=16)
    run = Replay(
        schedule, problem, AsyncSGD(), learning_rate=0.1, seed=1, evaluate_every=schedule.rounds
    )
    stack, position = Stack([run]), run.beginning(False)
    stack.run([position], until=40, batched=False)
    before = len(made)
    assert before >= 19
    stack.run([position], until=80, batched=False)
    assert len(made) == before


def test_threads_never_get_the_same_memory(monkeypatch):
    monkeypatch.setattr(arrays, "LEAST_KEPT", 1)
    size, wrong = 1000, []

    def use(number: int) -> None:
        for _ in range(2000):
            vector = long_vector(size, np.float32)
            vector[:] = number
            if not np.all(vector == number):
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_free_memory_that_is_kept_is_bounded():
    """A server of a model of 100 MB says how many times its weights it holds."""
    vectors = [long_vector(25_000_000, np.float32) for _ in range(4)]
    del vectors
    assert 0 < sum(memory.nbytes for memory in arrays._free) <= arrays.MOST_FREE_BYTES
    vectors = [long_vector(LEAST_KEPT, np.float32) for _ in range(5)]
    del vectors
    assert len(arrays._free) <= arrays.MOST_FREE


def test_a_problem_does_not_load_torchs_compiler():
    """It took seconds in every process, and left a cache in the folder of temporary files."""
    script = (
        "import sys, torch\n"
        "from sojourn.training.problem.problem import Problem\n"
        "x, y = torch.randn(8, 3), torch.zeros(8, dtype=torch.long)\n"
        "problem = Problem(torch.nn.Linear(3, 2), [(x, y)], (x, y))\n"
        "problem.loss_and_gradient(problem.initial_weights(), 0, 0, 0)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)

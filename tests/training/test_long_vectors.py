"""Large models: fewer passes over the memory, and the same bits."""

import numpy as np
import pytest
import torch
from torch import nn

from sojourn.rules.arrays import LONG_VECTOR
from sojourn.rules.server import moved
from sojourn.training.problem import batches, flat
from sojourn.training.problem.problem import Problem


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


@pytest.mark.parametrize("make", [tagger, images])
def test_collected_gradients_are_those_added_to_zeros_to_the_bit(make, monkeypatch):
    usual = make()
    monkeypatch.setattr(flat, "MANY_WEIGHTS", 1)
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


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_long_vectors_move_as_short_ones_to_the_bit(kind):
    rng = np.random.default_rng(5)
    weights, direction = (rng.standard_normal(LONG_VECTOR + 7).astype(kind) for _ in range(2))
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

"""Digits by softmax regression on whole shares: the task of the Flower tests.

Clients compute with NumPy alone, since every message starts a process; the server has the same
problem in torch. A gradient is over all of a client's samples, so runs can be computed again.
"""

import csv
import gzip
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

CLASSES, TEST = 10, 357


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images and labels, read without importing scikit-learn."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as file:
        table = np.array([[float(field) for field in row] for row in csv.reader(file)])
    table = table[np.random.default_rng(0).permutation(len(table))]
    return (table[:, :-1] / 16.0).astype(np.float32), table[:, -1].astype(np.int64)


def shares(clients: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Every client's samples; equally many each."""
    x, y = digits()
    size = (len(y) - TEST) // clients
    return [(x[TEST + i * size :][:size], y[TEST + i * size :][:size]) for i in range(clients)]


class Softmax:
    """One client's problem in NumPy; weights as torch's ``nn.Linear(64, 10)`` keeps them."""

    clients = 1

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def loss_and_gradient(
        self, weights: Any, client: int, number: int, seed: int
    ) -> tuple[float, np.ndarray]:
        matrix, bias = weights[:640].reshape(CLASSES, 64), weights[640:]
        scores = self.x @ matrix.T + bias
        scores -= scores.max(axis=1, keepdims=True)
        odds = np.exp(scores)
        odds /= odds.sum(axis=1, keepdims=True)
        rows = np.arange(len(self.y))
        loss = float(-np.log(odds[rows, self.y]).mean())
        odds[rows, self.y] -= 1.0
        odds /= len(self.y)
        return loss, np.concatenate([(odds.T @ self.x).ravel(), odds.sum(axis=0)])

    def initial_weights(self) -> np.ndarray:
        return np.zeros(CLASSES * 65, dtype=np.float32)


def problem(clients: int, seed: int, client: int | None = None) -> Any:
    if client is not None:
        return Softmax(*shares(clients)[client])
    import torch

    from sojourn.training import Problem

    x, y = (torch.from_numpy(array[:TEST]) for array in digits())
    sets = [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in shares(clients)]
    model = torch.nn.Linear(64, CLASSES)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return Problem(model, sets, (x, y), batch_size=len(sets[0][1]))

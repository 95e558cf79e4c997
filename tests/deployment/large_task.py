"""What is learned: a hundred megabytes of weights, whose gradient takes no time."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

WIDTH = 5000
MEMORY = "memory-file"
"""The setting that says where the server writes what it holds before it has any weights."""
LATER = ("sojourn.runs.summary", "sojourn.simulation.simulate", "sojourn.training.replay.replay")
"""What a server imports during a run."""


class Large:
    """Its gradient is made once and sent again and again: what is measured is the server's memory."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        generator = np.random.default_rng(0)
        self.gradient = generator.normal(scale=0.01, size=WIDTH * WIDTH).astype(np.float32)

    def initial_weights(self) -> np.ndarray:
        return np.zeros(WIDTH * WIDTH, dtype=np.float32)

    def loss_and_gradient(
        self, weights: np.ndarray, client: int, number: int, seed: int, /
    ) -> tuple[float, np.ndarray]:
        return float(weights[0]), self.gradient

    def loss_and_difference(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    def evaluate(self, weights: np.ndarray, /) -> tuple[float, float]:
        """The outputs for one input, as plain PyTorch computes them with the exported file."""
        return output(torch.from_numpy(weights.reshape(WIDTH, WIDTH))), float("nan")

    def state_arrays(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        return {"weight": weights.reshape(WIDTH, WIDTH)}


def model() -> torch.nn.Module:
    """A layer of 25 million weights, 100 MB in single precision."""
    return torch.nn.Linear(WIDTH, WIDTH, bias=False)


def output(weight: torch.Tensor) -> float:
    return float((weight @ torch.ones(WIDTH)).sum())


def held(process: int | str, what: str) -> int:
    """Bytes that a process holds (``VmRSS``), or held at most (``VmHWM``)."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def problem(
    clients: int, seed: int, client: int | None = None, config: dict[str, Any] | None = None
) -> Large:
    made = Large(clients)
    if client is None and (config or {}).get(MEMORY):
        for name in LATER:
            importlib.import_module(name)
        Path(str((config or {})[MEMORY])).write_text(str(held("self", "VmRSS")))
    return made

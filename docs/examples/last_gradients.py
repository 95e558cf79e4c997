"""A rule: step along the mean of the last gradient of every client."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sojourn.rules import ServerState


@dataclass(frozen=True)
class LastGradients:
    """``keep`` is what remains of a remembered gradient when another client's arrives."""

    keep: float = 1.0
    name: ClassVar[str] = "last-gradients"
    sends: ClassVar[str] = "gradient"
    policy: ClassVar[str] = "routed"
    local_steps: ClassVar[int] = 1
    local_learning_rate: ClassVar[None] = None
    proximal: ClassVar[float] = 0.0

    def begin(self, weights, clients):
        return ServerState(weights, 0, {"table": np.zeros((clients, weights.size), weights.dtype)})

    def apply(self, state, arrival, *, learning_rate, clients, concurrency):
        table = state.arrays["table"]
        table *= table.dtype.type(self.keep)
        table[arrival.client] = arrival.update
        return state.updated(
            state.weights - state.weights.dtype.type(learning_rate) * table.mean(0)
        ), True

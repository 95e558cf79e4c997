"""A rule: step along the mean of the last gradient of every client."""

from dataclasses import dataclass

import numpy as np

from sojourn.rules import ServerState


@dataclass(frozen=True)
class LastGradients:
    """``decay`` multiplies the stored gradients whenever a new one arrives."""

    decay: float = 1.0
    name, sends, policy = "last-gradients", "gradient", "routed"
    local_steps, local_learning_rate, proximal = 1, None, 0.0

    def begin(self, weights, clients):
        table = np.zeros((clients, weights.size), weights.dtype)
        return ServerState(weights, arrays={"table": table})

    def apply(self, state, arrival, *, learning_rate, clients, concurrency):
        table, number = state.arrays["table"], state.weights.dtype.type
        table *= number(self.decay)
        table[arrival.client] = arrival.update
        return state.updated(state.weights - number(learning_rate) * table.mean(0)), True

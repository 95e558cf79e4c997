"""SCAFFOLD: clients step along g - c_i + c; client i has c_i, and the server c, their mean."""

from dataclasses import dataclass

import numpy as np

from sojourn.rules import ServerState


@dataclass(frozen=True)
class Scaffold:
    local_steps: int = 5
    name, sends, policy = "scaffold", "difference", "never-queue"
    local_learning_rate, proximal = None, 0.0

    def begin(self, weights, clients):
        return ServerState(weights, arrays={"c": np.zeros_like(weights)})

    def sent(self, state):
        return np.concatenate([state.weights, state.arrays["c"]])

    def client_shift(self, sent, own):
        return sent[sent.size // 2 :] - own.get("c", 0.0)

    def client_state(self, sent, own, difference, steps, rate):
        return {"c": -self.client_shift(sent, own) - difference / (steps * rate)}

    def apply(self, state, arrival, *, learning_rate, clients, concurrency):
        slope = arrival.update / (arrival.steps * learning_rate)
        state.arrays["c"][:] -= (arrival.sent[slope.size :] + slope) / clients
        return state.updated(state.weights + arrival.update / clients), True

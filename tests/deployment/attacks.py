"""Hostile clients for the dispatcher on a virtual clock: what they send, and how fast.

An attack is given the honest update of its task and says what is sent instead.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.guard import Guard
from sojourn.deployment.tasks import Task
from sojourn.rules import GeneralizedAsyncSGD, Rule
from tests.deployment.virtual_clock import TICK_SECONDS, VirtualClients

CLIENTS = 10
Send = Callable[[np.ndarray, int, float], object]
"""From the honest update, how many the client has sent, and the usual norm, to what is sent."""


@dataclass(frozen=True)
class Attack:
    send: Send
    seconds: float = 1.0


def _unit(vector: np.ndarray) -> np.ndarray:
    norm = float(np.linalg.norm(vector))
    return vector / norm if norm > 0 else vector


def _constant(honest: np.ndarray, norm: float) -> np.ndarray:
    """Always the same direction, of the honest one's type."""
    return np.full_like(honest, norm / np.sqrt(honest.size))


def _noise(honest: np.ndarray, count: int, norm: float) -> np.ndarray:
    random = np.random.default_rng(count)
    return (100.0 * norm * _unit(random.normal(size=honest.size))).astype(honest.dtype)


def _late_blow(honest: np.ndarray, count: int, norm: float) -> np.ndarray:
    return honest if count < 20 else -50.0 * honest


ATTACKS = {
    "just below the bound": Attack(lambda honest, count, norm: _constant(honest, 1.49 * norm)),
    "slow start": Attack(_late_blow),
    "sign flip": Attack(lambda honest, count, norm: honest * honest.dtype.type(-29.0)),
    "scaled noise": Attack(_noise),
    "free rider": Attack(lambda honest, count, norm: np.zeros_like(honest), seconds=1e-3),
    "fast liar": Attack(lambda honest, count, norm: -honest, seconds=1e-3),
    "slow liar": Attack(lambda honest, count, norm: -honest, seconds=8.0),
    "colluding": Attack(lambda honest, count, norm: _constant(honest, 100.0 * norm)),
    "broken object": Attack(lambda honest, count, norm: "it is not an array that can be read"),
    "unfolds": Attack(lambda honest, count, norm: np.ones(10 * honest.size, dtype=honest.dtype)),
}
"""The last two are what is left of them once the transport has read them: see test_unreadable."""


def run(
    gradient: Callable[[np.ndarray, Task], np.ndarray],
    weights: np.ndarray,
    *,
    attack: Attack | None,
    hostile: int,
    updates: int,
    learning_rate: float,
    policy: str = "routed",
    guard: Guard | None = None,
    rule: Rule | None = None,
    clients: int = CLIENTS,
    planned: bool = False,
    seed: int = 0,
    **options: object,
) -> VirtualClients:
    """A run of ``clients`` clients of which the first ``hostile`` attack.

    Without an attack the hostile clients are not there at all: what is left is the run to compare
    with.
    """
    server = Dispatcher(
        weights,
        rule=GeneralizedAsyncSGD() if rule is None else rule,
        routing=np.full(clients, 1.0 / clients),
        concurrency=clients,
        learning_rate=learning_rate,
        policy=policy,
        service_rates=np.ones(clients) if planned else None,
        guard=guard,
        seed=seed,
        **options,  # type: ignore[arg-type]
    )
    sent = [0] * clients
    usual = [1.0]

    def update(task: Task) -> object:
        honest = gradient(world.carried[task.number], task)
        if attack is None or task.client >= hostile:
            usual[0] += 0.05 * (float(np.linalg.norm(honest)) - usual[0])
            return honest
        sent[task.client] += 1
        return attack.send(honest, sent[task.client], usual[0])

    seconds = [1.0] * clients
    for client in range(hostile if attack is not None else 0):
        seconds[client] = attack.seconds if attack is not None else 1.0
    world = VirtualClients(server, seconds, seed=seed, ticks=TICK_SECONDS, update=update)  # type: ignore[arg-type]
    for client in range(clients):
        if attack is not None or client >= hostile:
            world.take(server.joined(client, now=0.0))
    world.take(server.start(now=0.0))
    while server.counts.used < updates:
        world.step()
    return world

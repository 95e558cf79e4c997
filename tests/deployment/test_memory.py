"""A server keeps nothing of a task that is over, and no memory for the next one of a large model."""

import gc
import tracemalloc
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sojourn.deployment import Dispatcher, Task
from sojourn.deployment.inprocess import InProcessTransport
from sojourn.deployment.run import serve
from sojourn.deployment.server import LARGE_BYTES
from sojourn.deployment.settings import read_settings
from sojourn.rules import GeneralizedAsyncSGD, arrays
from tests.deployment.test_inprocess import Quadratic

CLIENTS = 20
POINTER = 8
"""Bytes that the least of what could be kept of a task takes."""


@pytest.mark.slow
def test_memory_does_not_grow_with_completions() -> None:
    server = Dispatcher(
        np.zeros(10),
        rule=GeneralizedAsyncSGD(),
        routing=np.full(CLIENTS, 1 / CLIENTS),
        concurrency=CLIENTS,
        learning_rate=1e-3,
        seed=1,
    )
    waiting: deque[Task] = deque()
    for client in range(CLIENTS):
        waiting.extend(server.joined(client, now=0.0).send)
    waiting.extend(server.start(now=0.0).send)
    now, update = 0.0, np.full(10, 0.1)

    def complete(tasks: int) -> int:
        """Bytes in use after that many completions more."""
        nonlocal now
        for _ in range(tasks):
            now += 1e-4
            while not waiting:
                now += 0.1
                waiting.extend(server.tick(now).send)
            task = waiting.popleft()
            done = server.completed(task.number, update, now=now, client=task.client)
            waiting.extend(done.send)
        server.tick(now)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        settled = complete(9000)
        grown = complete(2000) - settled
    finally:
        tracemalloc.stop()
    assert server.counts.completed == 11_000
    assert grown < 2000 * POINTER / 2, "what is remembered of clients may still fill up"


class Wide(Quadratic):
    """Of as many weights as a large model has."""

    def initial_weights(self) -> np.ndarray:
        return np.zeros(LARGE_BYTES // 4 + 1, dtype=np.float32)

    def loss_and_gradient(self, weights: np.ndarray, *arguments: Any) -> tuple[float, np.ndarray]:
        return 0.0, weights - np.float32(1.0)


class Watched(InProcessTransport):
    """Notes how much memory it is given, and how much is kept for later, whenever it is asked."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.given, self.kept = [0], [0]

    def receive(self, waiting: Any, like: Any) -> Any:
        assert (like.nbytes, like.dtype) == (LARGE_BYTES + 4, np.float32)
        self.given.append(like.base.nbytes)
        self.kept.append(sum(memory.nbytes for memory in arrays._free))
        yield from super().receive(waiting, like)


def test_while_a_reply_is_received_no_version_is_held_that_no_task_needs(tmp_path: Path) -> None:
    def problem(clients: int, seed: int) -> Wide:
        return Wide(clients)

    thresholds = gc.get_threshold()
    config = {"clients": 2, "updates": 6, "concurrency": 3, "predict": False}
    settings = read_settings({**config, "run-folder": str(tmp_path / "run")}, tmp_path)
    with Watched(problem, [lambda: 0.05] * 2) as transport:
        assert serve(transport, problem, settings)
    assert max(transport.given) <= 8, "not the model itself"
    assert max(transport.kept) == 0, "of versions that are over"
    said = (tmp_path / "run" / "events.log").read_text()
    assert "the model has 10 MB: the server holds up to 70 MB of weights" in said
    assert gc.get_threshold() == thresholds

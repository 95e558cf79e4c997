"""The dispatcher keeps nothing of a task that is over."""

import tracemalloc
from collections import deque

import numpy as np
import pytest

from sojourn.deployment import Dispatcher, Task
from sojourn.rules import GeneralizedAsyncSGD

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

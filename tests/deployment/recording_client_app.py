"""A client app that records its process whenever data are loaded, and fails when it is told to."""

import os
from pathlib import Path
from typing import Any

from federated import task

from sojourn.deployment import client_app


class Failing:
    """A problem whose gradients raise while the file ``broken`` is there."""

    clients = 1

    def __init__(self, inner: Any, broken: Path) -> None:
        self.inner, self.broken = inner, broken

    def loss_and_gradient(self, weights: Any, client: int, number: int, seed: int) -> Any:
        if self.broken.exists():
            raise ZeroDivisionError("told to")
        return self.inner.loss_and_gradient(weights, client, number, seed)


def problem(clients: int, seed: int, client: int, config: dict[str, Any]) -> Any:
    record = Path(config["record"])
    with record.open("a") as file:
        file.write(f"{os.getpid()}\n")
    return Failing(task.problem(clients, seed, client), record.with_name("broken"))


app = client_app(problem)

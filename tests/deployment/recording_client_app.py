"""A client app that records its process whenever data are loaded, and fails or pauses when told to."""

import os
import time
from pathlib import Path
from typing import Any

from federated import task

from sojourn.deployment import client_app


class Failing:
    """A problem whose gradients raise while the file ``broken`` is there, and wait while ``pause`` is."""

    clients = 1

    def __init__(self, inner: Any, folder: Path) -> None:
        self.inner, self.folder = inner, folder

    def loss_and_gradient(self, weights: Any, client: int, number: int, seed: int) -> Any:
        while (self.folder / "pause").exists():
            (self.folder / "paused").touch()
            time.sleep(0.05)
        if (self.folder / "broken").exists():
            raise ZeroDivisionError("told to")
        return self.inner.loss_and_gradient(weights, client, number, seed)


def problem(clients: int, seed: int, client: int, config: dict[str, Any]) -> Any:
    record = Path(config["record"])
    with record.open("a") as file:
        file.write(f"{os.getpid()}\n")
    return Failing(task.problem(clients, seed, client), record.parent)


app = client_app(problem)

"""A server of the explorer in this process, and a way to ask it as its page does."""

import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sojourn.fleet import built_in_fleet
from sojourn.live.explorer import Explorer
from sojourn.live.server import TOKEN_HEADER, LocalServer
from tests.browser import browser
from tests.tuning.test_tune import write_inputs

__all__ = ["browser"]

Ask = Callable[..., tuple[int, Any]]


def asking(address: str, token: str | None) -> Ask:
    """``ask(name, values)`` gives status and JSON of the answer; ``headers`` replace the usual ones."""
    root = address.split("?")[0]

    def ask(name: str, values: Any = None, **headers: str) -> tuple[int, Any]:
        body = values if isinstance(values, bytes) else json.dumps(values or {}).encode()
        sent = {} if token is None else {TOKEN_HEADER: token}
        request = urllib.request.Request(
            f"{root}api/{name}", data=body, headers={**sent, **headers}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    return ask


@pytest.fixture(scope="module")
def explorer() -> Iterator[Explorer]:
    made = Explorer(built_in_fleet("three-clusters"), "three-clusters")
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(explorer: Explorer) -> Iterator[LocalServer]:
    made = explorer.serve_on()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture(scope="module")
def ask(server: LocalServer) -> Ask:
    return asking(server.address, server.token)


def write_race(folder: Path) -> Path:
    """An experiment of two strategies at two learning rates, small enough to be raced in a test."""
    write_inputs(folder)
    sys.modules.pop("blobs", None)
    return folder / "own.toml"

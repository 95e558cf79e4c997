"""How a deployment stands: ``status.json``, written by its server and read by whoever watches."""

import json
import math
import time
from pathlib import Path
from typing import TypedDict, cast

from sojourn._support.files import write_text
from sojourn._support.numbers import finite
from sojourn.runs.folder import RunFolder

ENDED = ("finished", "failed", "stopped")
NOT_RUNNING_SECONDS = 30.0
"""A server that runs writes its heartbeat every five seconds."""


class ClientStatus(TypedDict):
    """One client: tasks ``waiting`` at it, its measured ``rate`` and the ``planned`` one.

    What is not known is ``None``. ``speed`` is its rate in units of the largest plausible one.
    """

    name: str
    number: int
    status: str
    waiting: int
    running: float
    used: int
    refused: int
    routing: float
    rate: float | None
    planned: float | None
    seconds: float | None
    norm: float | None
    agreement: float | None
    speed: float | None


class RunStatus(TypedDict, total=False):
    """The keys of ``status.json``; before its clients join a run says little more than its phase.

    ``throughput`` and ``staleness`` are those of the last updates, ``heartbeat`` is in Unix time.
    ``sessions`` are when a server began to run it: seconds of the run, and Unix time.
    """

    phase: str
    last_phase: str
    error: str
    heartbeat: float
    elapsed: float
    sessions: list[tuple[float, float]]
    updates: int
    of: int
    throughput: float
    staleness: float | None
    accuracy: float | None
    loss: float | None
    metrics: dict[str, float | None]
    epsilon: float | None
    counts: dict[str, int]
    held: int
    concurrency: int
    policy: str
    clients: list[ClientStatus]
    ended: list[str]


def write_status(folder: Path, status: RunStatus) -> RunStatus:
    """Write ``status.json``, with the present time as its heartbeat; what was written.

    What is not finite is ``None`` there.
    """
    written = cast("RunStatus", finite({**status, "heartbeat": round(time.time(), 3)}))
    write_text(RunFolder(folder).status_path, json.dumps(written))
    return written


def read_status(folder: Path) -> RunStatus | None:
    """How a run stands, if it has said so yet; ``not running`` if its server has died."""
    try:
        status: RunStatus = json.loads(RunFolder(folder).status_path.read_text("utf-8"))
    except (OSError, json.JSONDecodeError):
        return None
    silent = time.time() - float(status.get("heartbeat") or math.inf)
    if status["phase"] not in ENDED and silent > NOT_RUNNING_SECONDS:
        status |= {"phase": "not running", "last_phase": status["phase"]}
    return status

"""The whole state of a dispatcher in one file, written atomically and read without pickle.

The file is a NumPy archive: the weights of the model and of every version that a task in flight
carries, whatever arrays the rule keeps, and one entry ``meta`` of JSON with everything else.
"""

import dataclasses
import json
import os
import zipfile
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.deploy.dispatcher import Dispatcher
from sojourn.deploy.rates import RateEstimate
from sojourn.deploy.tasks import Counts, Task
from sojourn.dispatch import policy_to_table
from sojourn.errors import InvalidFile
from sojourn.files import replacing
from sojourn.rules import ServerState, rule_to_table

FORMAT = 5
_ARRAY, _SCREEN, _AGREE = "array-", "screen-", "agreement-"
_TASK_FIELDS = tuple(Task.__dataclass_fields__)


def write_checkpoint(
    path: str | os.PathLike[str], dispatcher: Dispatcher, extra: dict[str, Any] | None = None
) -> None:
    """Write the state of ``dispatcher``, and ``extra`` (JSON values) beside it."""
    state = dispatcher.state
    arrays: dict[str, NDArray[Any]] = {
        "weights": state.weights,
        "routing": dispatcher.router.routing,
    }
    arrays |= {_SCREEN + name: array for name, array in dispatcher.screen.record().items()}
    arrays |= {_AGREE + name: array for name, array in dispatcher.agreement.record().items()}
    arrays |= {_ARRAY + name: array for name, array in state.arrays.items()}
    for version in dispatcher.versions.uses():
        arrays[f"version-{version}"] = dispatcher.versions[version]
    meta = {
        "format": FORMAT,
        "version": state.version,
        "numbers": dict(state.numbers),
        "held": dispatcher.held,
        "planned_at": dispatcher.replanning.planned_at,
        "counts": dispatcher.counts.to_dict(),
        "concurrency": dispatcher.concurrency,
        "rule": rule_to_table(dispatcher.rule),
        "policy": policy_to_table(dispatcher.router.policy),
        "deadlines": dispatcher.deadlines.to_dict(),
        "random": dispatcher.random.bit_generator.state,
        "router": dispatcher.router.record(),
        "clients": [_client_meta(dispatcher, number) for number in range(len(dispatcher.clients))],
        "extra": extra or {},
    }
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def restore_checkpoint(path: str | os.PathLike[str], dispatcher: Dispatcher) -> dict[str, Any]:
    """Put a new ``dispatcher``, made with the same settings, into the state of the file.

    Every client is away. Tasks that were out go back to the head of their client's queue, to be
    sent again, with the same weights, when it joins; say ``left`` of a client that does not. What
    `write_checkpoint` was given as ``extra`` is returned.
    """
    arrays, meta = _read(Path(path))
    weights = arrays["weights"]
    fits = weights.shape == dispatcher.state.weights.shape
    if not fits or len(meta["clients"]) != len(dispatcher.clients):
        raise InvalidFile(
            f"{path}: a checkpoint of {weights.size} weights and {len(meta['clients'])} clients; "
            f"this run has {dispatcher.state.weights.size} and {len(dispatcher.clients)}. "
            "Resume with the model and the clients that the run was started with."
        )
    was = meta["concurrency"], meta["rule"], meta["policy"]
    policy = policy_to_table(dispatcher.router.policy)
    now = dispatcher.concurrency, rule_to_table(dispatcher.rule), policy
    if was != now:
        raise InvalidFile(
            f"{path}: a checkpoint of a run with concurrency {was[0]}, the rule {was[1]} and the "
            f"policy {was[2]}; this run has {now[0]}, {now[1]} and {now[2]}. Resume with the settings "
            "that it was started with."
        )
    dispatcher.state = ServerState(
        weights, meta["version"], _named(arrays, _ARRAY), meta["numbers"]
    )
    dispatcher.router.routing = arrays["routing"]
    dispatcher.router.restore(meta["router"])
    dispatcher.screen.restore(_named(arrays, _SCREEN))
    dispatcher.agreement.restore(_named(arrays, _AGREE))
    dispatcher.deadlines = dataclasses.replace(dispatcher.deadlines, **meta["deadlines"])
    dispatcher.counts = Counts(**meta["counts"])
    dispatcher.held = meta["held"]
    dispatcher.replanning.planned_at = meta["planned_at"]
    dispatcher.random.bit_generator.state = meta["random"]
    for client, values in zip(dispatcher.clients, meta["clients"], strict=True):
        client.estimate = RateEstimate.from_dict(values["estimate"])
        client.ordinal, client.used, client.refused = (
            values["ordinal"],
            values["used"],
            values["refused"],
        )
        client.status = "quarantined" if values["quarantined"] else "away"
        client.queue = deque(Task(*fields) for fields in values["tasks"])
        for task in client.queue:
            dispatcher.tasks[task.number] = task
            dispatcher.versions.retain(task.version, arrays[f"version-{task.version}"])
    extra: dict[str, Any] = meta["extra"]
    return extra


def _client_meta(dispatcher: Dispatcher, number: int) -> dict[str, Any]:
    client = dispatcher.clients[number]
    sent = [dispatcher.tasks[n] for n in client.out if n in dispatcher.tasks]
    return {
        "estimate": client.estimate.to_dict(),
        "ordinal": client.ordinal,
        "used": client.used,
        "refused": client.refused,
        "quarantined": client.status == "quarantined",
        "tasks": [
            [getattr(task, name) for name in _TASK_FIELDS] for task in [*sent, *client.queue]
        ],
    }


def _named(arrays: dict[str, NDArray[Any]], start: str) -> dict[str, NDArray[Any]]:
    return {k.removeprefix(start): a for k, a in arrays.items() if k.startswith(start)}


def _read(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(arrays.pop("meta").tobytes())
    except FileNotFoundError as error:
        raise InvalidFile(f"{path}: there is no checkpoint to resume from") from error
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InvalidFile(f"{path}: not a checkpoint of a deployment ({error})") from error
    if meta.get("format") != FORMAT:
        raise InvalidFile(f"{path}: a checkpoint of another version of Sojourn; start afresh")
    return arrays, meta

"""The whole state of a dispatcher in one file, written atomically and read without pickle.

The file is a NumPy archive: the weights of the model and of every version that a task in flight
carries, whatever arrays the rule keeps, and one entry ``meta`` of JSON with everything else.
"""

import dataclasses
import json
import os
from collections import deque
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn._support.arrays import read_arrays
from sojourn._support.files import replacing
from sojourn._support.ledger import digest_of_arrays
from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.guard.guard import named
from sojourn.deployment.guard.screens import Arrays
from sojourn.deployment.speeds import RateEstimate
from sojourn.deployment.tasks import Counts, Task
from sojourn.dispatch import policy_to_table
from sojourn.errors import InvalidFile
from sojourn.rules import ServerState, rule_to_table

FORMAT = 7
_ARRAY, _DIGEST = "array-", "digest"
_TASK_FIELDS = tuple(Task.__dataclass_fields__)
_CLIENT_COUNTS = ("ordinal", "used", "refused", "answers", "gradients")

Json: TypeAlias = dict[str, Any]
"""A decoded JSON object, whose values are checked where they are used."""


def write_checkpoint(
    path: str | os.PathLike[str],
    dispatcher: Dispatcher,
    extra: Json | None = None,
    extra_arrays: Arrays | None = None,
) -> None:
    """Write the state of ``dispatcher``, and ``extra`` (JSON values) and arrays beside it."""
    state = dispatcher.state
    arrays: dict[str, NDArray[np.generic]] = {
        "weights": state.weights,
        "routing": dispatcher.router.routing,
    }
    arrays |= dispatcher.guard.record()
    arrays |= extra_arrays or {}
    arrays |= {_ARRAY + name: array for name, array in state.arrays.items()}
    for version in dispatcher.versions.uses():
        arrays[f"version-{version}"] = dispatcher.versions[version]
    meta = {
        "format": FORMAT,
        "version": state.version,
        "numbers": dict(state.numbers),
        "held": dispatcher.held,
        "planned_at": dispatcher.planned_at,
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
    arrays[_DIGEST] = digest_of_arrays(arrays)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def restore_checkpoint(path: str | os.PathLike[str], dispatcher: Dispatcher) -> Json:
    """Put a new ``dispatcher``, made with the same settings, into the state of the file.

    Every client is away. Tasks that were out go back to the head of their client's queue, to be
    sent again, with the same weights, when it joins; say ``left`` of a client that does not. What
    `write_checkpoint` was given as ``extra`` is returned.
    """
    arrays, meta = read_checkpoint(Path(path))
    try:
        return _restore(path, arrays, meta, dispatcher)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        if isinstance(error, InvalidFile):
            raise
        raise InvalidFile(
            f"{path}: damaged, or edited by hand ({type(error).__name__}: {error}). Resume from a copy, "
            "or start afresh in another folder."
        ) from error


def _restore(
    path: str | os.PathLike[str],
    arrays: dict[str, NDArray[Any]],
    meta: Json,
    dispatcher: Dispatcher,
) -> Json:
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
    dispatcher.state = ServerState(weights, meta["version"], named(arrays, _ARRAY), meta["numbers"])
    dispatcher.router.routing = arrays["routing"]
    dispatcher.router.restore(meta["router"])
    dispatcher.guard.restore(arrays)
    dispatcher.deadlines = dataclasses.replace(dispatcher.deadlines, **meta["deadlines"])
    dispatcher.counts = Counts(**meta["counts"])
    dispatcher.held = meta["held"]
    dispatcher.planned_at = meta["planned_at"]
    dispatcher.random.bit_generator.state = meta["random"]
    for client, values in zip(dispatcher.clients, meta["clients"], strict=True):
        client.estimate = RateEstimate.from_dict(values["estimate"])
        for name in _CLIENT_COUNTS:
            setattr(client, name, values.get(name, 0))
        if "device" in values:
            client.name, client.vacant = values["device"], False
        client.status = "quarantined" if values["quarantined"] else "away"
        client.queue = deque(Task(*fields) for fields in values["tasks"])
        for task in client.queue:
            dispatcher.tasks[task.number] = task
            dispatcher.versions.retain(task.version, arrays[f"version-{task.version}"])
    extra: Json = meta["extra"]
    return extra


def _client_meta(dispatcher: Dispatcher, number: int) -> Json:
    client = dispatcher.clients[number]
    sent = [dispatcher.tasks[n] for n in client.out if n in dispatcher.tasks]
    return {
        "estimate": dataclasses.asdict(client.estimate),
        **{name: getattr(client, name) for name in _CLIENT_COUNTS},
        **({} if client.listed or client.vacant else {"device": client.name}),
        "quarantined": client.status == "quarantined",
        "tasks": [
            [getattr(task, name) for name in _TASK_FIELDS] for task in [*sent, *client.queue]
        ],
    }


def read_checkpoint(path: Path) -> tuple[dict[str, NDArray[Any]], Json]:
    """The arrays of a checkpoint, and what it says beside them."""
    try:
        arrays = read_arrays(path)
        digest = arrays.pop(_DIGEST, None)
        whole = digest is not None and np.array_equal(digest, digest_of_arrays(arrays))
        meta = json.loads(arrays.pop("meta").tobytes())
    except FileNotFoundError as error:
        raise InvalidFile(f"{path}: there is no checkpoint to resume from") from error
    except InvalidFile:
        raise
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise InvalidFile(f"{path}: not a checkpoint of a deployment ({error})") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise InvalidFile(f"{path}: a checkpoint of another version of Sojourn; start afresh")
    if not whole:
        raise InvalidFile(
            f"{path}: damaged, or edited by hand: it does not have the digest that it was written "
            "with. Resume from a copy, or start afresh in another folder."
        )
    for name, array in arrays.items():
        of_model = name in ("weights", "routing") or name.startswith(("version-", _ARRAY))
        if of_model and not (array.dtype.kind in "fiub" and np.isfinite(array).all()):
            raise InvalidFile(
                f"{path}: '{name}' holds values that are not finite: the checkpoint is damaged"
            )
    return arrays, meta

"""A client app whose node attacks as a file says: ``--node-config 'attack-file="..."'``.

The file holds the name of an attack, so that nodes which stay alive attack each run in another way.
"""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from federated.task import problem
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from sojourn.deployment import client_app

CHUNK_BYTES, TIMES = 2**20, 300

honest = client_app(problem)
app = ClientApp()


class _Broken(Array):
    """Names a part of itself that it does not have, so that nobody can put it together."""

    def deflate(self) -> bytes:
        head, _, body = super().deflate().partition(b"\x00")
        named = {**json.loads(body), "arraychunk_ids": [7]}
        changed = json.dumps(named).encode()
        kind, parts, _ = head.split(b" ")
        return b" ".join([kind, parts, str(len(changed)).encode()]) + b"\x00" + changed


_Broken.__qualname__ = Array.__qualname__  # the type that the object says it has


def _unfolding() -> Array:
    """A megabyte that is sent once and listed three hundred times."""
    array = Array(np.zeros(CHUNK_BYTES, dtype=np.uint8))
    first, *_ = array.slice_array()
    array.__dict__["_chunks"] = [first] * TIMES
    return array


def _reply(message: Message, array: Array) -> Message:
    number = message.content["task"]["number"]
    record = ArrayRecord()
    record["update"] = array  # given in a dictionary it would be copied, and mended on the way
    content = {
        "update": record,
        "task": ConfigRecord({"number": number, "loss": 0.0}),
    }
    return Message(RecordDict(content), reply_to=message)


def _flipped(message: Message, context: Context) -> Message:
    reply = honest(message, context)
    inline: Any = reply.content["task"]["update"]  # a small update travels with what is said of it
    return _reply(message, Array(-29 * np.load(BytesIO(inline))))


@app.query()
def query(message: Message, context: Context) -> Message:
    return honest(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    place = context.node_config.get("attack-file")
    attack = Path(str(place)).read_text() if place else "none"
    if attack == "sign flip":
        return _flipped(message, context)
    if attack == "free rider":
        return _reply(message, Array(np.zeros(650, dtype=np.float32)))
    if attack == "broken object":
        return _reply(message, _Broken(np.ones(650, dtype=np.float32)))
    if attack == "unfolds":
        return _reply(message, _unfolding())
    return honest(message, context)

"""Tasks and updates as Flower messages carry them."""

import math
import secrets
from collections.abc import Mapping
from io import BytesIO
from typing import Any, TypeAlias, cast

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    ConfigRecordValues,
    Message,
    MessageType,
    RecordDict,
)
from numpy.typing import NDArray

from sojourn.deployment.client import Computed
from sojourn.deployment.settings import DEVICE, PARTITION
from sojourn.deployment.transport import (
    Answer,
    Failure,
    Identity,
    Outgoing,
    Question,
    Request,
    Wire,
    from_bfloat16,
    to_bfloat16,
)
from sojourn.errors import InvalidInput
from sojourn.types import Vector
from sojourn.version import __version__

TASK, WEIGHTS, UPDATE, CLIENT, VERSION = "task", "weights", "update", "client", "version"
UNIQUE = "unique"
"""Makes the content of every message its own: Flower's node keeps equal parts once, and may drop those of
one message with another."""
STATE = "sojourn"
"""What stays with a client between tasks, in the state that Flower keeps for its node."""
LONGEST_VERSION, LONGEST_NAME = 50, 500
MOST_STEPS = 10**6
Numbers: TypeAlias = NDArray[np.floating] | NDArray[np.uint16]
"""An array as it travels."""
NODE_UNAVAILABLE = 5
"""Flower's error code for a node that is gone."""
READ_HEADER = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
HEADER_BYTES = 4096
"""What NumPy writes before the numbers takes less."""
INLINE_BYTES = 2**20
"""Up to here the numbers travel in the same record as what is said of them. Flower carries each record,
array and piece of an array by itself, in requests that cost the SuperLink some 20 ms of processor."""
PART_BYTES = 2**24
"""A longer vector travels as arrays of so many bytes. Flower holds three copies of an array that it unfolds."""


def to_flower(asked: Outgoing) -> Message:
    """A task or a question as a Flower message."""
    if isinstance(asked, Question):
        question = RecordDict({CLIENT: ConfigRecord({UNIQUE: secrets.token_hex(8)})})
        return Message(question, asked.node, MessageType.QUERY, ttl=asked.seconds)
    fields = {name: getattr(asked.request, name) for name in Request.__slots__}
    fields[UNIQUE] = secrets.token_hex(8)
    content = _content(fields, WEIGHTS, asked.weights, asked.request.wire)
    group = str(asked.request.number)
    return Message(content, asked.node, MessageType.TRAIN, ttl=asked.seconds, group_id=group)


def read_request(message: Message) -> tuple[Request, Vector]:
    """The task that `to_flower` put in, and its weights."""
    record: Any = message.content[TASK]
    request = Request(**{name: record[name] for name in Request.__slots__})
    weights = _joined(_parts(message, WEIGHTS))
    return request, weights if weights.flags.writeable else weights.copy()


def update_reply(message: Message, request: Request, found: Computed, seconds: float) -> Message:
    """The answer to a task that was worked on for ``seconds``."""
    fields: dict[str, ConfigRecordValues] = {
        "number": request.number,
        "loss": found.loss,
        "steps": found.steps,
        "seconds": seconds,
    }
    content = _content(fields, UPDATE, found.update, request.wire)
    return Message(content, reply_to=message)


def read_state(state: RecordDict) -> dict[str, NDArray[Any]]:
    """What stayed with a client after its task before."""
    if STATE not in state.array_records:
        return {}
    return {name: array.numpy() for name, array in state.array_records[STATE].items()}


def write_state(state: RecordDict, own: Mapping[str, NDArray[Any]]) -> None:
    """Leave with a client what its next task needs."""
    if own:
        state[STATE] = ArrayRecord({name: Array(np.asarray(array)) for name, array in own.items()})


def who_reply(message: Message, client: int | str) -> Message:
    """The answer to a `Question`."""
    identity = ConfigRecord({CLIENT: client, VERSION: __version__})
    return Message(RecordDict({CLIENT: identity}), reply_to=message)


def from_flower(reply: Message, name: str, weights: Vector) -> Answer | Identity | Failure:
    """What a node answered to the message ``name``; nothing about it is trusted.

    An update is looked at only if it has as many bytes as ``weights`` and says that it holds as many
    numbers, so that reading it takes no more memory than they do. What Flower itself unfolds before
    is beyond this function's reach.
    """
    node = reply.metadata.src_node_id
    if reply.has_error():
        code, text = reply.error.code, (reply.error.reason or "").strip()[:200]
        return Failure(name, node, f"Flower's error {code}: {text}", code == NODE_UNAVAILABLE)
    if reply.metadata.message_type == MessageType.QUERY:
        client = _config(reply, CLIENT, CLIENT)
        said = client if isinstance(client, int | str) and not isinstance(client, bool) else None
        said = said if len(str(said)) < LONGEST_NAME else None
        version = _config(reply, CLIENT, VERSION)
        known = version if isinstance(version, str) and len(version) < LONGEST_VERSION else None
        return Identity(name, node, said, known)
    number, steps = _config(reply, TASK, "number"), _config(reply, TASK, "steps")
    claimed = number if isinstance(number, int) and not isinstance(number, bool) else None
    taken = steps if isinstance(steps, int) and 0 < steps <= MOST_STEPS else None
    update = _update(reply, weights)
    if claimed is None and not isinstance(update, str):
        update = "it does not name the task that it answers"
    loss, seconds = _finite(reply, "loss"), _finite(reply, "seconds")
    return Answer(name, node, update, claimed, loss, taken, seconds)


def _finite(reply: Message, key: str) -> float | None:
    """A number of a reply; ``None`` if it is none that can be used."""
    value = _config(reply, TASK, key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _update(reply: Message, weights: Vector) -> Vector | str:
    """The update of a reply, or why it is none that can be read."""
    try:
        parts = _parts(reply, UPDATE)
        return _too_large(parts, weights) or _joined(parts, weights.dtype)
    except Exception as error:  # whatever a hostile client may have put there
        return f"it is not an array that can be read ({type(error).__name__})"


def _content(
    fields: dict[str, ConfigRecordValues], name: str, values: Vector, wire: Wire
) -> RecordDict:
    """Some fields and a vector, in as few pieces as they fit into."""
    if values.nbytes < INLINE_BYTES:
        return RecordDict(
            {TASK: ConfigRecord({**fields, name: Array(_encoded(values, wire)).data})}
        )
    length = PART_BYTES // values.itemsize
    parts = {
        f"{start:020}": Array(_encoded(values[start : start + length], wire))
        for start in range(0, values.size, length)
    }
    return RecordDict({name: ArrayRecord(parts), TASK: ConfigRecord(fields)})


def _parts(message: Message, name: str) -> list[bytes]:
    """The numbers of that name as NumPy writes them, wherever in the message they are, taken out of it."""
    # Not `array_records` and `config_records`: a message that was asked for these is in a cycle, and
    # stays in memory until garbage is collected.
    inline = cast(ConfigRecord, message.content[TASK]).get(name)
    if isinstance(inline, bytes):
        return [inline]
    record = cast(ArrayRecord, message.content[name])
    return [record.pop(part).data for part in sorted(record)]


def _joined(parts: list[bytes], dtype: np.dtype[np.floating] | None = None) -> Vector:
    """The vector that was parted, of ``dtype`` if it was rounded; its parts are let go one by one."""
    if len(parts) == 1:
        return _decoded(_numbers(parts[0]), dtype)
    size = sum(_header(part)[0][0] for part in parts)
    parts.reverse()
    first = _decoded(_numbers(parts.pop()), dtype)
    whole, at = np.empty(size, dtype=first.dtype), first.size
    whole[:at] = first
    while parts:
        part = _decoded(_numbers(parts.pop()), dtype)
        whole[at : at + part.size] = part
        at += part.size
    return whole


def _numbers(data: bytes) -> Numbers:
    """Numbers as NumPy wrote them, where they are in memory."""
    shape, dtype, offset = _header(data)
    found: Numbers = np.frombuffer(data, dtype=dtype, offset=offset)
    return found.reshape(shape)


def _header(data: bytes) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape and type of the numbers, and where they begin."""
    stream = BytesIO(data)
    shape, _, dtype = READ_HEADER[np.lib.format.read_magic(stream)](stream)
    if dtype.hasobject:
        raise ValueError("it holds objects")
    return shape, dtype, stream.tell()


def _encoded(values: Vector, wire: Wire) -> Numbers:
    return to_bfloat16(values) if wire == "bfloat16" else values


def _decoded(found: Numbers, dtype: np.dtype[np.floating] | None = None) -> Vector:
    """Numbers as they were before `_encoded`; nothing else is of 16 bits without a sign."""
    if found.dtype != np.uint16:
        return cast(Vector, found)
    return from_bfloat16(cast("NDArray[np.uint16]", found)).astype(dtype or np.float32, copy=False)


def _too_large(parts: list[bytes], weights: Vector) -> str | None:
    """Why arrays as NumPy writes them are not worth unfolding."""
    size = sum(map(len, parts))
    most = weights.nbytes + HEADER_BYTES * (1 + weights.nbytes // PART_BYTES)
    if size > most:
        return f"it has {size} bytes where at most {most} are allowed"
    shapes, dtypes = zip(*(_header(part)[:2] for part in parts), strict=True)
    shape = shapes[0] if len(parts) == 1 else (sum(length for (length,) in shapes),)
    if shape != weights.shape:
        return f"its shape is {shape} where the model has {weights.size} weights"
    if dtypes[0].itemsize > 16 or any(dtype != dtypes[0] for dtype in dtypes):
        return f"its numbers are {dtypes[0]}"
    return None


def client_of(node_config: Mapping[str, object]) -> int | str:
    """The client that a node was started for: its device's name, or its number."""
    name, number = node_config.get(DEVICE), node_config.get(PARTITION)
    if isinstance(name, str) and name:
        return name
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidInput(
            f"the node does not know which client it is: its {DEVICE} is {name!r} and its {PARTITION} "
            f"{number!r}. Start it with --node-config '{DEVICE}=\"NAME\"', by the fleet's name, or "
            f"--node-config '{PARTITION}=0' (or 1, 2, ...)."
        )
    return number


def _config(message: Message, record: str, key: str) -> ConfigRecordValues | None:
    """One value of a message, or ``None``: asking for the content may itself raise."""
    try:
        return cast(ConfigRecord, message.content[record])[key]
    except Exception:  # whatever a hostile client may have put there
        return None

"""Tasks and updates as Flower messages carry them."""

import math
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from sojourn.deploy.settings import PARTITION
from sojourn.deploy.tasks import Task
from sojourn.errors import InvalidInput
from sojourn.rules import Rule, local_learning_rate
from sojourn.types import Vector

TASK, WEIGHTS, UPDATE, CLIENT = "task", "weights", "update", "client"
HEADER_BYTES = 4096
"""What NumPy writes before the numbers takes less."""
INLINE_BYTES = 2**20
"""Up to here the numbers travel in the same record as what is said of them. Flower carries each record,
array and piece of an array by itself, in requests that cost the SuperLink some 20 ms of processor."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client is asked: which batch, and whether to send a gradient or local steps."""

    number: int
    ordinal: int
    clients: int
    seed: int
    sends: str
    local_steps: int
    local_learning_rate: float
    proximal: float

    @classmethod
    def of(
        cls, task: Task, rule: Rule, *, clients: int, seed: int, learning_rate: float
    ) -> "Request":
        """The request for ``task`` under ``rule``."""
        return cls(
            number=task.number,
            ordinal=task.ordinal,
            clients=clients,
            seed=seed,
            sends=rule.sends,
            local_steps=rule.local_steps,
            local_learning_rate=local_learning_rate(rule, learning_rate),
            proximal=rule.proximal,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client sent back; whatever is missing or unreadable is ``None``.

    ``reason`` says why the update is.
    """

    claimed: int | None
    update: Vector | None
    loss: float | None
    reason: str | None = None


def task_message(node: int, request: Request, weights: Vector, *, ttl: float) -> Message:
    """The message that asks the client at ``node`` for an update."""
    said = {name: getattr(request, name) for name in Request.__slots__}
    content = _content(said, WEIGHTS, weights)
    return Message(content, node, MessageType.TRAIN, ttl=ttl, group_id=str(request.number))


def who_message(node: int, *, ttl: float) -> Message:
    """The message that asks ``node`` which client it is."""
    return Message(RecordDict(), node, MessageType.QUERY, ttl=ttl)


def read_request(message: Message) -> tuple[Request, Vector]:
    """What `task_message` put in."""
    record: Any = message.content[TASK]
    request = Request(**{name: record[name] for name in Request.__slots__})
    return request, _numbers(_bytes(message, WEIGHTS))


def update_reply(message: Message, number: int, update: Vector, loss: float) -> Message:
    """The answer to a task."""
    content = _content({"number": number, "loss": loss}, UPDATE, update)
    return Message(content, reply_to=message)


def who_reply(message: Message, client: int) -> Message:
    """The answer to `who_message`."""
    return Message(RecordDict({CLIENT: ConfigRecord({CLIENT: client})}), reply_to=message)


def read_reply(message: Message, weights: Vector) -> Reply:
    """What a client answered to a task with ``weights``; nothing about it is trusted.

    An update is looked at only if it has as many bytes as the weights and says that it holds as many
    numbers, so that reading it takes no more memory than they do. What Flower itself unfolds before
    is beyond this function's reach.
    """
    number: Any = _config(message, TASK, "number")
    loss = _config(message, TASK, "loss")
    claimed = number if isinstance(number, int) else None
    known_loss = float(loss) if isinstance(loss, int | float) and math.isfinite(loss) else None
    try:
        data = _bytes(message, UPDATE)
        reason = _too_large(data, weights)
        if reason is not None:
            return Reply(claimed, None, known_loss, reason)
        return Reply(claimed, _numbers(data), known_loss)
    except Exception as error:  # whatever a hostile client may have put there
        return Reply(
            claimed,
            None,
            known_loss,
            f"it is not an array that can be read ({type(error).__name__})",
        )


def _content(said: dict[str, Any], name: str, array: Vector) -> RecordDict:
    """What is said and some numbers, in as few pieces as they fit into."""
    numbers = Array(array)
    if len(numbers.data) <= INLINE_BYTES:
        return RecordDict({TASK: ConfigRecord({**said, name: numbers.data})})
    return RecordDict({name: ArrayRecord({name: numbers}), TASK: ConfigRecord(said)})


def _bytes(message: Message, name: str) -> bytes:
    """The numbers of that name as NumPy writes them, wherever in the message they are."""
    inline = message.content.config_records[TASK].get(name)
    return inline if isinstance(inline, bytes) else message.content.array_records[name][name].data


def _numbers(data: bytes) -> Vector:
    found: Vector = np.load(BytesIO(data), allow_pickle=False)
    return found


def _too_large(data: bytes, weights: Vector) -> str | None:
    """Why an array as NumPy writes it is not worth unfolding."""
    most = weights.nbytes + HEADER_BYTES
    if len(data) > most:
        return f"it has {len(data)} bytes where at most {most} are allowed"
    stream = BytesIO(data)
    version = np.lib.format.read_magic(stream)
    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    shape, _, dtype = read[version[0]](stream)
    if shape != weights.shape:
        return f"its shape is {shape} where the model has {weights.size} weights"
    if dtype.hasobject or dtype.itemsize > 16:
        return f"its numbers are {dtype}"
    return None


def read_who(message: Message, clients: int) -> int | None:
    """The client that a node says it is; ``None`` if it says none that exists."""
    client: Any = _config(message, CLIENT, CLIENT)
    good = isinstance(client, int) and not isinstance(client, bool)
    return client if good and 0 <= client < clients else None


def client_number(node_config: dict[str, Any]) -> int:
    """The number of the client that a node was started for."""
    number = node_config.get(PARTITION)
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidInput(
            f"the node does not know which client it is: its {PARTITION} is {number!r}. "
            f"Start it with --node-config '{PARTITION}=0' (or 1, 2, ...)."
        )
    return number


def _config(message: Message, record: str, key: str) -> object:
    """One value of a message, or ``None``: asking for the content may itself raise."""
    try:
        return message.content.config_records[record][key]
    except Exception:  # whatever a hostile client may have put there
        return None

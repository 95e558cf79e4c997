"""Tasks and updates as Flower messages carry them."""

from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from sojourn.deploy.settings import PARTITION
from sojourn.deploy.tasks import Task
from sojourn.errors import InvalidInput
from sojourn.rules import Rule, local_learning_rate
from sojourn.types import Vector

TASK, WEIGHTS, UPDATE, CLIENT = "task", "weights", "update", "client"


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
    """What a client sent back; whatever is missing or unreadable is ``None``."""

    claimed: int | None
    update: Vector | None
    loss: float | None


def task_message(node: int, request: Request, weights: Vector, *, ttl: float) -> Message:
    """The message that asks the client at ``node`` for an update."""
    content = RecordDict(
        {
            WEIGHTS: ArrayRecord({WEIGHTS: Array(weights)}),
            TASK: ConfigRecord({name: getattr(request, name) for name in Request.__slots__}),
        }
    )
    return Message(content, node, MessageType.TRAIN, ttl=ttl, group_id=str(request.number))


def who_message(node: int, *, ttl: float) -> Message:
    """The message that asks ``node`` which client it is."""
    return Message(RecordDict(), node, MessageType.QUERY, ttl=ttl)


def read_request(message: Message) -> tuple[Request, Vector]:
    """What `task_message` put in."""
    record: Any = message.content[TASK]
    weights = message.content.array_records[WEIGHTS][WEIGHTS].numpy()
    return Request(**{name: record[name] for name in Request.__slots__}), weights


def update_reply(message: Message, number: int, update: Vector, loss: float) -> Message:
    """The answer to a task."""
    content = RecordDict(
        {
            UPDATE: ArrayRecord({UPDATE: Array(update)}),
            TASK: ConfigRecord({"number": number, "loss": loss}),
        }
    )
    return Message(content, reply_to=message)


def who_reply(message: Message, client: int) -> Message:
    """The answer to `who_message`."""
    return Message(RecordDict({CLIENT: ConfigRecord({CLIENT: client})}), reply_to=message)


def read_reply(message: Message) -> Reply:
    """What a client answered; nothing about it is trusted."""
    number: Any = _config(message, TASK, "number")
    loss = _config(message, TASK, "loss")
    try:
        update: Vector | None = message.content.array_records[UPDATE][UPDATE].numpy()
    except Exception:  # whatever a hostile client may have put there
        update = None
    return Reply(
        claimed=number if isinstance(number, int) else None,
        update=update,
        loss=float(loss) if isinstance(loss, int | float) else None,
    )


def read_who(message: Message, clients: int) -> int | None:
    """The client that a node says it is; ``None`` if it says none that exists."""
    client: Any = _config(message, CLIENT, CLIENT)
    return client if isinstance(client, int) and 0 <= client < clients else None


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
    found = message.content.config_records.get(record)
    return None if found is None else found.get(key)

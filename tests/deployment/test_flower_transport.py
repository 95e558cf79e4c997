"""Tasks and updates pass through Flower's messages unchanged, in few pieces where they are small."""

import threading
from collections.abc import Iterable
from dataclasses import replace

import httpx
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from sojourn.deployment.client import Computed
from sojourn.deployment.flower.messages import (
    INLINE_BYTES,
    PART_BYTES,
    from_flower,
    read_request,
    to_flower,
    update_reply,
)
from sojourn.deployment.flower.transport import FlowerTransport
from sojourn.deployment.transport import (
    Answer,
    Failure,
    Notice,
    Question,
    Request,
    TaskMessage,
    from_bfloat16,
    to_bfloat16,
)
from sojourn.types import Vector
from tests.deployment.fake_grid import FakeGrid, Node

REQUEST = Request(
    number=7,
    client=2,
    ordinal=3,
    clients=5,
    seed=11,
    sends="gradient",
    local_steps=1,
    local_learning_rate=0.1,
    proximal=0.0,
)
SMALL = np.linspace(-1.0, 1.0, 650, dtype=np.float32)
LARGE = np.linspace(-1.0, 1.0, INLINE_BYTES // 4, dtype=np.float32)
PARTED = np.random.default_rng(0).normal(size=(2 * PART_BYTES + 4000) // 4).astype(np.float32)


@pytest.fixture(autouse=True)
def identity() -> None:
    """Flower makes messages only in a process that has a task."""
    FakeGrid()


@pytest.mark.parametrize(("weights", "pieces"), [(SMALL, 3), (LARGE, 6), (PARTED, 16)])
def test_what_is_sent_is_what_arrives(weights: Vector, pieces: int) -> None:
    asked = to_flower(TaskMessage(42, 60.0, REQUEST, weights))
    assert len(get_all_nested_objects(asked)) == pieces
    request, received = read_request(asked)
    assert request == REQUEST
    np.testing.assert_array_equal(received, weights)
    assert received.dtype == weights.dtype

    answered = update_reply(asked, REQUEST, Computed(0.25, 2 * weights, 3), 1.5)
    assert len(get_all_nested_objects(answered)) == pieces
    reply = from_flower(answered, "7", weights)
    assert isinstance(reply, Answer)
    assert (reply.message, reply.claimed, reply.loss) == ("7", REQUEST.number, 0.25)
    assert reply.seconds == 1.5
    assert isinstance(reply.update, np.ndarray)
    np.testing.assert_array_equal(reply.update, 2 * weights)


def test_bfloat16_takes_half_the_bytes_and_rounds_as_torch_does() -> None:
    weights = np.random.default_rng(0).normal(size=INLINE_BYTES // 8).astype(np.float32)
    rounded = torch.from_numpy(weights).to(torch.bfloat16).to(torch.float32).numpy()
    asked = to_flower(TaskMessage(42, 60.0, replace(REQUEST, wire="bfloat16"), weights))
    request, received = read_request(asked)
    np.testing.assert_array_equal(received, rounded)
    assert received.dtype == weights.dtype
    reply = from_flower(update_reply(asked, request, Computed(0.25, weights, 1), 1.5), "7", weights)
    assert isinstance(reply, Answer)
    assert isinstance(reply.update, np.ndarray)
    np.testing.assert_array_equal(reply.update, rounded)
    assert reply.update.dtype == weights.dtype
    sent = asked.content.config_records["task"]["weights"]
    assert isinstance(sent, bytes)
    assert len(sent) < 0.51 * weights.nbytes


def test_bfloat16_travels_in_parts_as_it_does_whole() -> None:
    asked = to_flower(TaskMessage(42, 60.0, replace(REQUEST, wire="bfloat16"), PARTED))
    assert len(asked.content["weights"]) == 3
    request, received = read_request(asked)
    np.testing.assert_array_equal(received, from_bfloat16(to_bfloat16(PARTED)))
    found = Computed(0.25, PARTED, 1)
    reply = from_flower(update_reply(asked, request, found, 1.5), "7", PARTED)
    assert isinstance(reply, Answer)
    np.testing.assert_array_equal(reply.update, received)


def test_an_empty_reply_is_refused() -> None:
    asked = to_flower(TaskMessage(42, 60.0, REQUEST, SMALL))
    reply = from_flower(Message(RecordDict(), reply_to=asked), "7", SMALL)
    assert isinstance(reply, Answer)
    assert reply.update == "it is not an array that can be read (KeyError)"


class Shuffling(FakeGrid):
    """Hands replies out in the reverse order of their messages."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [*super().pull_messages(message_ids)][::-1]


def test_replies_that_come_together_are_taken_in_the_order_of_their_tasks() -> None:
    """Flower hands them out in any; a client that is quick may have two."""
    grid = Shuffling()
    grid.nodes[42] = Node(0, ClientApp(), seconds=1.0, fails=True)
    transport = FlowerTransport(grid, clock=grid.clock, sleep=grid.sleep)
    names = transport.send([TaskMessage(42, 60.0, REQUEST, SMALL)] * 3)
    grid.sleep(10.0)
    received = list(transport.receive(names, SMALL))
    assert [each.message for each in received if not isinstance(each, Notice)] == names


class Cut(FakeGrid):
    """A SuperLink that cannot be reached, or answers with an error, until ``until``."""

    def __init__(self, until: float, error: Exception) -> None:
        super().__init__()
        self.until, self.error = until, error

    def check(self) -> None:
        if self.now < self.until:
            raise self.error

    def get_node_ids(self) -> Iterable[int]:
        self.check()
        return super().get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.check()
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.check()
        return super().pull_messages(message_ids)


REFUSED = httpx.HTTPStatusError(
    "500", request=httpx.Request("POST", "http://localhost"), response=httpx.Response(500)
)


@pytest.mark.parametrize("error", [REFUSED, ConnectionError("cut"), httpx.ReadTimeout("slow")])
def test_an_outage_is_survived_and_no_message_is_lost(error: Exception) -> None:
    grid = Cut(500.0, error)
    grid.nodes[42] = Node(0, ClientApp(), seconds=1.0, fails=True)
    transport = FlowerTransport(grid, clock=grid.clock, sleep=grid.sleep)
    assert list(transport.nodes()) == []
    names = transport.send([TaskMessage(42, 60.0, REQUEST, SMALL)] * 2)
    received: list[str] = []
    while grid.now < 510.0:
        waiting = set(names) - set(received)
        found = transport.receive(waiting, SMALL)
        received += [each.message for each in found if not isinstance(each, Notice)]
        transport.wait(1.0, 1.0)
    assert sorted(received) == sorted(names)
    assert list(transport.nodes()) == [42]
    assert grid.pushed == 2


def test_an_outage_of_more_than_its_time_ends_the_run() -> None:
    grid = Cut(1e9, ConnectionError("cut"))
    transport = FlowerTransport(grid, clock=grid.clock, sleep=grid.sleep, outage_seconds=60.0)
    with pytest.raises(ConnectionError, match="cut"):
        while grid.now < 100.0:
            transport.nodes()
            transport.wait(1.0, 10.0)
    assert grid.now >= 60.0


def test_messages_are_pushed_together_and_what_is_not_taken_has_failed() -> None:
    grid = FakeGrid()
    grid.nodes[42] = Node(0, ClientApp(), seconds=1.0, fails=True)
    transport = FlowerTransport(grid, clock=grid.clock, sleep=grid.sleep)
    names = transport.send([Question(42, 60.0), Question(43, 60.0)])
    [failed] = transport.receive(names, SMALL)
    assert isinstance(failed, Failure)
    assert (failed.message, failed.node, failed.gone) == (names[1], 43, True)


class SlowOnce(FakeGrid):
    """Its first pull takes until ``go_on`` is set; what was handed out is not there any more."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on, self.pulls = threading.Event(), 0

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.pulls += 1
        replies = [*super().pull_messages(message_ids)]
        if self.pulls == 1:
            self.go_on.wait()
        return replies


def test_replies_that_are_slow_to_come_are_not_asked_for_again() -> None:
    """Flower would say that there are none, and two tasks would be lost."""
    grid = SlowOnce()
    grid.nodes = {number: Node(number, ClientApp(), 1.0, fails=True) for number in (1, 2)}
    transport = FlowerTransport(grid, clock=grid.clock, sleep=grid.sleep, wait_seconds=0.01)
    names = transport.send([TaskMessage(node, 60.0, REQUEST, SMALL) for node in (1, 2)])
    grid.sleep(5.0)
    assert [type(one) for one in transport.receive(names, SMALL)] == [Notice]
    assert [*transport.receive(names, SMALL)] == []
    assert grid.pulls == 1
    [pull] = transport._late
    grid.go_on.set()
    assert pull.ended.wait(60.0)
    received = [*transport.receive(names, SMALL)]
    assert [one.message for one in received if isinstance(one, Failure)] == names


def parted_reply(*parts: Vector) -> Answer | object:
    """What the server makes of an update that came as these arrays."""
    asked = to_flower(TaskMessage(42, 60.0, REQUEST, PARTED))
    arrays = {f"{number:020}": Array(part) for number, part in enumerate(parts)}
    task = ConfigRecord({"number": REQUEST.number})
    content = RecordDict({"update": ArrayRecord(arrays), "task": task})
    return from_flower(Message(content, reply_to=asked), "7", PARTED)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ((PARTED, PARTED), "bytes where at most"),
        ((PARTED[:-1], PARTED[:2]), "its shape is"),
        ((PARTED[:10], PARTED[10:].astype(np.float16)), "its numbers are float32"),
        ((PARTED[:10], PARTED[10:].reshape(2, -1)), "not an array that can be read"),
        ((PARTED[:10], np.array(["x"] * (PARTED.size - 10))), "its numbers are float32"),
        ((), "not an array that can be read"),
    ],
)
def test_parts_that_do_not_make_an_update_are_refused(
    parts: tuple[Vector, ...], reason: str
) -> None:
    reply = parted_reply(*parts)
    assert isinstance(reply, Answer)
    assert isinstance(reply.update, str)
    assert reason in reply.update

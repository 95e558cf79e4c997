"""Replies that cannot be read, or would take the server's memory: the run goes on."""

import io
import threading
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from sojourn.deployment.flower.messages import from_flower
from sojourn.deployment.transport import Answer, Identity
from sojourn.types import Vector
from tests.deployment.fake_grid import FakeGrid
from tests.deployment.test_server import Deployment

MODEL = np.zeros(9, dtype=np.float32)


class Broken:
    """A message whose content does not inflate."""

    def __init__(self, message: Message) -> None:
        self.metadata = message.metadata

    def has_error(self) -> bool:
        return False

    @property
    def content(self) -> RecordDict:
        raise ValueError("Unexpected set of `children`")


class BrokenPulls(FakeGrid):
    """Like Flower's grid, raises while pulling if one of the replies does not inflate.

    Whatever was pulled with it is lost.
    """

    culprit = 100
    error: type[Exception] = ValueError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        pulled = list(super().pull_messages(message_ids))
        training = [m for m in pulled if m.has_content() and "task" in m.content.config_records]
        if any(m.metadata.src_node_id == self.culprit for m in training):
            raise self.error("Unexpected set of `children`")
        return pulled


def array_of(data: bytes) -> Array:
    return Array(dtype="float32", shape=(9,), stype="numpy.ndarray", data=data)


class Metadata:
    """Of a reply; ``message_type`` says what it answers."""

    def __init__(self, message_type: str = "train") -> None:
        self.message_type, self.src_node_id = message_type, 7


def read_reply(reply: Any, weights: Vector) -> Answer:
    answer = from_flower(reply, "message", weights)
    assert isinstance(answer, Answer)
    return answer


def reply_with(data: bytes, *, inline: bool = False) -> Any:
    said = {"number": 1, "loss": 0.5}

    class Given:
        metadata = Metadata()
        has_error = staticmethod(lambda: False)
        content = RecordDict(
            {"task": ConfigRecord({**said, "update": data})}
            if inline
            else {
                "update": ArrayRecord({"update": array_of(data)}),
                "task": ConfigRecord(said),
            }
        )

    return Given()


def header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_2_0(
        stream, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


def test_a_reply_whose_content_raises_is_refused() -> None:
    class Raises:
        metadata = Metadata()
        has_error = staticmethod(lambda: False)

        @property
        def content(self) -> RecordDict:
            raise RecursionError

    broken: Any = Raises()
    assert "RecursionError" in str(read_reply(broken, MODEL).update)
    broken.metadata = Metadata("query")
    assert from_flower(broken, "message", MODEL) == Identity("message", 7, None)


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04" + bytes(100),
        b"\x93NUMPY\x09\x00" + bytes(100),
        header((2**40,)),
        header((9, 2**40)),
        header((9,)),
        b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 4000,
    ],
)
def test_bytes_that_are_no_update_are_refused_without_being_unfolded(
    data: bytes, inline: bool
) -> None:
    tracemalloc.start()
    try:
        reply = read_reply(reply_with(data, inline=inline), MODEL)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(reply.update, str)
    assert most < 1_000_000


@pytest.mark.parametrize("inline", [True, False])
def test_a_reply_of_the_wrong_size_is_not_unfolded(inline: bool) -> None:
    reply = read_reply(reply_with(header((9,)) + bytes(10_000), inline=inline), MODEL)
    assert reply.update == "it has 10128 bytes where at most 4132 are allowed"


def test_a_broken_object_does_not_end_the_run(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.node(0).tamper = lambda message, reply: Broken(reply)  # type: ignore[return-value]
    deployment.run()
    deployment.check_accounts()
    assert 0 not in {task["client"] for task in deployment.tasks()}
    assert deployment.dispatcher.clients[0].refused >= 3
    assert deployment.accuracy() > 0.9


class SmallPulls(FakeGrid):
    """Remembers how many replies were asked for at once."""

    most = 0

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = list(message_ids)
        self.most = max(self.most, len(asked))
        return super().pull_messages(asked)


def test_no_more_is_pulled_at_once_than_fits(tmp_path: Path) -> None:
    """Six replies may be waiting; two updates of nine numbers fit into 72 bytes."""
    deployment = Deployment(tmp_path)
    deployment.grid.__class__ = SmallPulls
    deployment.serve(batch_bytes=72)
    deployment.run()
    assert deployment.grid.most == 2  # type: ignore[attr-defined]
    assert deployment.dispatcher.counts.used == 60


class Cut(FakeGrid):
    """A SuperLink that cannot be reached from second 10 to 25."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        if 10.0 < self.now < 25.0:
            raise ConnectionError("cut")
        return super().pull_messages(message_ids)


def test_an_unreachable_superlink_is_no_clients_fault(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.grid.__class__ = Cut
    deployment.run()
    deployment.check_accounts()
    assert deployment.dispatcher.counts.refused == 0
    assert "failed" not in (tmp_path / "events.log").read_text()
    assert not [task for task in deployment.tasks() if 10.5 < task["time"] < 24.5]


def test_a_flood_of_the_largest_legal_replies_leaves_nothing_behind() -> None:
    """Read one after the other, replies of 4 MB take the memory of a few, not of all."""
    model = np.zeros(1_000_000, dtype=np.float32)
    data = header((1_000_000,)) + bytes(model.nbytes)
    tracemalloc.start()
    try:
        for _ in range(50):
            assert isinstance(read_reply(reply_with(data), model).update, np.ndarray)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 4 * model.nbytes


class AnnouncedOnly(FakeGrid):
    """Like Flower's grid, waits for what a reply consists of, and its sender does not send it.

    A reply is handed out once: who asks again for one that is waited for hears nothing.
    """

    culprit = 100
    ended = threading.Event()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        pulled = list(super().pull_messages(name for name in message_ids if name in self.pending))
        training = [m for m in pulled if m.has_content() and "task" in m.content.config_records]
        if any(m.metadata.src_node_id == self.culprit for m in training):
            self.ended.wait()
        return pulled


def test_a_reply_that_is_announced_and_does_not_come_keeps_nobody_waiting(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, **{"shortest-deadline": 20.0, "first-deadline": 20.0})
    deployment.grid.__class__ = AnnouncedOnly
    deployment.serve(wait_seconds=2.0)
    deployment.run()
    AnnouncedOnly.ended.set()
    said = (tmp_path / "events.log").read_text()
    assert deployment.dispatcher.counts.used == 60
    assert "a reply was announced and is not there" in said
    assert "client 0: no answer within" in said
    assert 0 not in {task["client"] for task in deployment.tasks()}


def test_what_a_client_says_is_one_line_of_the_log(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, updates=30)
    forged = "no\n9.9\tquarantined\tclient 1: quarantined\x1b[2J" + "x" * 5000
    deployment.node(0).tamper = lambda message, reply: Message(Error(2, forged), reply_to=message)
    deployment.run()
    lines = (tmp_path / "events.log").read_text().splitlines()
    assert {len(line.split("\t")) for line in lines} == {3}
    assert "quarantined" not in {line.split("\t")[1] for line in lines}
    assert any("client 1: quarantined" in line and "failed" in line for line in lines)
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("error", [ValueError, MemoryError, RecursionError])
def test_a_pull_that_raises_names_its_client_and_the_run_goes_on(
    tmp_path: Path, error: type[Exception]
) -> None:
    deployment = Deployment(tmp_path)
    deployment.grid.__class__ = type("Broken", (BrokenPulls,), {"error": error})
    deployment.run()
    said = (tmp_path / "events.log").read_text()
    assert deployment.dispatcher.counts.used == 60
    assert "client 0: update of task" in said
    assert f"its reply cannot be read ({error.__name__})" in said
    assert 0 not in {task["client"] for task in deployment.tasks()}


def test_a_client_that_goes_on_sending_rubbish_is_quarantined(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, **{"quarantine-refused": 2})
    deployment.node(0).tamper = lambda message, reply: Broken(reply)  # type: ignore[return-value]
    deployment.run()
    assert deployment.dispatcher.clients[0].status == "quarantined"
    assert deployment.dispatcher.clients[0].refused == 2
    assert "client 0: quarantined: 2 replies refused" in (tmp_path / "events.log").read_text()


def test_the_operator_puts_a_client_into_quarantine_and_lets_it_out(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, updates=40)
    names = tmp_path / "quarantine.txt"
    deployment.grid.at = [
        (10.0, lambda: names.write_text("client 1\nnobody\n") and None),
        (30.0, lambda: names.unlink()),
    ]
    deployment.run()
    used = [task["time"] for task in deployment.tasks() if task["client"] == 1]
    assert not [time for time in used if 11.5 < time < 30.0]
    assert [time for time in used if time > 30.0]
    assert deployment.dispatcher.clients[1].status == "alive"


def test_who_is_let_out_while_the_server_is_down_is_let_out(tmp_path: Path) -> None:
    names = tmp_path / "quarantine.txt"
    names.write_text("client 1\n")
    before = Deployment(tmp_path, updates=10)
    before.run()
    assert before.dispatcher.clients[1].status == "quarantined"
    names.unlink()
    after = Deployment(tmp_path, updates=40, resume=True)
    assert after.dispatcher.clients[1].status == "quarantined", "as it was when the server stopped"
    after.run()
    assert after.dispatcher.clients[1].used > 0

"""Tasks and updates pass through Flower's messages unchanged, in few pieces where they are small."""

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from sojourn.deploy.gridserver import in_order_of_sending
from sojourn.deploy.pulling import Pulled
from sojourn.deploy.records import (
    INLINE_BYTES,
    Request,
    read_reply,
    read_request,
    task_message,
    update_reply,
)
from sojourn.types import Vector

REQUEST = Request(
    number=7,
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


@pytest.mark.parametrize(("weights", "pieces"), [(SMALL, 3), (LARGE, 6)])
def test_what_is_sent_is_what_arrives(weights: Vector, pieces: int) -> None:
    asked = task_message(42, REQUEST, weights, ttl=60.0)
    request, received = read_request(asked)
    assert request == REQUEST
    np.testing.assert_array_equal(received, weights)
    assert received.dtype == weights.dtype

    answered = update_reply(asked, REQUEST.number, 2 * weights, 0.25)
    reply = read_reply(answered, weights)
    assert (reply.claimed, reply.loss, reply.reason) == (REQUEST.number, 0.25, None)
    assert reply.update is not None
    np.testing.assert_array_equal(reply.update, 2 * weights)
    for message in (asked, answered):
        assert len(get_all_nested_objects(message)) == pieces


def test_an_empty_reply_is_refused() -> None:
    asked = task_message(42, REQUEST, SMALL, ttl=60.0)
    reply = read_reply(Message(RecordDict(), reply_to=asked), SMALL)
    assert reply.update is None
    assert "KeyError" in (reply.reason or "")


def test_replies_that_come_together_are_taken_in_the_order_of_their_tasks() -> None:
    """Flower hands them out in any; a client that is quick may have two."""
    replies = []
    for name in ("first", "second", "third"):
        asked = task_message(42, REQUEST, SMALL, ttl=60.0)
        asked.metadata.__dict__["_message_id"] = name
        replies.append(Message(RecordDict(), reply_to=asked))
    pulled = Pulled(("first", "second", "third"), (replies[2], replies[0], replies[1]))
    assert in_order_of_sending(pulled) == replies

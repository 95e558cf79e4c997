"""Pulling replies without waiting long for any of them.

Flower hands out a reply as soon as its sender has announced it, and then waits up to two hours for
what it consists of. Whoever announces and does not deliver, be it hostile or killed on the way, must
not keep the server from the others: a pull is waited for some seconds, and goes on beside.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flwr.app import Message

WAIT_SECONDS = 5.0
"""Of real time; a reply that is there takes milliseconds."""

PullMessages = Callable[[Iterable[str]], Iterable[Message]]


@dataclass(frozen=True)
class Pulled:
    """What a pull of the replies to messages ``asked`` has brought: these, or why there are none."""

    asked: tuple[str, ...]
    messages: tuple[Message, ...] = ()
    error: Exception | None = None


class Pulls:
    """Pulls of replies, each in a thread of its own, and those of them that are late.

    >>> pulls = Pulls(lambda names: [])
    >>> pulls.pull(["a", "b"]).messages
    ()
    >>> pulls.waits_for("a")
    False
    """

    def __init__(self, pull_messages: PullMessages, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._pull_messages, self._wait_seconds = pull_messages, wait_seconds
        self._late: list[_Pull] = []

    def pull(self, names: Sequence[str]) -> Pulled | None:
        """Pull the replies to some messages; ``None`` if that takes too long.

        Then what comes of it is among those `finished` some time.
        """
        pull = _Pull(tuple(names), self._pull_messages)
        if pull.ended.wait(self._wait_seconds):
            return pull.result
        self._late.append(pull)
        return None

    def waits_for(self, name: str) -> bool:
        """Whether the reply to this message, by itself, is being pulled."""
        return any(pull.asked == (name,) for pull in self._late)

    def finished(self) -> list[Pulled]:
        """Those that were late and have ended."""
        done = [pull for pull in self._late if pull.ended.is_set()]
        self._late = [pull for pull in self._late if pull not in done]
        return [pull.result for pull in done]


class _Pull:
    """A thread that does not keep the program from ending."""

    def __init__(self, asked: tuple[str, ...], pull_messages: PullMessages) -> None:
        self.asked, self.ended = asked, threading.Event()
        self.result = Pulled(asked)
        threading.Thread(target=self._work, args=(pull_messages,), daemon=True).start()

    def _work(self, pull_messages: PullMessages) -> None:
        try:
            self.result = Pulled(self.asked, tuple(pull_messages(self.asked)))
        except Exception as error:  # decided upon where it is taken in
            self.result = Pulled(self.asked, error=error)
        self.ended.set()

"""A policy: the next task joins the queue in which it is expected to be done first."""

from dataclasses import dataclass
from typing import ClassVar

from sojourn.dispatch import Chooser, Policy


@dataclass(frozen=True)
class ShortestWait(Policy):
    """To the client with the least expected sojourn; ``longest`` tasks at most are with one."""

    longest: int = 1000
    name: ClassVar[str] = "shortest-wait"

    def chooser(self, random):
        return _Shortest(self.longest)


class _Shortest(Chooser):
    def __init__(self, longest):
        self.longest = longest

    def choose(self, view, finisher):
        open_to = [client for client in view.living if view.tasks(client) < self.longest]
        sojourn = {client: (view.tasks(client) + 1) / view.rates[client] for client in open_to}
        return min(open_to, key=lambda client: (sojourn[client], client), default=None)

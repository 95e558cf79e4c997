"""Which client gets the next task."""

from bisect import bisect_right
from collections.abc import Callable

import numpy as np

from sojourn.errors import InvalidInput, UnknownName
from sojourn.types import FloatArray

POLICIES = ("routed", "finisher", "idle", "shuffled")


def check_policy(policy: str) -> None:
    """Raise unless ``policy`` is one that the dispatcher can follow."""
    if policy == "synchronous":
        raise InvalidInput(
            "a synchronous rule waits for whole cohorts, which the dispatcher does not do. Choose "
            f"a rule whose policy is one of: {', '.join(POLICIES)}."
        )
    if policy not in POLICIES:
        raise UnknownName("dispatch policy", policy, POLICIES)


class Router:
    """Draws clients among the living.

    ``routing`` is p over all n clients; among the living it is renormalised. The policies are
    those of the simulator that make sense one task at a time: *routed* by p, *finisher* (whoever
    has just answered), *idle* (a uniformly drawn client with nothing to do, none if all are busy)
    and *shuffled* (a fresh random order of the living each time all have had their turn). All but
    the first have p uniform.
    """

    def __init__(self, routing: FloatArray, *, policy: str, random: np.random.Generator) -> None:
        check_policy(policy)
        self.policy = policy
        self.random = random
        self.living: list[int] = []
        self.order: list[int] = []
        self._probability: dict[int, float] = {}
        self._cumulative: list[float] = []
        self.routing = self._checked(routing)

    def change(self, routing: FloatArray) -> None:
        """Use another p from now on."""
        self.routing = self._checked(routing, self.routing.size)
        self.restrict(self.living)

    def restrict(self, living: list[int]) -> None:
        """Only these clients are drawn from now on."""
        self.living = list(living)
        if not living:
            self._probability, self._cumulative = {}, []
            return
        routed = self.policy == "routed"
        weights = self.routing[living] if routed else np.ones(len(living))
        p = weights / weights.sum()
        self._probability = dict(zip(living, p.tolist(), strict=True))
        self._cumulative = np.cumsum(p).tolist()

    def probability(self, client: int) -> float:
        """p of a living client, over the living."""
        return self._probability[client]

    def draw(self, finisher: int | None, is_idle: Callable[[int], bool]) -> int | None:
        """The client of the next task; ``None`` if it must wait."""
        living = self.living
        if not living:
            return None
        if self.policy == "finisher" and finisher in self._probability:
            return finisher
        if self.policy == "shuffled":
            return self._next_in_order()
        if self.policy == "idle":
            idle = [client for client in living if is_idle(client)]
            return idle[int(self.random.integers(len(idle)))] if idle else None
        index = bisect_right(self._cumulative, self.random.random())
        return living[min(index, len(living) - 1)]

    def _next_in_order(self) -> int:
        """Clients that are gone keep their turn, in case they come back before the order ends."""
        for place in reversed(range(len(self.order))):
            if self.order[place] in self._probability:
                return self.order.pop(place)
        self.order = self.random.permutation(self.living).tolist()
        return self.order.pop()

    @staticmethod
    def _checked(routing: FloatArray, size: int | None = None) -> FloatArray:
        p = np.array(routing, dtype=np.float64)
        if p.ndim != 1 or p.size == 0 or not np.all(np.isfinite(p) & (p > 0)):
            raise InvalidInput(
                "routing must be a positive probability for every client; "
                f"it is {np.array2string(p, threshold=8)}"
            )
        if size is not None and p.size != size:
            raise InvalidInput(f"routing must be over the {size} clients; it has {p.size} entries")
        return np.asarray(p / p.sum())

"""When the routing is computed again from what is seen of the clients' speeds."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sojourn.deploy.routing import Router
from sojourn.deploy.tasks import Event
from sojourn.types import FloatArray

Replan = Callable[[FloatArray], FloatArray]
"""From the estimated service rates of all clients to a new routing."""


@dataclass
class Replanning:
    """Tells the router of new speeds every ``every`` updates, and with ``replan`` of a new p.

    ``planned_at`` is how many updates had been used when that was done last.
    """

    router: Router
    replan: Replan | None
    every: int
    planned_at: int = 0

    def make_due(self, used: int) -> None:
        """A client's speed has changed: do not wait."""
        self.planned_at = used - self.every

    def if_due(self, used: int, rates: Callable[[], FloatArray], now: float) -> list[Event]:
        """Look at the ``rates``, if it is time, and say what came of it."""
        if used - self.planned_at < self.every:
            return []
        self.planned_at = used
        seen = rates()
        self.router.speeds(seen, now)
        if self.replan is None:
            return []
        try:
            self.router.change(self.replan(seen), now)
        except Exception as error:  # whatever a planner may raise, the tasks must go on
            return [Event("routing", None, f"re-planning failed, the old routing stays: {error}")]
        text = np.array2string(self.router.routing, precision=4, threshold=8)
        return [Event("routing", None, f"new routing {text}")]

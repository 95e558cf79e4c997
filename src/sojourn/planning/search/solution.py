"""What an optimisation found, and how."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sojourn.fleet import Network
from sojourn.planning.objectives import Objective, is_guaranteed

MOST_SHOWN = 12


@dataclass(frozen=True)
class Attempt:
    """One descent: where it began and where it ended; without gradients the norm is NaN."""

    start: str
    value: float
    gradient_norm: float
    steps: int


@dataclass(frozen=True, eq=False)
class Solution:
    """The best network found: its routing, its concurrency, or both were optimised.

    ``network`` may have more classes than the fleet, since the best routing may single out one or
    two clients of a class; its ``parents`` give the fleet's class of each of its classes.
    ``attempts`` are the descents at its concurrency (none if the routing was given), ``tried`` maps
    every concurrency tried to its value (only one if it was given). ``interrupted`` says that the
    search was broken off, and this is the best until then.
    """

    objective: Objective
    network: Network
    value: float
    learning_rate: float | None
    tried: Mapping[int, float]
    attempts: tuple[Attempt, ...] = field(default=())
    interrupted: bool = False

    @classmethod
    def at(
        cls,
        network: Network,
        objective: Objective,
        attempts: tuple[Attempt, ...] = (),
        *,
        interrupted: bool = False,
    ) -> "Solution":
        """What the objective is at the best network of the only concurrency tried."""
        found = objective.evaluate(network)
        tried = {network.concurrency: found.value}
        rate = found.learning_rate
        return cls(objective, network, found.value, rate, tried, attempts, interrupted)

    @property
    def concurrency(self) -> int:
        """The number of tasks in flight, :math:`m`."""
        return self.network.concurrency

    @property
    def is_guarantee(self) -> bool | None:
        """Whether the learning rate is within ``max_learning_rate``; ``None`` without one."""
        return is_guaranteed(self.objective, self.network, self.learning_rate)

    def __repr__(self) -> str:
        fleet, p = self.network.fleet, self.network.routing
        lines = [
            f"Solution: {self.objective.name} {self.value:.8g} with {self.concurrency} tasks in "
            f"flight, {' and '.join(self._tries())}"
        ]
        if self.learning_rate is not None:
            kind = "a guarantee" if self.is_guarantee else "a proxy: above max_learning_rate"
            lines.append(f"  learning rate {self.learning_rate:.4g} ({kind})")
        shown = range(min(fleet.classes, MOST_SHOWN))
        lines += [
            f"  {fleet.label(k)}: {fleet.counts[k]} x {p[k]:.6g} (rate {fleet.service_rates[k]:.4g})"
            for k in shown
        ]
        if fleet.classes > len(shown):
            lines.append(f"  ... and {fleet.classes - len(shown)} more classes")
        return "\n".join(lines)

    def _tries(self) -> list[str]:
        tries = [f"best of {len(self.attempts)} descents"] if self.attempts else []
        if len(self.tried) > 1 or not tries:
            tries.append(f"{len(self.tried)} concurrencies tried")
        return tries

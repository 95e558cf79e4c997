r"""How long a task may take before its client is taken for dead.

Service times are taken to be Gamma distributed, with the client's own mean and a squared
coefficient of variation :math:`c^2` common to the fleet (1 is the exponential law; a fleet that
works like clockwork has less). The deadline is the quantile that a working client misses once in
ten thousand tasks, by the Wilson-Hilferty approximation

.. math:: \bar s \left(1 - \frac{c^2}{9} + \frac{z\,c}{3}\right)^3, \qquad z = 3.719,

with the mean :math:`\bar s` raised by two standard errors.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

NORMAL_QUANTILE = 3.719
LEAST_VARIATION = 0.05
MOST_VARIATION = 4.0
PRIOR_TASKS = 2.0
FORGETTING = 0.995


@dataclass(slots=True)
class Deadlines:
    """Seconds a task may run, from what tasks took before.

    ``shortest`` bounds every deadline from below, so that a hiccup of the network is not a death;
    ``first`` is the deadline of a client that has finished nothing yet.

    >>> deadlines = Deadlines(shortest=5.0, first=60.0)
    >>> deadlines.allowance(mean_seconds=2.0, tasks=0)
    60.0
    >>> for _ in range(500):
    ...     deadlines.observe(1.0)
    >>> round(deadlines.allowance(mean_seconds=10.0, tasks=50), 1)
    21.9
    """

    shortest: float = 10.0
    first: float = 60.0
    weight: float = PRIOR_TASKS
    squares: float = PRIOR_TASKS

    def observe(self, relative_seconds: float) -> None:
        """Take in how long a task took, relative to its client's mean as known before it."""
        deviation = min((relative_seconds - 1.0) ** 2, 9.0)
        self.weight = FORGETTING * self.weight + 1.0
        self.squares = FORGETTING * self.squares + deviation

    @property
    def squared_variation(self) -> float:
        """The squared coefficient of variation of service times."""
        return min(max(self.squares / self.weight, LEAST_VARIATION), MOST_VARIATION)

    def allowance(self, *, mean_seconds: float, tasks: int) -> float:
        """The deadline of a client that finished ``tasks`` tasks in ``mean_seconds`` each."""
        if tasks == 0:
            return max(self.first, self.shortest)
        variation = self.squared_variation
        spread = math.sqrt(variation)
        quantile = (1.0 - variation / 9.0 + NORMAL_QUANTILE * spread / 3.0) ** 3
        upper_mean = mean_seconds * (1.0 + 2.0 * spread / math.sqrt(tasks))
        return max(self.shortest, upper_mean * quantile)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for a checkpoint."""
        return asdict(self)

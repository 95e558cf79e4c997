r"""How long a task may take before its client is taken for dead.

Service times are taken to be Gamma distributed, with the client's own mean and a squared
coefficient of variation :math:`c^2` common to the fleet (1 is the exponential law; a fleet that
works like clockwork has less). The deadline is the quantile that a working client misses once in
ten thousand tasks, by the Wilson-Hilferty approximation

.. math:: \bar s \left(1 - \frac{c^2}{9} + \frac{z\,c}{3}\right)^3, \qquad z = 3.719,

with the mean :math:`\bar s` raised by two standard errors. While so little has been seen that this
would be long, it is cut to the first deadline, or to the same quantile of the exponential law,
:math:`9.21\,\bar s`, whichever is longer: a client whose tasks take up to 4 s is missed within
40 s from its first answer on.
"""

import math
from dataclasses import dataclass

NORMAL_QUANTILE = 3.719
EXPONENTIAL_QUANTILE = 9.21
LEAST_VARIATION = 0.05
MOST_VARIATION = 4.0
PRIOR_TASKS = 2.0
FORGETTING = 0.995


@dataclass(slots=True)
class Deadlines:
    """Seconds a task may run, from what tasks took before.

    ``shortest`` bounds every deadline from below, so that a hiccup of the network is not a death;
    ``longest`` bounds it from above, whatever was seen. ``first`` is the deadline of a client that
    has finished nothing yet, unless it is known to be so slow that it needs longer.

    >>> deadlines = Deadlines(shortest=5.0, first=30.0)
    >>> deadlines.allowance(mean_seconds=None, tasks=0)
    30.0
    >>> round(deadlines.allowance(mean_seconds=10.0, tasks=0), 1)
    92.1
    >>> for _ in range(500):
    ...     deadlines.observe(1.0)
    >>> round(deadlines.allowance(mean_seconds=10.0, tasks=50), 1)
    21.9
    """

    shortest: float = 10.0
    first: float = 30.0
    longest: float = math.inf
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

    def allowance(self, *, mean_seconds: float | None, tasks: int) -> float:
        """The deadline of a client that finished ``tasks`` tasks in ``mean_seconds`` each.

        Before its first task, ``mean_seconds`` is what it is known to need; ``None`` if unknown.
        """
        if mean_seconds is None:
            return min(max(self.shortest, self.first), self.longest)
        most = max(self.first, EXPONENTIAL_QUANTILE * mean_seconds)
        if tasks:
            variation = self.squared_variation
            spread = math.sqrt(variation)
            quantile = (1.0 - variation / 9.0 + NORMAL_QUANTILE * spread / 3.0) ** 3
            upper_mean = mean_seconds * (1.0 + 2.0 * spread / math.sqrt(tasks))
            most = min(most, upper_mean * quantile)
        return min(max(self.shortest, most), self.longest)

    def to_dict(self) -> dict[str, float]:
        """What was learnt, for a checkpoint; the bounds are settings."""
        return {"weight": self.weight, "squares": self.squares}

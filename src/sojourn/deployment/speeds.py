r"""How fast each client works, estimated while it works, and how long a task may take.

The service time of a task is taken to be exponential with rate :math:`\mu`, and :math:`\mu` to be
Gamma distributed: after :math:`k` tasks that took :math:`T` seconds in all, and with a task that
has been running for :math:`r` seconds (censored: it counts as time, not as a task),

.. math:: \mu \mid \text{data} \sim \Gamma(a_0 + k,\; b_0 + T + r).

A change of speed is found by two cumulative sums of log-likelihood ratios, one for a slowdown and
one for a speed-up by ``FACTOR``; when either passes ``THRESHOLD`` what was seen before the change
is forgotten. While nothing changes this happens at most once in :math:`e^{h}` tasks on average,
:math:`h` = ``THRESHOLD``.

For deadlines service times are taken to be Gamma distributed, with the client's own mean and a squared
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sojourn.types import FloatArray

FACTOR = 3.0
THRESHOLD = 10.0
MOST_PER_TASK = 4.0
"""One task alone is never enough to call it a change: three in a row are."""

SHORTEST_SECONDS = 1e-6
"""A clock too coarse to see a task at all must not make its client infinitely fast."""

NORMAL_QUANTILE = 3.719
EXPONENTIAL_QUANTILE = 9.21
"""Both are missed once in ten thousand times: 9.21 means, or 3.719 standard deviations above."""
LEAST_VARIATION, MOST_VARIATION = 0.05, 4.0
"""Bounds of the squared coefficient of variation, however regular or wild the first tasks are."""
PRIOR_TASKS = 2.0
"""Tasks that the exponential law weighs at first, of which it is 1."""
FORGETTING = 0.995
"""What is left of a task's weight after each further one: the last 200 tasks count."""
FIRST_FACTOR = 3.0
"""Times the slowest first task of others that a client's own may take."""

_LOG_FACTOR = math.log(FACTOR)


@dataclass(slots=True)
class _Evidence:
    """A cumulative sum of log-likelihood ratios, and what was seen since it last was zero."""

    total: float = 0.0
    tasks: int = 0
    seconds: float = 0.0

    def add(self, ratio: float, seconds: float) -> bool:
        """Whether the sum has passed the threshold."""
        self.total += min(ratio, MOST_PER_TASK)
        if self.total <= 0.0:
            self.clear()
            return False
        self.tasks += 1
        self.seconds += seconds
        return self.total > THRESHOLD

    def clear(self) -> None:
        self.total, self.tasks, self.seconds = 0.0, 0, 0.0


@dataclass(slots=True)
class RateEstimate:
    r"""The posterior of one client's service rate.

    ``shape`` and ``seconds`` are :math:`a_0 + k` and :math:`b_0 + T`; ``tasks`` is :math:`k`,
    counted since the last change of speed. The prior ``RateEstimate.prior(mu)`` weighs one task.

    >>> estimate = RateEstimate.prior(0.5)
    >>> for _ in range(99):
    ...     _ = estimate.observe(4.0)
    >>> round(estimate.rate(), 4)
    0.2513
    """

    shape: float
    seconds: float
    tasks: int = 0
    changes: int = 0
    slower: _Evidence = field(default_factory=_Evidence)
    faster: _Evidence = field(default_factory=_Evidence)

    @classmethod
    def prior(cls, rate: float, *, weight: float = 1.0) -> "RateEstimate":
        """As much belief in ``rate`` as ``weight`` tasks would give."""
        return cls(shape=weight, seconds=weight / rate)

    def rate(self, running: float = 0.0) -> float:
        """The posterior mean, with a task that has been running for ``running`` seconds."""
        return self.shape / (self.seconds + running)

    @property
    def mean_seconds(self) -> float:
        """The mean service time that the posterior mean of the rate stands for."""
        return self.seconds / self.shape

    def observe(self, seconds: float) -> bool:
        """Take in a finished task; true if the client's speed has changed."""
        seconds = max(seconds, SHORTEST_SECONDS)
        relative = seconds * self.shape / self.seconds
        self.shape += 1.0
        self.seconds += seconds
        self.tasks += 1
        if self.tasks == 1:
            return False
        slower = self.slower.add(relative * (1.0 - 1.0 / FACTOR) - _LOG_FACTOR, seconds)
        faster = self.faster.add(_LOG_FACTOR - relative * (FACTOR - 1.0), seconds)
        if not slower and not faster:
            return False
        since = self.slower if slower else self.faster
        self.shape, self.seconds, self.tasks = float(since.tasks), since.seconds, since.tasks
        self.changes += 1
        self.slower.clear()
        self.faster.clear()
        return True

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RateEstimate":
        """The estimate of which ``values`` is the ``asdict``."""
        evidence = {name: _Evidence(**values[name]) for name in ("slower", "faster")}
        return cls(**{**values, **evidence})


def rates_of(estimates: Sequence[RateEstimate], running: FloatArray) -> FloatArray:
    """`RateEstimate.rate` of many at once, each with a task that has been ``running`` for so long.

    >>> rates_of([RateEstimate.prior(0.5), RateEstimate.prior(2.0)], np.array([0.0, 0.5]))
    array([0.5, 1. ])
    """
    seconds = np.array([estimate.seconds for estimate in estimates])
    return np.array([estimate.shape for estimate in estimates]) / (seconds + running)


@dataclass(slots=True)
class Deadlines:
    """Seconds a task may run, from what tasks took before.

    ``shortest`` bounds every deadline from below, so that a hiccup of the network is not a death;
    ``longest`` bounds it from above, whatever was seen. ``first`` is the deadline of a client that
    has finished nothing yet, unless it is known to be so slow that it needs longer, or first tasks,
    in which clients load their data, were seen to take longer: ``slowest_first`` is the longest of
    those, and three times as long is allowed.

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
    slowest_first: float = 0.0

    @property
    def least(self) -> float:
        """No deadline is shorter than this, in seconds."""
        return min(self.shortest, self.longest)

    def observe_first(self, seconds: float) -> None:
        """Take in how long the first task of a client took."""
        self.slowest_first = max(self.slowest_first, seconds)

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
        first = self.first if tasks else max(self.first, FIRST_FACTOR * self.slowest_first)
        if mean_seconds is None:
            return min(max(self.shortest, first), self.longest)
        most = max(first, EXPONENTIAL_QUANTILE * mean_seconds)
        if tasks:
            variation = self.squared_variation
            spread = math.sqrt(variation)
            quantile = (1.0 - variation / 9.0 + NORMAL_QUANTILE * spread / 3.0) ** 3
            upper_mean = mean_seconds * (1.0 + 2.0 * spread / math.sqrt(tasks))
            most = min(most, upper_mean * quantile)
        return min(max(self.shortest, most), self.longest)

    def to_dict(self) -> dict[str, float]:
        """What was learnt, for a checkpoint; the bounds are settings."""
        learnt = "weight", "squares", "slowest_first"
        return {name: getattr(self, name) for name in learnt}

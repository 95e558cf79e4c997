r"""How fast each client works, estimated while it works.

The service time of a task is taken to be exponential with rate :math:`\mu`, and :math:`\mu` to be
Gamma distributed: after :math:`k` tasks that took :math:`T` seconds in all, and with a task that
has been running for :math:`r` seconds (censored: it counts as time, not as a task),

.. math:: \mu \mid \text{data} \sim \Gamma(a_0 + k,\; b_0 + T + r).

A change of speed is found by two cumulative sums of log-likelihood ratios, one for a slowdown and
one for a speed-up by ``FACTOR``; when either passes ``THRESHOLD`` what was seen before the change
is forgotten. While nothing changes this happens at most once in :math:`e^{h}` tasks on average,
:math:`h` = ``THRESHOLD``.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

FACTOR = 3.0
THRESHOLD = 10.0
MOST_PER_TASK = 4.0
"""One task alone is never enough to call it a change: three in a row are."""

SHORTEST_SECONDS = 1e-6
"""A clock too coarse to see a task at all must not make its client infinitely fast."""

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

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RateEstimate":
        """What `to_dict` wrote."""
        evidence = {name: _Evidence(**values[name]) for name in ("slower", "faster")}
        return cls(**{**values, **evidence})

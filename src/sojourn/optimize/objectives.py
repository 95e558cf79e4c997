"""What to optimise: each objective turns a network into a number and its gradient."""

import math
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from sojourn.bounds import (
    Horizon,
    LearningConstants,
    Penalties,
    check_scale,
    horizon,
    penalties,
    per_round,
    per_time,
    per_time_horizon,
)
from sojourn.errors import InvalidInput
from sojourn.network import Network
from sojourn.types import FloatArray

NEWTON_STEPS = 100
"""More than enough, should rounding keep the steps from vanishing."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An objective at a network: its value, the gradient of its logarithm, the learning rate used."""

    value: float
    log_gradient: FloatArray
    learning_rate: float | None


@runtime_checkable
class Objective(Protocol):
    """What the planner needs of an objective. Values are positive; ``maximize`` gives the sense."""

    @property
    def name(self) -> str:
        """Hyphenated, as on the command line."""

    @property
    def maximize(self) -> bool:
        """Whether larger is better."""

    @property
    def constants(self) -> LearningConstants | None:
        """What is assumed of the learning problem, if anything."""

    @property
    def learning_rate(self) -> float | None:
        """The learning rate asked for; ``None`` means the best one."""

    def with_learning_rate(self, learning_rate: float | None) -> "Objective":
        """The same objective at another learning rate."""

    def evaluate(self, network: Network) -> Evaluation:
        """Value, gradient and learning rate at a network."""


@dataclass(frozen=True)
class _Bounded:
    """Common to the objectives built on the bounds."""

    constants: LearningConstants
    learning_rate: float | None
    rounds: float

    def __post_init__(self) -> None:
        _check_learning_rate(self.learning_rate)
        if not (self.rounds >= 0 and math.isfinite(self.rounds)):
            raise InvalidInput(f"rounds must be zero or positive, and finite; it is {self.rounds}")

    @property
    def maximize(self) -> bool:
        return False

    def _rate(self, s: Penalties) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        return best_learning_rate(s, self.constants, rounds=self.rounds)


@dataclass(frozen=True)
class PerRound(_Bounded):
    r"""The bound G: best model for a given number of rounds, however long they take.

    ``learning_rate`` may be ``None``: then the one that makes G least is used.

    >>> PerRound(LearningConstants(15, 1, 3, 10), learning_rate=0.01, rounds=0).name
    'per-round'
    """

    @property
    def name(self) -> str:
        return "per-round"

    def with_learning_rate(self, learning_rate: float | None) -> "PerRound":
        return replace(self, learning_rate=learning_rate)

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network)
        eta = self._rate(s)
        bound = per_round(s, self.constants, learning_rate=eta, rounds=self.rounds)
        return Evaluation(bound.value, bound.gradient / bound.value, eta)


@dataclass(frozen=True)
class PerTime(_Bounded):
    r"""The bound :math:`H = G/\lambda`: error and duration of a round weighed together.

    ``learning_rate`` may be ``None``: then the one that makes H least is used.
    """

    @property
    def name(self) -> str:
        return "per-time"

    def with_learning_rate(self, learning_rate: float | None) -> "PerTime":
        return replace(self, learning_rate=learning_rate)

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network)
        eta = self._rate(s)
        bound = per_time(s, self.constants, learning_rate=eta, rounds=self.rounds)
        return Evaluation(bound.value, bound.gradient / bound.value, eta)


@dataclass(frozen=True)
class TimeToAccuracy:
    r"""Time until the mean squared gradient norm is below ``accuracy``.

    The learning rate is the best one unless given; with ``guaranteed`` it stays below
    ``max_learning_rate``, where the bound holds.
    """

    constants: LearningConstants
    accuracy: float
    guaranteed: bool = False
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        check_scale("accuracy", self.accuracy)
        _check_learning_rate(self.learning_rate)

    @property
    def name(self) -> str:
        return "time-to-accuracy"

    @property
    def maximize(self) -> bool:
        return False

    def with_learning_rate(self, learning_rate: float | None) -> "TimeToAccuracy":
        return replace(self, learning_rate=learning_rate)

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network)
        time = per_time_horizon(s, self._rounds(s))
        return Evaluation(time.value, time.gradient / time.value, time.learning_rate)

    def _rounds(self, s: Penalties) -> Horizon:
        return horizon(
            s,
            self.constants,
            accuracy=self.accuracy,
            guaranteed=self.guaranteed,
            learning_rate=self.learning_rate,
        )


@dataclass(frozen=True)
class TimeBudget:
    r"""The bound G after ``time`` units of time, that is with :math:`T = \lambda t` rounds."""

    constants: LearningConstants
    time: float
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        check_scale("time", self.time)
        _check_learning_rate(self.learning_rate)

    @property
    def name(self) -> str:
        return "time-budget"

    @property
    def maximize(self) -> bool:
        return False

    def with_learning_rate(self, learning_rate: float | None) -> "TimeBudget":
        return replace(self, learning_rate=learning_rate)

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network)
        rounds = s.throughput * self.time
        eta = self.learning_rate
        if eta is None:
            eta = best_learning_rate(s, self.constants, rounds=rounds)
        bound = per_round(s, self.constants, learning_rate=eta, rounds=rounds)
        through_rounds = bound.terms["progress"] * rounds / (rounds + 1.0)
        gradient = bound.gradient - through_rounds * s.log_throughput_gradient
        return Evaluation(bound.value, gradient / bound.value, eta)


@dataclass(frozen=True)
class Throughput:
    r"""Rounds per unit of time, :math:`\lambda`, whatever becomes of staleness."""

    @property
    def name(self) -> str:
        return "throughput"

    @property
    def maximize(self) -> bool:
        return True

    @property
    def constants(self) -> LearningConstants | None:
        return None

    @property
    def learning_rate(self) -> float | None:
        return None

    def with_learning_rate(self, learning_rate: float | None) -> "Throughput":
        if learning_rate is not None:
            raise InvalidInput("throughput does not depend on a learning rate: leave it out")
        return self

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network)
        return Evaluation(s.throughput, s.log_throughput_gradient, None)


def best_learning_rate(s: Penalties, constants: LearningConstants, *, rounds: float) -> float:
    r"""The learning rate that makes G least: the root of :math:`A/(T+1) = \eta^2 b + 2 \eta^3 c`.

    The right side is increasing and convex in :math:`\eta`: Newton's method from the right of the
    root, where either term alone would meet the left side.
    """
    b, c, *_ = s.weighted(constants)
    progress = constants.initial_gap / (rounds + 1.0)
    if b == 0.0:
        raise InvalidInput(
            "without gradient noise and heterogeneity the bound has no best learning rate: give one"
        )
    eta = math.sqrt(progress / b)
    if c > 0.0:
        eta = min(eta, (progress / (2.0 * c)) ** (1.0 / 3.0))
    for _ in range(NEWTON_STEPS):
        excess = eta * eta * (b + 2.0 * eta * c) - progress
        step = excess / (eta * (2.0 * b + 6.0 * eta * c))
        eta -= step
        if abs(step) <= 1e-15 * eta:
            break
    return eta


def _check_learning_rate(learning_rate: float | None) -> None:
    if learning_rate is not None:
        check_scale("learning_rate", learning_rate)

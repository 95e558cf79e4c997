"""What to optimise: each objective turns a network into a number and its gradient."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from sojourn.boundforms import PAPER, Form
from sojourn.bounds import (
    Horizon,
    Penalties,
    horizon,
    penalties,
    per_round,
    per_time,
    per_time_horizon,
)
from sojourn.checks import check_rounds, check_scale
from sojourn.config import Table
from sojourn.constants import LearningConstants
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.network import Fleet, Network
from sojourn.types import FloatArray

NEWTON_STEPS = 100
"""More than enough, should rounding keep the steps from vanishing."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An objective at a network: its value, the gradient of its logarithm, the learning rate used.

    An objective that knows no gradient, such as one that is simulated, leaves it out: then a search
    over few parameters takes the place of descents.
    """

    value: float
    log_gradient: FloatArray | None = None
    learning_rate: float | None = None


@runtime_checkable
class Objective(Protocol):
    """What the planner needs of an objective. Values are positive; ``maximize`` gives the sense.

    Where a name is asked for, yours is ``"module:Class"``; plans keep it by that name.
    """

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

    def rounds_at(self, network: Network) -> float | None:
        """The number of rounds that it speaks of at a network; ``None`` if it speaks of none."""

    def to_table(self) -> dict[str, Any]:
        """Plain values for TOML, without name and constants."""

    @classmethod
    def from_table(cls, table: Table, constants: LearningConstants | None) -> Self:
        """The objective that ``to_table`` wrote, taking its keys from ``table``."""


@dataclass(frozen=True)
class _Bounded:
    """Common to the objectives built on the bounds."""

    constants: LearningConstants
    learning_rate: float | None
    rounds: float
    form: Form = PAPER

    def __post_init__(self) -> None:
        _check_learning_rate(self.learning_rate)
        check_rounds(self.rounds)

    @property
    def maximize(self) -> bool:
        return False

    def _rate(self, s: Penalties) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        return best_learning_rate(s, self.constants, rounds=self.rounds)

    def rounds_at(self, network: Network) -> float | None:
        return self.rounds

    def to_table(self) -> dict[str, Any]:
        return {"rounds": self.rounds, **_rate_table(self.learning_rate), **self.form.to_table()}

    @classmethod
    def from_table(cls, table: Table, constants: LearningConstants | None) -> Self:
        rounds = table.take("rounds", float)
        return cls(_given(constants, table), _rate_from(table), rounds, Form.from_table(table))


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
        s = penalties(network, self.form)
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
        s = penalties(network, self.form)
        eta = self._rate(s)
        bound = per_time(s, self.constants, learning_rate=eta, rounds=self.rounds)
        return Evaluation(bound.value, bound.gradient / bound.value, eta)


@dataclass(frozen=True)
class TimeToAccuracy:
    r"""Time until the mean squared gradient norm is below ``squared_gradient_norm``.

    The learning rate is the best one unless given; with ``guaranteed`` it stays below
    ``max_learning_rate``, where the bound holds.
    """

    constants: LearningConstants
    squared_gradient_norm: float
    guaranteed: bool = False
    learning_rate: float | None = None
    form: Form = PAPER

    def __post_init__(self) -> None:
        check_scale("squared_gradient_norm", self.squared_gradient_norm)
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
        s = penalties(network, self.form)
        time = per_time_horizon(s, self._rounds(s))
        return Evaluation(time.value, time.gradient / time.value, time.learning_rate)

    def rounds_at(self, network: Network) -> float | None:
        return self._rounds(penalties(network, self.form)).value

    def to_table(self) -> dict[str, Any]:
        table = {"squared-gradient-norm": self.squared_gradient_norm, "guaranteed": self.guaranteed}
        return table | _rate_table(self.learning_rate) | self.form.to_table()

    @classmethod
    def from_table(cls, table: Table, constants: LearningConstants | None) -> Self:
        return cls(
            _given(constants, table),
            table.take("squared-gradient-norm", float),
            table.take("guaranteed", bool, default=False),
            _rate_from(table),
            Form.from_table(table),
        )

    def _rounds(self, s: Penalties) -> Horizon:
        return horizon(
            s,
            self.constants,
            squared_gradient_norm=self.squared_gradient_norm,
            guaranteed=self.guaranteed,
            learning_rate=self.learning_rate,
        )


@dataclass(frozen=True)
class TimeBudget:
    r"""The bound G after ``time`` units of time, that is with :math:`T = \lambda t` rounds."""

    constants: LearningConstants
    time: float
    learning_rate: float | None = None
    form: Form = PAPER

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
        s = penalties(network, self.form)
        rounds = s.throughput * self.time
        eta = self.learning_rate
        if eta is None:
            eta = best_learning_rate(s, self.constants, rounds=rounds)
        bound = per_round(s, self.constants, learning_rate=eta, rounds=rounds)
        through_rounds = bound.terms["progress"] * rounds / (rounds + 1.0)
        gradient = bound.gradient - through_rounds * s.log_throughput_gradient
        return Evaluation(bound.value, gradient / bound.value, eta)

    def rounds_at(self, network: Network) -> float | None:
        return penalties(network, self.form).throughput * self.time

    def to_table(self) -> dict[str, Any]:
        return {"time": self.time, **_rate_table(self.learning_rate), **self.form.to_table()}

    @classmethod
    def from_table(cls, table: Table, constants: LearningConstants | None) -> Self:
        time = table.take("time", float)
        return cls(_given(constants, table), time, _rate_from(table), Form.from_table(table))


class OfNetworkAlone:
    """The parts of an objective that knows neither constants nor a learning rate."""

    name: ClassVar[str]

    @property
    def constants(self) -> LearningConstants | None:
        return None

    @property
    def learning_rate(self) -> float | None:
        return None

    def with_learning_rate(self, learning_rate: float | None) -> Self:
        if learning_rate is not None:
            raise InvalidInput(f"{self.name} does not depend on a learning rate: leave it out")
        return self

    def rounds_at(self, network: Network) -> float | None:
        return None

    def to_table(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_table(cls, table: Table, constants: LearningConstants | None) -> Self:
        return cls()


@dataclass(frozen=True)
class Throughput(OfNetworkAlone):
    r"""Rounds per unit of time, :math:`\lambda`, whatever becomes of staleness."""

    name: ClassVar[str] = "throughput"
    maximize: ClassVar[bool] = True

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network)
        return Evaluation(s.throughput, s.log_throughput_gradient, None)


def form_of(objective: Objective) -> Form:
    """The form of the bounds that an objective is about; the paper's if it does not say."""
    form = getattr(objective, "form", PAPER)
    return form if isinstance(form, Form) else PAPER


def usual_concurrency(objective: Objective, fleet: Fleet) -> int | None:
    """The tasks in flight that go with an objective that has no best number of them, if it says."""
    usual = getattr(objective, "usual_concurrency", None)
    return None if usual is None else int(usual(fleet))


def best_learning_rate(s: Penalties, constants: LearningConstants, *, rounds: float) -> float:
    r"""The learning rate that makes G least: the root of :math:`A/(T+1) = \eta^2 b + 2 \eta^3 c`.

    The right side is increasing and convex in :math:`\eta`: Newton's method from the right of the
    root, where either term alone would meet the left side. With a buffer of K, K times as much.
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
        slope = eta * (2.0 * b + 6.0 * eta * c)
        if slope == 0.0:  # so many rounds that the learning rate underflows
            break
        step = excess / slope
        eta -= step
        if abs(step) <= 1e-15 * eta:
            break
    return eta * s.form.buffer


def _check_learning_rate(learning_rate: float | None) -> None:
    if learning_rate is not None:
        check_scale("learning_rate", learning_rate)


def _given(constants: LearningConstants | None, table: Table) -> LearningConstants:
    if constants is None:
        raise InvalidFile(f"{table.where}: the objective needs a table [constants]")
    return constants


def _rate_table(learning_rate: float | None) -> dict[str, Any]:
    return {} if learning_rate is None else {"learning-rate": learning_rate}


def _rate_from(table: Table) -> float | None:
    rate: float | None = table.take("learning-rate", float, default=None)
    return rate

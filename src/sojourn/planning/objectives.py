"""What a plan can be optimised for: each objective turns a network into a number and its gradient."""

import math
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, cast, runtime_checkable

from sojourn._support.checks import check_number, check_rounds, check_scale
from sojourn._support.configuration import Table
from sojourn._support.extensions import is_extension, load_extension
from sojourn.errors import InvalidFile, InvalidInput, UnknownName, reading
from sojourn.fleet import MOST_TASKS, Fleet, Network
from sojourn.theory.bounds import (
    PAPER,
    Bound,
    Form,
    Horizon,
    Penalties,
    horizon,
    max_learning_rate,
    penalties,
    per_round,
    per_time,
    per_time_horizon,
)
from sojourn.theory.constants import LearningConstants
from sojourn.theory.energy import round_energy
from sojourn.types import FloatArray

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

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

    def to_table(self) -> dict[str, object]:
        """Plain values for TOML, without name and constants."""

    @classmethod
    def from_table(cls, table: Table, constants: LearningConstants | None) -> Self:
        """The objective that ``to_table`` wrote, taking its keys from ``table``."""


class OfLearning:
    """The parts of an objective about learning: a frozen dataclass whose fields are its parameters.

    Among them are ``constants``, ``learning_rate`` and ``form``; the others are numbers, or true or
    false, and stand in a table by their names. One whose metadata says ``required`` must stand there
    even though Python callers have a default.
    """

    name: ClassVar[str]
    maximize: ClassVar[bool] = False

    if TYPE_CHECKING:  # read-only, as the fields of frozen dataclasses are

        @property
        def constants(self) -> LearningConstants: ...
        @property
        def learning_rate(self) -> float | None: ...
        @property
        def form(self) -> Form: ...

    def __post_init__(self) -> None:
        if self.learning_rate is not None:
            check_scale("learning_rate", self.learning_rate)

    def with_learning_rate(self, learning_rate: float | None) -> Self:
        return type(self)(**{**vars(self), "learning_rate": learning_rate})

    def to_table(self) -> dict[str, object]:
        own: dict[str, object] = {_key(x): getattr(self, x.name) for x in _own_fields(type(self))}
        rate = {} if self.learning_rate is None else {"learning-rate": self.learning_rate}
        return own | rate | self.form.to_table()

    @classmethod
    def from_table(cls, table: Table, constants: LearningConstants | None) -> Self:
        if constants is None:
            raise InvalidFile(f"{table.where}: the objective needs a table [constants]")
        own: dict[str, object] = {}
        for parameter in _own_fields(cls):
            kind = bool if parameter.type is bool else float
            needed = parameter.default is MISSING or parameter.metadata.get("required")
            default: dict[str, Any] = {} if needed else {"default": parameter.default}
            own[parameter.name] = table.take(_key(parameter), kind, **default)
        own["learning_rate"] = table.take("learning-rate", float, default=None)
        return cls(**own, **{"constants": constants, "form": Form.from_table(table)})

    def _rate(self, s: Penalties, rounds: float) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        return best_learning_rate(s, self.constants, rounds=rounds)


def _own_fields(objective: type[OfLearning]) -> "list[Field[object]]":
    shared = ("constants", "learning_rate", "form")
    return [x for x in fields(cast("type[DataclassInstance]", objective)) if x.name not in shared]


def _key(parameter: "Field[object]") -> str:
    return parameter.name.replace("_", "-")


@dataclass(frozen=True)
class _Bounded(OfLearning):
    """Common to the objectives that are one of the bounds."""

    constants: LearningConstants
    learning_rate: float | None
    rounds: float
    form: Form = PAPER

    bound: ClassVar[Callable[..., Bound]]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rounds(self.rounds)

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network, self.form)
        eta = self._rate(s, self.rounds)
        bound = type(self).bound(s, self.constants, learning_rate=eta, rounds=self.rounds)
        return Evaluation(bound.value, bound.gradient / bound.value, eta)

    def rounds_at(self, network: Network) -> float | None:
        return self.rounds


@dataclass(frozen=True)
class PerRound(_Bounded):
    r"""The bound G: best model for a given number of rounds, however long they take.

    ``learning_rate`` may be ``None``: then the one that makes G least is used.

    >>> PerRound(LearningConstants(15, 1, 3, 10), learning_rate=0.01, rounds=0).name
    'per-round'
    """

    name: ClassVar[str] = "per-round"
    bound: ClassVar[Callable[..., Bound]] = per_round


@dataclass(frozen=True)
class PerTime(_Bounded):
    r"""The bound :math:`H = G/\lambda`: error and duration of a round weighed together.

    ``learning_rate`` may be ``None``: then the one that makes H least is used.
    """

    name: ClassVar[str] = "per-time"
    bound: ClassVar[Callable[..., Bound]] = per_time


class ToAccuracy(OfLearning):
    """The parts of an objective about the rounds to an accuracy, within the proof if ``guaranteed``."""

    if TYPE_CHECKING:

        @property
        def guaranteed(self) -> bool: ...
        @property
        def squared_gradient_norm(self) -> float: ...

    def __post_init__(self) -> None:
        check_scale("squared_gradient_norm", self.squared_gradient_norm)
        super().__post_init__()

    def rounds_at(self, network: Network) -> float | None:
        return self._rounds(penalties(network, self.form)).value

    def _rounds(self, s: Penalties) -> Horizon:
        return horizon(
            s,
            self.constants,
            squared_gradient_norm=self.squared_gradient_norm,
            guaranteed=self.guaranteed,
            learning_rate=self.learning_rate,
        )


@dataclass(frozen=True)
class TimeToAccuracy(ToAccuracy):
    r"""Time until the mean squared gradient norm is below ``squared_gradient_norm``.

    The learning rate is the best one unless given; with ``guaranteed`` it stays below
    ``max_learning_rate``, where the bound holds.
    """

    name: ClassVar[str] = "time-to-accuracy"
    constants: LearningConstants
    squared_gradient_norm: float
    guaranteed: bool = False
    learning_rate: float | None = None
    form: Form = PAPER

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network, self.form)
        time = per_time_horizon(s, self._rounds(s))
        return Evaluation(time.value, time.gradient / time.value, time.learning_rate)


@dataclass(frozen=True)
class TimeBudget(OfLearning):
    r"""The bound G after ``time`` time units, that is with :math:`T = \lambda t` rounds."""

    name: ClassVar[str] = "time-budget"
    constants: LearningConstants
    time: float
    learning_rate: float | None = None
    form: Form = PAPER

    def __post_init__(self) -> None:
        check_scale("time", self.time)
        super().__post_init__()

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network, self.form)
        rounds = s.throughput * self.time
        eta = self._rate(s, rounds)
        bound = per_round(s, self.constants, learning_rate=eta, rounds=rounds)
        through_rounds = bound.terms["progress"] * rounds / (rounds + 1.0)
        gradient = bound.gradient - through_rounds * s.log_throughput_gradient
        return Evaluation(bound.value, gradient / bound.value, eta)

    def rounds_at(self, network: Network) -> float | None:
        return penalties(network, self.form).throughput * self.time


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

    def to_table(self) -> dict[str, object]:
        return {}

    @classmethod
    def from_table(cls, table: Table, constants: LearningConstants | None) -> Self:
        return cls()


@dataclass(frozen=True)
class Throughput(OfNetworkAlone):
    r"""Rounds per time unit, :math:`\lambda`, whatever becomes of staleness."""

    name: ClassVar[str] = "throughput"
    maximize: ClassVar[bool] = True

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network)
        return Evaluation(s.throughput, s.log_throughput_gradient, None)


def form_of(objective: Objective) -> Form:
    """The form of the bounds that an objective is about; the paper's if it does not say."""
    form = getattr(objective, "form", PAPER)
    return form if isinstance(form, Form) else PAPER


def is_guaranteed(
    objective: Objective, network: Network, learning_rate: float | None
) -> bool | None:
    """Whether a learning rate is within ``max_learning_rate``; ``None`` without it or constants."""
    if learning_rate is None or objective.constants is None:
        return None
    return learning_rate <= max_learning_rate(network, objective.constants, form_of(objective))


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


@dataclass(frozen=True)
class NoiseRate(OfNetworkAlone):
    r"""How fast gradient noise enters unbiased steps, :math:`\nu = S_1/(n^2 \lambda)`.

    Two ways to send tasks that move the mean equally fast differ in noise by :math:`\nu` alone
    (`sojourn.theory.floor.noise_rate`, where weights of clients enter), so it ranks them without
    constants of the learning problem and without a learning rate. It falls with every task in
    flight, ever more slowly, while staleness grows: it has no best concurrency, and a plan takes
    ``usual_concurrency`` = n, beyond which no policy can add a task without queueing. At m = 1
    square-root routing is best (times the weights).

    >>> from sojourn.fleet import built_in_fleet, square_root_routing
    >>> fleet = built_in_fleet("three-clusters")
    >>> round(NoiseRate().evaluate(Network(fleet, square_root_routing(fleet), 30)).value, 3)
    2.118
    """

    name: ClassVar[str] = "noise-rate"
    maximize: ClassVar[bool] = False

    def usual_concurrency(self, fleet: Fleet) -> int:
        """As many tasks as clients."""
        return min(fleet.size, MOST_TASKS)

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network)
        value = s.routing / (float(network.size) ** 2 * s.throughput)
        return Evaluation(value, s.routing_gradient / s.routing - s.log_throughput_gradient)


@dataclass(frozen=True)
class Energy(ToAccuracy):
    r"""Energy until the mean squared gradient norm is below ``squared_gradient_norm``.

    .. math:: E = e(p, m) \, T(p, m)

    with :math:`e` of ``energy_per_round`` and :math:`T` of ``rounds_to_accuracy``, at the best
    learning rate unless one is given. Without idle power it is least with one task in flight.

    >>> Energy(LearningConstants(15, 1, 3, 10), squared_gradient_norm=0.5).name
    'energy'
    """

    name: ClassVar[str] = "energy"
    guaranteed: ClassVar[bool] = False
    constants: LearningConstants
    squared_gradient_norm: float
    learning_rate: float | None = None
    server_power: float = 0.0
    form: Form = PAPER

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("server_power", self.server_power, least=0.0)

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network, self.form)
        rounds = self._rounds(s)
        value, gradient = self._energy(s, rounds)
        return Evaluation(value, gradient / value, rounds.learning_rate)

    def _energy(self, s: Penalties, rounds: Horizon) -> tuple[float, FloatArray]:
        """The energy to the accuracy, and its gradient."""
        energy = round_energy(s, server_power=self.server_power)
        if energy.value == 0.0:
            raise InvalidInput(
                "the fleet's powers are all zero: there is no energy to save. Give it powers"
            )
        gradient = energy.gradient * rounds.value + energy.value * rounds.gradient
        return energy.value * rounds.value, gradient


@dataclass(frozen=True)
class TimeAndEnergy(Energy):
    r"""Energy and time to an accuracy, weighed against each other.

    .. math:: \rho \frac{E}{E^*} + (1 - \rho) \frac{T/\lambda}{T^*}

    ``energy_share`` is :math:`\rho` in [0, 1]; ``best_energy`` and ``best_time`` are :math:`E^*` and
    :math:`T^*`, the separate optima of ``Energy`` and ``TimeToAccuracy``, so that at best the value is
    1 where both can be had at once.
    """

    name: ClassVar[str] = "time-and-energy"
    energy_share: float = field(default=0.5, metadata={"required": True})
    best_energy: float = 1.0
    best_time: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("energy_share", self.energy_share, least=0.0, most=1.0)
        check_scale("best_energy", self.best_energy)
        check_scale("best_time", self.best_time)

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network, self.form)
        rounds = self._rounds(s)
        energy, energy_gradient = self._energy(s, rounds)
        time = per_time_horizon(s, rounds)
        a, b = self.energy_share / self.best_energy, (1.0 - self.energy_share) / self.best_time
        value = a * energy + b * time.value
        gradient = a * energy_gradient + b * time.gradient
        return Evaluation(value, gradient / value, rounds.learning_rate)


OBJECTIVES: dict[str, type[Objective]] = {
    objective.name: objective
    for objective in (
        NoiseRate,
        TimeToAccuracy,
        TimeBudget,
        PerTime,
        PerRound,
        Throughput,
        Energy,
        TimeAndEnergy,
    )
}
"""The built-in objectives by name."""


def objective_to_table(objective: Objective) -> dict[str, object]:
    """An objective's table with its name: a built-in one, or ``module:Class``.

    >>> objective_to_table(Throughput())
    {'name': 'throughput'}
    """
    kind = type(objective)
    built_in = OBJECTIVES.get(objective.name) is kind
    name = objective.name if built_in else f"{kind.__module__}:{kind.__qualname__}"
    return {"name": name, **objective.to_table()}


def objective_from_table(
    table: Table, constants: LearningConstants | None, folder: Path | None = None
) -> Objective:
    """The objective that ``table`` describes; a module that it names is looked for in ``folder`` too.

    >>> objective_from_table(Table({"name": "throughput"}, "plan.toml"), None)
    Throughput()
    """
    name = table.take("name", str)
    if not is_extension(name) and name not in OBJECTIVES:
        raise InvalidFile(f"{table.where}: {UnknownName('objective', name, OBJECTIVES)}")
    with reading(table.where):
        kind: Any = OBJECTIVES.get(name) or load_extension(name, "objective", folder)
        if not hasattr(kind, "from_table"):
            raise InvalidInput(
                f"'{name}' is no objective: it has no 'from_table' to make one of a table. Name a "
                "class that has."
            )
        objective: Objective = kind.from_table(table, constants)
    table.close()
    return objective

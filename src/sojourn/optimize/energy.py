"""Objectives that count energy: to an accuracy, alone or weighed against time."""

from dataclasses import dataclass, replace
from typing import Any, Self

from sojourn.boundforms import PAPER, Form
from sojourn.bounds import Horizon, Penalties, horizon, penalties, per_time_horizon
from sojourn.checks import check_number, check_scale
from sojourn.config import Table
from sojourn.constants import LearningConstants
from sojourn.energy import RoundEnergy, round_energy
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.network import Network
from sojourn.optimize.objectives import Evaluation
from sojourn.types import FloatArray


@dataclass(frozen=True)
class Energy:
    r"""Energy until the mean squared gradient norm is below ``squared_gradient_norm``.

    .. math:: E = e(p, m) \, T(p, m)

    with :math:`e` of ``energy_per_round`` and :math:`T` of ``rounds_to_accuracy``, at the best
    learning rate unless one is given. Without idle power it is least with one task in flight.

    >>> Energy(LearningConstants(15, 1, 3, 10), squared_gradient_norm=0.5).name
    'energy'
    """

    constants: LearningConstants
    squared_gradient_norm: float
    learning_rate: float | None = None
    server_power: float = 0.0
    form: Form = PAPER

    def __post_init__(self) -> None:
        check_scale("squared_gradient_norm", self.squared_gradient_norm)
        if self.learning_rate is not None:
            check_scale("learning_rate", self.learning_rate)
        check_number("server_power", self.server_power, least=0.0)

    @property
    def name(self) -> str:
        return "energy"

    @property
    def maximize(self) -> bool:
        return False

    def with_learning_rate(self, learning_rate: float | None) -> Self:
        return replace(self, learning_rate=learning_rate)

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network, self.form)
        rounds = self._rounds(s)
        value, gradient = self._energy(s, rounds)
        return Evaluation(value, gradient / value, rounds.learning_rate)

    def rounds_at(self, network: Network) -> float | None:
        return self._rounds(penalties(network, self.form)).value

    def to_table(self) -> dict[str, Any]:
        table = {
            "squared-gradient-norm": self.squared_gradient_norm,
            "server-power": self.server_power,
        }
        rate = {} if self.learning_rate is None else {"learning-rate": self.learning_rate}
        return table | rate | self.form.to_table()

    @classmethod
    def from_table(cls, table: Table, constants: LearningConstants | None) -> Self:
        return cls(**cls._taken(table, constants))

    @classmethod
    def _taken(cls, table: Table, constants: LearningConstants | None) -> dict[str, Any]:
        if constants is None:
            raise InvalidFile(f"{table.where}: the objective needs a table [constants]")
        return {
            "constants": constants,
            "squared_gradient_norm": table.take("squared-gradient-norm", float),
            "learning_rate": table.take("learning-rate", float, default=None),
            "server_power": table.take("server-power", float, default=0.0),
            "form": Form.from_table(table),
        }

    def _rounds(self, s: Penalties) -> Horizon:
        return horizon(
            s,
            self.constants,
            squared_gradient_norm=self.squared_gradient_norm,
            learning_rate=self.learning_rate,
        )

    def _energy(self, s: Penalties, rounds: Horizon) -> tuple[float, FloatArray]:
        """The energy to the accuracy, and its gradient."""
        energy: RoundEnergy = round_energy(s, server_power=self.server_power)
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

    energy_share: float = 0.5
    best_energy: float = 1.0
    best_time: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("energy_share", self.energy_share, least=0.0, most=1.0)
        check_scale("best_energy", self.best_energy)
        check_scale("best_time", self.best_time)

    @property
    def name(self) -> str:
        return "time-and-energy"

    def evaluate(self, network: Network) -> Evaluation:
        s = penalties(network, self.form)
        rounds = self._rounds(s)
        energy, energy_gradient = self._energy(s, rounds)
        time = per_time_horizon(s, rounds)
        a, b = self.energy_share / self.best_energy, (1.0 - self.energy_share) / self.best_time
        value = a * energy + b * time.value
        gradient = a * energy_gradient + b * time.gradient
        return Evaluation(value, gradient / value, rounds.learning_rate)

    def to_table(self) -> dict[str, Any]:
        return super().to_table() | {
            "energy-share": self.energy_share,
            "best-energy": self.best_energy,
            "best-time": self.best_time,
        }

    @classmethod
    def _taken(cls, table: Table, constants: LearningConstants | None) -> dict[str, Any]:
        return super()._taken(table, constants) | {
            "energy_share": table.take("energy-share", float),
            "best_energy": table.take("best-energy", float, default=1.0),
            "best_time": table.take("best-time", float, default=1.0),
        }

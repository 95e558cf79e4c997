"""Objectives that count energy: to an accuracy, alone or weighed against time."""

from dataclasses import dataclass, field
from typing import ClassVar

from sojourn._support.checks import check_number, check_scale
from sojourn.errors import InvalidInput
from sojourn.fleet import Network
from sojourn.planning.objectives.base import Evaluation, ToAccuracy
from sojourn.theory.bounds import (
    PAPER,
    Form,
    Horizon,
    Penalties,
    penalties,
    per_time_horizon,
)
from sojourn.theory.constants import LearningConstants
from sojourn.theory.energy import RoundEnergy, round_energy
from sojourn.types import FloatArray


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

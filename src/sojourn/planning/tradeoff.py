"""The trade-off between time and energy to an accuracy."""

from dataclasses import dataclass

import numpy as np

from sojourn.boundforms import PAPER, Form
from sojourn.constants import LearningConstants
from sojourn.errors import InvalidInput
from sojourn.figure import Figure, Series, View
from sojourn.network import Fleet, Network
from sojourn.optimize.concurrency import optimize_concurrency
from sojourn.optimize.energy import Energy, TimeAndEnergy
from sojourn.optimize.objectives import Objective, TimeToAccuracy
from sojourn.optimize.routing import Progress, optimize_routing
from sojourn.optimize.solution import Solution
from sojourn.types import FloatArray


@dataclass(frozen=True, eq=False)
class EnergyFrontier:
    """For each ``energy_share`` the best network, its time and its energy, ``(points,)`` each."""

    energy_share: FloatArray
    time: FloatArray
    energy: FloatArray
    networks: tuple[Network, ...]

    def plot(self) -> Figure:
        """Energy against time, from the fastest plan to the thriftiest."""
        line = Series("time and energy", self.time, self.energy, kind="track")
        alt = (
            f"From {self.time[0]:.3g} units of time at {self.energy[0]:.3g} of energy to "
            f"{self.time[-1]:.3g} at {self.energy[-1]:.3g}."
        )
        view = View("time to the accuracy", "energy to the accuracy", (line,))
        return Figure("energy", "Faster, or with less energy", alt, (view,))


def time_and_energy(
    fleet: Fleet,
    constants: LearningConstants,
    *,
    squared_gradient_norm: float,
    energy_share: float = 0.5,
    concurrency: int | None = None,
    server_rate: float | None = None,
    server_power: float = 0.0,
    form: Form = PAPER,
    progress: Progress | None = None,
) -> TimeAndEnergy:
    """The objective that weighs energy against time, each relative to its best for this fleet.

    The separate optima are found first, at ``concurrency`` or the best one for each. Cost: two plans.
    """
    alone = TimeToAccuracy(constants, squared_gradient_norm, form=form)
    energy = Energy(constants, squared_gradient_norm, server_power=server_power, form=form)
    return TimeAndEnergy(
        constants,
        squared_gradient_norm,
        server_power=server_power,
        form=form,
        energy_share=energy_share,
        best_energy=_best(fleet, energy, concurrency, server_rate, progress).value,
        best_time=_best(fleet, alone, concurrency, server_rate, progress).value,
    )


def energy_frontier(
    fleet: Fleet,
    constants: LearningConstants,
    *,
    squared_gradient_norm: float,
    points: int = 9,
    concurrency: int | None = None,
    server_rate: float | None = None,
    server_power: float = 0.0,
    progress: Progress | None = None,
) -> EnergyFrontier:
    r"""Time and energy to an accuracy for :math:`\rho` from 0 (time alone) to 1 (energy alone).

    Routing, learning rate and, unless given, concurrency are best for each. Cost: a plan per point.

    >>> fleet = Fleet([1.0, 4.0], counts=[5, 5], power_compute=[1.0, 9.0], power_idle=[0.1, 0.1])
    >>> constants = LearningConstants(initial_gap=2.3, smoothness=10, gradient_noise=1, heterogeneity=1)
    >>> curve = energy_frontier(fleet, constants, squared_gradient_norm=0.5, points=3)
    >>> bool(np.all(np.diff(curve.time) > 0) and np.all(np.diff(curve.energy) < 0))
    True
    """
    if points < 2:
        raise InvalidInput(f"a frontier needs at least 2 points; {points} were asked for")
    alone = TimeToAccuracy(constants, squared_gradient_norm)
    energy = Energy(constants, squared_gradient_norm, server_power=server_power)
    fastest = _best(fleet, alone, concurrency, server_rate, progress)
    thriftiest = _best(fleet, energy, concurrency, server_rate, progress)
    shares = np.linspace(0.0, 1.0, points)
    between = [
        TimeAndEnergy(
            constants,
            squared_gradient_norm,
            server_power=server_power,
            energy_share=share,
            best_energy=thriftiest.value,
            best_time=fastest.value,
        )
        for share in shares[1:-1].tolist()
    ]
    found = [_best(fleet, wanted, concurrency, server_rate, progress) for wanted in between]
    networks = tuple(one.network for one in (fastest, *found, thriftiest))
    return EnergyFrontier(
        energy_share=shares,
        time=np.array([alone.evaluate(network).value for network in networks]),
        energy=np.array([energy.evaluate(network).value for network in networks]),
        networks=networks,
    )


def _best(
    fleet: Fleet,
    objective: Objective,
    concurrency: int | None,
    server_rate: float | None,
    progress: Progress | None,
) -> Solution:
    if concurrency is None:
        return optimize_concurrency(fleet, objective, server_rate=server_rate, progress=progress)
    return optimize_routing(
        fleet, concurrency, objective, server_rate=server_rate, progress=progress
    )

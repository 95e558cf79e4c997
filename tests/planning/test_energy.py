"""Energy, and energy against time: values, gradients, tables, and where their optima are."""

import numpy as np
import pytest

import sojourn as sj
from sojourn._support.configuration import Table
from sojourn.planning.objectives import (
    Energy,
    Objective,
    TimeAndEnergy,
    objective_from_table,
    objective_to_table,
)
from sojourn.planning.search.descent import LogObjective, OverRoutings
from sojourn.planning.search.routing import outline

CONSTANTS = sj.LearningConstants(15.0, 1.0, 3.0, 10.0)
OBJECTIVES = [
    Energy(CONSTANTS, 0.5),
    Energy(CONSTANTS, 5000.0, learning_rate=1e-3),
    TimeAndEnergy(CONSTANTS, 0.5, energy_share=0.3, best_energy=1e6, best_time=2e5),
    TimeAndEnergy(CONSTANTS, 0.5, energy_share=0.0, best_time=3.0),
    TimeAndEnergy(CONSTANTS, 0.5, energy_share=1.0, best_energy=3.0),
]


def fleet_of(idle=0.0):
    return sj.Fleet(
        [0.3, 1.0, 4.0],
        counts=[2, 3, 1],
        downlink=[0.1, 0.0, 2.0],
        uplink=[1.0, 0.5, 0.0],
        power_compute=[1.0, 3.0, 20.0],
        power_uplink=[0.5, 1.0, 1.0],
        power_idle=[idle, idle, 2 * idle],
    )


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
@pytest.mark.parametrize("m", [1, 6, 200])
def test_softmax_gradient_equals_central_differences(objective, m):
    fleet = fleet_of(idle=0.2)
    start = sj.Network(fleet, sj.uniform_routing(fleet), m)
    function = OverRoutings(start, LogObjective(objective))
    theta = np.array([0.1, -0.3, 0.4])
    _, gradient = function(theta)
    step = np.finfo(float).eps ** (1 / 3)
    numeric = np.array(
        [
            (function(theta + step * e)[0] - function(theta - step * e)[0]) / (2 * step)
            for e in np.eye(3)
        ]
    )
    np.testing.assert_allclose(gradient, numeric, atol=1e-6 * max(1e-3, np.abs(numeric).max()))


def test_energy_is_rounds_times_the_energy_of_a_round():
    fleet = fleet_of(idle=0.2)
    network = sj.Network(fleet, sj.uniform_routing(fleet), 6, server_rate=2.0)
    objective = Energy(CONSTANTS, 0.5, server_power=4.0)
    rounds = sj.rounds_to_accuracy(network, CONSTANTS, squared_gradient_norm=0.5)
    energy = sj.energy_per_round(network, server_power=4.0)
    evaluation = objective.evaluate(network)
    np.testing.assert_allclose(evaluation.value, rounds.value * energy.value, rtol=1e-14)
    assert evaluation.learning_rate == rounds.learning_rate
    assert objective.rounds_at(network) == rounds.value


def test_energy_and_time_meet_at_the_ends_of_their_share():
    fleet = fleet_of(idle=0.2)
    network = sj.Network(fleet, sj.uniform_routing(fleet), 6)
    energy, time = Energy(CONSTANTS, 0.5), sj.TimeToAccuracy(CONSTANTS, 0.5)
    for share, objective in ((1.0, energy), (0.0, time)):
        best = objective.evaluate(network).value
        both = TimeAndEnergy(
            CONSTANTS, 0.5, energy_share=share, best_energy=best, best_time=best
        ).evaluate(network)
        np.testing.assert_allclose(both.value, 1.0, rtol=1e-14)


@pytest.mark.parametrize("idle, alone", [(0.0, True), (5.0, False)])
def test_without_idle_power_one_task_in_flight_takes_least_energy(idle, alone):
    fleet, objective = fleet_of(idle), Energy(CONSTANTS, 0.5)
    values = [
        objective.evaluate(sj.Network(fleet, sj.uniform_routing(fleet), 2**k)).value
        for k in range(12)
    ]
    best = int(np.argmin(values))
    assert (best == 0) is alone
    assert best < 11


def test_the_best_routing_keeps_links_and_powers():
    fleet, objective = fleet_of(idle=0.2), Energy(CONSTANTS, 0.5)
    solution = sj.optimize_routing(fleet, 6, objective)
    assert solution.network.whole_fleet() == fleet
    uniform = sj.Network(fleet, sj.uniform_routing(fleet), 6)
    assert solution.value < objective.evaluate(uniform).value
    np.testing.assert_allclose(solution.value, objective.evaluate(solution.network).value)


def test_an_outline_of_many_classes_has_their_links_and_powers():
    random = np.random.default_rng(1)
    fleet = sj.Fleet(
        random.uniform(0.1, 2.0, 300),
        uplink=random.exponential(size=300),
        power_compute=random.uniform(1.0, 5.0, 300),
    )
    coarse = outline(fleet).fleet
    for name in ("uplink", "power_compute"):
        mean = coarse.counts @ coarse.columns[name]
        np.testing.assert_allclose(mean, fleet.columns[name].sum(), rtol=1e-12)


def test_energies_are_kept_by_the_name_of_their_class():
    for objective in OBJECTIVES:
        table = Table(objective_to_table(objective), "plan.toml")
        assert objective_from_table(table, CONSTANTS) == objective


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_objectives_are_written_and_read(objective):
    assert isinstance(objective, Objective)
    table = Table(objective.to_table(), "plan.toml")
    assert type(objective).from_table(table, CONSTANTS) == objective
    table.close()
    assert objective.with_learning_rate(0.25).learning_rate == 0.25


def test_what_cannot_be_is_said():
    with pytest.raises(sj.InvalidInput, match="energy_share must be"):
        TimeAndEnergy(CONSTANTS, 0.5, energy_share=1.5)
    with pytest.raises(sj.InvalidFile, match="needs a table"):
        Energy.from_table(Table({"squared-gradient-norm": 1.0}, "plan.toml"), None)
    fleet = sj.Fleet([1.0], power_compute=[0.0])
    with pytest.raises(sj.InvalidInput, match="powers are all zero"):
        Energy(CONSTANTS, 0.5).evaluate(sj.Network(fleet, [1.0], 2))

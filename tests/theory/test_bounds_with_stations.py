"""Bounds and energy of networks with links and a server: gradients, identities, and refusals."""

import math

import numpy as np
import pytest

import sojourn as sj
from sojourn.theory.bounds import penalties

CONSTANTS = sj.LearningConstants(
    initial_gap=15.0, smoothness=1.5, gradient_noise=3.0, heterogeneity=10.0
)
RATES = [0.3, 1.0, 2.0, 2.5, 7.0]
ROUTING = np.array([0.1, 0.3, 0.15, 0.25, 0.2])
LINKS = {"downlink": [0.5, 0.0, 2.0, 1.0, 0.1], "uplink": [3.0, 1.0, 0.0, 0.2, 0.7]}
POWERS = {
    "power_compute": [1.0, 2.0, 4.0, 5.0, 20.0],
    "power_uplink": [0.5, 0.7, 1.0, 0.2, 0.1],
    "power_downlink": [0.1, 0.2, 0.3, 0.4, 0.5],
    "power_idle": [0.2, 0.1, 0.3, 0.2, 1.0],
}
STEP = 3e-4
STATIONS = {
    "links": (LINKS, None),
    "uplinks": ({"uplink": LINKS["uplink"]}, None),
    "server": ({}, 1.7),
    "links and server": (LINKS, 1.7),
    "nothing": ({}, None),
}


def _penalty(name):
    return lambda network: (
        getattr(penalties(network), name),
        getattr(penalties(network), f"{name}_gradient"),
    )


def _pair(result):
    return result.value, result.gradient


CASES = {
    "penalty 2": _penalty("staleness"),
    "log throughput": lambda network: (
        math.log(penalties(network).throughput),
        penalties(network).log_throughput_gradient,
    ),
    "H": lambda network: _pair(
        sj.per_time_bound(network, CONSTANTS, learning_rate=0.01, rounds=100)
    ),
    "time": lambda network: _pair(
        sj.time_to_accuracy(network, CONSTANTS, squared_gradient_norm=0.5)
    ),
    "energy": lambda network: _pair(sj.energy_per_round(network, server_power=3.0)),
}


class Unconstrained(sj.Network):
    """A network whose routing need not sum to one, to move one client's probability alone."""

    def __init__(self, network, routing):
        for name in ("fleet", "concurrency", "server_rate"):
            object.__setattr__(self, name, getattr(network, name))
        object.__setattr__(self, "routing", routing)


def network_of(stations, m):
    links, server_rate = STATIONS[stations]
    return sj.Network(sj.Fleet(RATES, **links, **POWERS), ROUTING, m, server_rate=server_rate)


def differences(function, network):
    """Central differences of fourth order, with relative steps."""
    p, step, result = network.routing, STEP, np.empty(network.routing.size)
    for j in range(p.size):

        def at(shift, j=j):
            moved = p.copy()
            moved[j] *= 1.0 + shift
            return function(Unconstrained(network, moved))[0]

        near, far = at(step) - at(-step), at(2 * step) - at(-2 * step)
        result[j] = (8.0 * near - far) / (12.0 * step * p[j])
    return result


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("stations", STATIONS)
@pytest.mark.parametrize("m", [1, 2, 7, 30, 300])
def test_gradients_equal_central_differences(case, stations, m):
    """To 1e-8 of the largest entry, and what differences of rounded values cannot tell from zero."""
    network = network_of(stations, m)
    value, gradient = CASES[case](network)
    numeric = differences(CASES[case], network)
    rounding = 16.0 * np.finfo(float).eps * abs(value) / (STEP * ROUTING.min())
    tolerance = 1e-8 * np.abs(numeric).max() + rounding
    np.testing.assert_allclose(gradient, numeric, rtol=0, atol=tolerance)


@pytest.mark.parametrize("stations", STATIONS)
def test_staleness_weighs_the_delays_of_the_analysis(stations):
    network = network_of(stations, 12)
    weighed = (sj.analyze(network).relative_delay / ROUTING**2).sum()
    np.testing.assert_allclose(penalties(network).staleness, weighed, rtol=1e-13)


@pytest.mark.parametrize("stations", STATIONS)
@pytest.mark.parametrize("m", [1, 5, 200])
def test_energy_is_power_times_occupancy(stations, m):
    """Powers times the mean number of tasks that draw them, per time unit, over the throughput."""
    network, server_power = network_of(stations, m), 3.0
    analysis, fleet = sj.analyze(network), network.fleet
    power = fleet.power_compute @ analysis.utilization
    power += fleet.power_idle @ (1.0 - analysis.utilization)
    power += server_power * analysis.server_utilization
    rate = analysis.throughput * network.routing
    for name in ("downlink", "uplink"):
        times = fleet.columns.get(name, np.zeros(fleet.classes))
        power += fleet.columns[f"power_{name}"] @ (rate * times)
    energy = sj.energy_per_round(network, server_power=server_power)
    np.testing.assert_allclose(energy.value, power / analysis.throughput, rtol=1e-12)
    np.testing.assert_allclose(sum(energy.terms.values()), energy.value, rtol=1e-14)


def test_energy_without_idle_power_does_not_depend_on_concurrency():
    fleet = sj.Fleet(RATES, **LINKS, power_compute=POWERS["power_compute"])
    values = [sj.energy_per_round(sj.Network(fleet, ROUTING, m)).value for m in (1, 10, 1000)]
    assert values[0] == values[1] == values[2]


def test_energy_of_classes_is_that_of_their_clients():
    columns = {name: values[:2] for name, values in (LINKS | POWERS).items()}
    fleet, routing = sj.Fleet([0.1, 1.0], counts=[3, 2], **columns), np.array([0.1, 0.35])
    members = np.array([0, 0, 0, 1, 1])
    clients = fleet.select(members, counts=np.ones(5))
    a = sj.energy_per_round(sj.Network(fleet, routing, 12, server_rate=2.0))
    b = sj.energy_per_round(sj.Network(clients, routing[members], 12, server_rate=2.0))
    np.testing.assert_allclose(a.value, b.value, rtol=1e-13)
    np.testing.assert_allclose(a.gradient[members], b.gradient, rtol=1e-10)


def test_energy_needs_powers():
    network = sj.Network(sj.Fleet(RATES, **LINKS), ROUTING, 3)
    with pytest.raises(sj.InvalidInput, match="has no powers: give it one of the columns"):
        sj.energy_per_round(network)
    with pytest.raises(sj.InvalidInput, match="server_power must be at least 0"):
        sj.energy_per_round(network_of("server", 3), server_power=-1.0)


@pytest.mark.parametrize("stations", ["links", "server"])
def test_nothing_is_guaranteed_with_stations(stations):
    network = network_of(stations, 3)
    assert sj.max_learning_rate(network, CONSTANTS) == 0.0
    with pytest.raises(sj.InvalidInput, match="no learning rate is proved"):
        sj.time_to_accuracy(network, CONSTANTS, squared_gradient_norm=300.0, guaranteed=True)
    assert sj.max_learning_rate(network_of("nothing", 3), CONSTANTS) > 0.0


@pytest.mark.parametrize("m", [2, 50])
def test_a_slow_server_sets_the_pace_and_all_delays_alike(m):
    """Every task waits at the server, whoever computed it: staleness is the same for all."""
    network = sj.Network(sj.Fleet(RATES), ROUTING, m, server_rate=1e-9)
    analysis = sj.analyze(network)
    np.testing.assert_allclose(analysis.throughput, 1e-9, rtol=1e-7)
    np.testing.assert_allclose(analysis.staleness, m - 1, rtol=1e-7)

"""Exact gradients with links and a server, both engines, against differences in sixty digits."""

import math

import numpy as np
import pytest
from mpmath import mpf

import sojourn as sj
from sojourn.theory.bounds import penalties
from sojourn.theory.jackson import occupancy
from tests.reference import precise_stations as precise

CONSTANTS = sj.LearningConstants(
    initial_gap=15.0, smoothness=1.5, gradient_noise=3.0, heterogeneity=10.0
)
LINKS = {"downlink": [0.5, 0.0, 2.0, 0.1], "uplink": [3.0, 1.0, 0.0, 0.7]}
STATIONS = {
    "links": (LINKS, None),
    "uplinks": ({"uplink": LINKS["uplink"]}, None),
    "server": ({}, 1.7),
    "links and server": (LINKS, 1.7),
}
CLOSE = 1e-8


def _pair(result):
    return result.value, result.gradient


CASES = {
    "penalty 2": (
        lambda network: (penalties(network).staleness, penalties(network).staleness_gradient),
        precise.staleness,
    ),
    "log throughput": (
        lambda network: (
            math.log(penalties(network).throughput),
            penalties(network).log_throughput_gradient,
        ),
        precise.log_throughput,
    ),
    "H": (
        lambda n: _pair(sj.per_time_bound(n, CONSTANTS, learning_rate=0.01, rounds=100)),
        precise.per_time(CONSTANTS, learning_rate=0.01, rounds=100),
    ),
    "time": (
        lambda n: _pair(sj.time_to_accuracy(n, CONSTANTS, squared_gradient_norm=0.5)),
        precise.time_to_accuracy(CONSTANTS, squared_gradient_norm=0.5),
    ),
    "energy": (
        lambda n: _pair(sj.energy_per_round(n, server_power=3.0)),
        precise.energy(server_power=3.0),
    ),
}


def network_of(stations, m):
    """Four classes, of one, two, one and three clients."""
    links, server_rate = STATIONS[stations]
    fleet = sj.Fleet(
        [0.3, 1.0, 2.0, 7.0],
        [1, 2, 1, 3],
        **links,
        power_compute=[1.0, 2.0, 4.0, 20.0],
        power_uplink=[0.5, 0.7, 1.0, 0.1],
        power_downlink=[0.1, 0.2, 0.3, 0.5],
        power_idle=[0.2, 0.1, 0.3, 1.0],
    )
    return sj.Network(fleet, np.array([0.1, 0.15, 0.24, 0.12]), m, server_rate=server_rate)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("stations", STATIONS)
@pytest.mark.parametrize("m", [1, 2, 7, 100, 200])
def test_gradients_of_bounds_and_energy(case, stations, m):
    """Entry by entry; up to 101 tasks by mean values, beyond by the contour.

    A server that is always busy leaves no derivative of the throughput: 1e-12 of the value is zero.
    """
    network = network_of(stations, m)
    function, value = CASES[case]
    found, gradient = function(network)
    with precise.mp.workdps(precise.DIGITS):
        clients = precise.Clients(network)
        assert found == pytest.approx(float(value(clients, clients.routing)), rel=1e-12)
    p, expected = network.routing, precise.gradient(value, network)
    zero = 1e-12 * abs(found)
    np.testing.assert_allclose(p * gradient, p * expected, rtol=CLOSE, atol=zero)


@pytest.mark.parametrize("engine", ["mean-value", "contour"])
@pytest.mark.parametrize("stations", STATIONS)
@pytest.mark.parametrize("m", [8, 40, 400])
def test_covariances_are_derivatives_in_both_engines(engine, stations, m):
    r""":math:`p_j\, \partial E[F]/\partial p_j = \mathrm{Cov}[F, X_j + L_j] + w_j p_j E[X_s]`."""
    network = network_of(stations, m)
    weights = np.array([3.0, -1.0, 0.5, 2.0])
    tasks = occupancy(network, weights, engine=engine)
    p, counts = network.routing, network.fleet.counts
    of_each = [mpf(float(w)) for w in np.repeat(weights, counts)]
    expected = precise.gradient(precise.weighted_delay(of_each), network)
    found = (tasks.weighted_covariance + weights * p * tasks.mean_at_server) / p
    np.testing.assert_allclose(found, expected, rtol=CLOSE)


@pytest.mark.parametrize("seed", range(6))
def test_random_networks(seed):
    """Speeds over four decades, links from a thousandth to a thousand services."""
    random = np.random.default_rng(seed)
    k, m = int(random.integers(2, 7)), int(np.exp(random.uniform(0.0, np.log(400.0))))
    fleet = sj.Fleet(
        np.exp(random.uniform(-4.6, 4.6, k)),
        random.integers(1, 4, k),
        downlink=np.exp(random.uniform(-6.9, 6.9, k)),
        uplink=np.exp(random.uniform(-6.9, 6.9, k)) * (random.random(k) < 0.7),
    )
    weights = random.dirichlet(np.full(k, 2.0)) + 0.01
    rate = float(np.exp(random.uniform(-3.0, 3.0)))
    network = sj.Network(fleet, weights / (fleet.counts @ weights), m, server_rate=rate)
    s = penalties(network)
    for found, value in (
        (s.staleness_gradient, precise.staleness),
        (s.log_throughput_gradient, precise.log_throughput),
    ):
        expected = precise.gradient(value, network)
        np.testing.assert_allclose(found, expected, rtol=CLOSE, atol=CLOSE * abs(expected).max())

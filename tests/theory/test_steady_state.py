"""The steady state against enumeration, 60-digit reference values, identities and itself."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

import sojourn as sj
from sojourn._support.compiling import read_only
from sojourn.theory.jackson import steady_state
from sojourn.theory.jackson.steady_state import contour_integral
from tests.reference.enumeration import enumerate_network

rates = st.floats(1e-3, 1e3)


@st.composite
def networks(draw, most_clients=4, most_tasks=7):
    n = draw(st.integers(1, most_clients))
    mu = draw(st.lists(rates, min_size=n, max_size=n))
    weights = np.array(draw(st.lists(st.floats(0.01, 1.0), min_size=n, max_size=n)))
    return sj.Network(sj.Fleet(mu), weights / weights.sum(), draw(st.integers(1, most_tasks)))


@given(networks())
def test_means_and_throughput_equal_enumeration(network):
    expected = enumerate_network(
        list(network.fleet.service_rates), list(network.routing), network.concurrency
    )
    analysis = sj.analyze(network)
    np.testing.assert_allclose(analysis.throughput, float(expected.throughput), rtol=1e-10)
    np.testing.assert_allclose(analysis.mean_tasks, list(map(float, expected.mean)), rtol=1e-10)
    np.testing.assert_allclose(
        analysis.mean_tasks_full, list(map(float, expected.mean_full)), rtol=1e-10
    )


@given(networks())
def test_covariance_equals_enumeration(network):
    expected = enumerate_network(
        list(network.fleet.service_rates), list(network.routing), network.concurrency
    )
    second = np.array([[float(entry) for entry in row] for row in expected.second])
    mean = np.array(list(map(float, expected.mean)))
    exact = second - np.outer(mean, mean)
    scale = max(np.abs(second).max(), 1e-300)
    assert np.abs(sj.covariance(network) - exact).max() <= 1e-12 * scale


def test_reference_values(exact):
    network = sj.Network(sj.Fleet(exact["service_rates"]), exact["routing"], exact["concurrency"])
    for engine in ("auto", "mean-value", "contour"):
        analysis = sj.analyze(network, engine=engine)
        np.testing.assert_allclose(analysis.throughput, exact["throughput"], rtol=1e-10)
        np.testing.assert_allclose(analysis.mean_tasks, exact["mean_tasks"], rtol=1e-10)
        np.testing.assert_allclose(analysis.mean_tasks_full, exact["mean_tasks_full"], rtol=1e-10)
    if "second_moments" in exact:
        mean = np.array(exact["mean_tasks"])
        moments = sj.covariance(network) + np.outer(mean, mean)
        np.testing.assert_allclose(moments, exact["second_moments"], rtol=1e-10, atol=1e-14)


SIZES = [(2, 5), (2, 20), (5, 5), (30, 30), (10, 100), (100, 10), (100, 1000), (1000, 100)]


@pytest.mark.parametrize("n, m", [*SIZES, (1000, 1000), (1000, 10_000)])
@pytest.mark.parametrize("ratio", [1.0, 1e3, 1e6])
def test_engines_agree(n, m, ratio):
    random = np.random.default_rng(n * m)
    fleet = sj.Fleet(np.exp(random.uniform(0.0, np.log(ratio), n)))
    routing = np.maximum(random.dirichlet(np.ones(n)), 1e-7)
    routing /= routing.sum()
    loads = routing / fleet.service_rates
    slow = steady_state(loads, fleet.counts, m, 1 / routing, engine="mean-value")
    accurate, throughput, mean, covariance, *_ = contour_integral(
        loads, fleet.counts, m - 1, 1 / routing, 0.0, 0.0
    )
    assert accurate
    np.testing.assert_allclose(throughput, slow.throughput, rtol=1e-10)
    np.testing.assert_allclose(mean, slow.mean_tasks, rtol=1e-10)
    scale = np.abs(slow.weighted_covariance).max()
    np.testing.assert_allclose(covariance, slow.weighted_covariance, atol=1e-8 * scale)


@pytest.mark.parametrize("routing", ["uniform", "balanced", "square-root"])
def test_large_three_class_fleet_has_no_overflow(routing):
    """Where convolution returns inf or nan: rho^k and the constants leave the range of doubles."""
    fleet = sj.Fleet([0.001, 1.0, 1000.0], counts=[400, 300, 300])
    network = sj.Network(fleet, sj.named_routing(fleet, routing), 1000)
    contour = sj.analyze(network, engine="contour")
    recursion = sj.analyze(network, engine="mean-value")
    assert np.isfinite(contour.throughput)
    np.testing.assert_allclose(contour.throughput, recursion.throughput, rtol=1e-10)
    np.testing.assert_allclose(contour.mean_tasks, recursion.mean_tasks, rtol=1e-10)


@pytest.mark.parametrize("slow_clients", [1, 2, 3])
@pytest.mark.parametrize("tasks", [500.0, 1000.0, 2000.0, 4000.0, 8000.0, 16_000.0, 32_000.0])
def test_engines_agree_when_few_clients_hold_many_tasks(slow_clients, tasks):
    """A pole over a wide Gaussian: the parabola through the saddle ends where that grows again."""
    counts = np.array([slow_clients, 20_000, 30_000, 50_000])
    open_means, weights = np.array([tasks, 15.0, 5.0, 2.0]), np.array([1.0, 3.0, 10.0, 20.0])
    loads, population = open_means / (1 + open_means), int(counts @ open_means)
    accurate, throughput, mean, covariance, *_ = contour_integral(
        loads, read_only(counts), population, weights, 0.0, 0.0
    )
    slow = steady_state(loads, counts, population + 1, weights, engine="mean-value")
    assert accurate
    np.testing.assert_allclose(throughput, slow.throughput, rtol=1e-12)
    np.testing.assert_allclose(mean, slow.mean_tasks, rtol=1e-10)
    scale = np.abs(slow.weighted_covariance).max()
    np.testing.assert_allclose(covariance, slow.weighted_covariance, atol=1e-8 * scale)


def test_contour_flags_tiny_populations_and_falls_back():
    loads, counts = np.array([0.3, 0.7]), np.array([1, 1])
    accurate, *_ = contour_integral(loads, read_only(counts), 1, np.zeros(2), 0.0, 0.0)
    assert not accurate
    fallen_back = steady_state(loads, counts, 2, engine="contour")
    assert fallen_back.throughput == steady_state(loads, counts, 2).throughput


@pytest.mark.parametrize("m", [1, 2, 30, 500])
def test_classes_equal_clients_one_by_one(m):
    fleet = sj.Fleet([0.01, 0.1, 1.0], counts=[3, 1, 5])
    routing = np.array([0.02, 0.19, 0.15])
    classes = sj.Network(fleet, routing, m)
    clients = sj.Network(sj.Fleet(fleet.expand(fleet.service_rates)), fleet.expand(routing), m)
    a, b = sj.analyze(classes), sj.analyze(clients)
    np.testing.assert_allclose(a.throughput, b.throughput, rtol=1e-13)
    np.testing.assert_allclose(fleet.expand(a.mean_tasks), b.mean_tasks, rtol=1e-12)
    scale = max(1.0, m**2)
    np.testing.assert_allclose(sj.covariance(classes), sj.covariance(clients), atol=1e-13 * scale)


@given(networks(most_clients=8, most_tasks=200))
def test_identities(network):
    analysis, m = sj.analyze(network), network.concurrency
    np.testing.assert_allclose(analysis.relative_delay.sum(), m - 1, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(analysis.mean_tasks_full.sum(), m, rtol=1e-10)
    mean_over_tasks = network.routing @ analysis.staleness
    np.testing.assert_allclose(mean_over_tasks, m - 1, rtol=1e-10, atol=1e-12)
    completed = (network.fleet.service_rates * analysis.utilization).sum()
    np.testing.assert_allclose(completed, analysis.throughput, rtol=1e-10)


@given(st.lists(rates, min_size=1, max_size=20), st.integers(1, 500))
def test_balanced_routing_has_a_closed_form(mu, m):
    fleet = sj.Fleet(mu)
    analysis = sj.analyze(sj.Network(fleet, sj.balanced_routing(fleet), m))
    expected = fleet.total_rate * m / (m + fleet.size - 1)
    np.testing.assert_allclose(analysis.throughput, expected, rtol=1e-10)
    np.testing.assert_allclose(analysis.mean_tasks, (m - 1) / fleet.size, rtol=1e-9)


def test_speed_ratio_of_a_million_simply_works():
    fleet = sj.Fleet([1e-6, 1.0])
    analysis = sj.analyze(sj.Network(fleet, sj.uniform_routing(fleet), 50))
    np.testing.assert_allclose(analysis.throughput, 2e-6, rtol=1e-9)


def test_a_million_distinct_clients():
    random = np.random.default_rng(7)
    fleet = sj.Fleet(np.exp(random.uniform(0, 3, 1_000_000)))
    network = sj.Network(fleet, sj.square_root_routing(fleet), 1_000_000)
    analysis = sj.analyze(network)
    np.testing.assert_allclose(analysis.relative_delay.sum(), 999_999, rtol=1e-10)


def test_unknown_engine_names_the_nearest():
    fleet = sj.Fleet([1.0])
    with pytest.raises(sj.UnknownName, match="did you mean 'contour'"):
        sj.analyze(sj.Network(fleet, [1.0], 1), engine="contuor")

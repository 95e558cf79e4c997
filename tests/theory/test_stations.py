"""Links and a server that takes time, against enumeration, exact values, differences and itself."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import sojourn as sj
from sojourn._support.compiling import read_only
from sojourn.theory.bounds import penalties
from sojourn.theory.jackson import occupancy, steady_state
from sojourn.theory.jackson.steady_state import contour_integral, mean_value_analysis
from tests.reference.enumeration_stations import enumerate_stations

EXACT = json.loads((Path(__file__).parent.parent / "reference" / "stations.json").read_text())
CONSTANTS = sj.LearningConstants(
    initial_gap=15.0, smoothness=1.0, gradient_noise=3.0, heterogeneity=10.0
)


@st.composite
def networks(draw, most_clients=2, most_tasks=5):
    n = draw(st.integers(1, most_clients))

    def column(least, most):
        return draw(st.lists(st.floats(least, most), min_size=n, max_size=n))

    times = st.one_of(st.just(0.0), st.floats(1e-3, 1e3))
    links = [draw(st.none() | st.lists(times, min_size=n, max_size=n)) for _ in range(2)]
    weights = np.array(column(0.01, 1.0))
    return sj.Network(
        sj.Fleet(column(1e-3, 1e3), downlink=links[0], uplink=links[1]),
        weights / weights.sum(),
        draw(st.integers(1, most_tasks)),
        server_rate=draw(st.none() | st.floats(1e-3, 1e3)),
    )


def varied(n, m, *, seed, links=1.0, server=None):
    """Clients of speeds over two decades, times on links of about ``links`` services."""
    random = np.random.default_rng(seed)
    fleet = sj.Fleet(
        np.exp(random.uniform(0.0, np.log(100.0), n)),
        downlink=links * random.exponential(size=n),
        uplink=links * random.exponential(size=n) * (random.random(n) < 0.7),
    )
    p = random.dirichlet(np.full(n, 3.0)) + 0.01 / n
    return sj.Network(fleet, p / p.sum(), m, server_rate=server)


@pytest.mark.parametrize("engine", ["auto", "mean-value", "contour"])
@pytest.mark.parametrize("case", EXACT, ids=lambda case: case["name"])
def test_exact_values(case, engine):
    fleet = sj.Fleet(
        case["service_rates"], downlink=case["downlink_times"], uplink=case["uplink_times"]
    )
    network = sj.Network(
        fleet, case["routing"], case["concurrency"], server_rate=case["server_rate"]
    )
    analysis = sj.analyze(network, engine=engine)
    for name in ("throughput", "mean_tasks", "relative_delay", "mean_at_server"):
        np.testing.assert_allclose(getattr(analysis, name), case[name], rtol=1e-12)
    if analysis.mean_on_links is None:
        assert not any(case["mean_on_links"])
    else:
        np.testing.assert_allclose(analysis.mean_on_links, case["mean_on_links"], rtol=1e-12)


@settings(deadline=None)
@given(networks())
def test_everything_equals_enumeration(network):
    expected, analysis = enumerate_stations(network), sj.analyze(network)
    close = {"rtol": 1e-10, "atol": 1e-300}
    zero = np.zeros(network.fleet.classes)
    np.testing.assert_allclose(analysis.throughput, expected.throughput, **close)
    np.testing.assert_allclose(analysis.mean_tasks, expected.tasks, **close)
    np.testing.assert_allclose(analysis.mean_at_server, expected.server, **close)
    np.testing.assert_allclose(analysis.relative_delay, expected.relative_delay, **close)
    for found, exact in (
        (analysis.mean_on_downlink, expected.downlink),
        (analysis.mean_on_uplink, expected.uplink),
    ):
        np.testing.assert_allclose(zero if found is None else found, exact, **close)
    scale = max(1.0, network.concurrency**2)
    np.testing.assert_allclose(sj.covariance(network), expected.covariance, atol=1e-12 * scale)


@settings(deadline=None)
@given(networks(most_clients=8, most_tasks=300))
def test_identities(network):
    analysis, m = sj.analyze(network), network.concurrency
    np.testing.assert_allclose(analysis.relative_delay.sum(), m - 1, rtol=1e-10, atol=1e-12)
    completed = (network.fleet.service_rates * analysis.utilization).sum()
    np.testing.assert_allclose(completed, analysis.throughput, rtol=1e-10)
    tasks = occupancy(network)
    everywhere = tasks.mean_held_full.sum() + tasks.mean_at_server_full
    np.testing.assert_allclose(everywhere, m, rtol=1e-10)
    assert analysis.throughput * (1 - 1e-12) <= (network.server_rate or np.inf)


SIZES = [(3, 20), (5, 100), (30, 30), (100, 1000), (1000, 100), (1000, 1000), (50, 3000)]


@pytest.mark.parametrize("n, m", SIZES)
@pytest.mark.parametrize("links", [1e-3, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("server", [None, 0.5, 2.0])
def test_engines_agree(n, m, links, server):
    """``server`` is its rate as a multiple of the fleet's throughput without it."""
    network = varied(n, m, seed=n * m, links=links)
    if server is not None:
        rate = server * sj.analyze(network).throughput
        network = sj.Network(network.fleet, network.routing, m, server_rate=rate)
    weights = 1 / network.routing**2
    slow = occupancy(network, weights, engine="mean-value")
    fast = occupancy(network, weights, engine="contour")
    for name in ("throughput", "mean_tasks", "mean_on_links", "mean_at_server"):
        np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), rtol=1e-10)
    scale = np.abs(slow.weighted_covariance).max()
    difference = np.abs(fast.weighted_covariance - slow.weighted_covariance).max()
    assert difference <= 1e-10 * scale


@pytest.mark.parametrize("links", [0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("server", [0.0, 1.0])
def test_the_contour_itself_is_accurate_with_links(links, server):
    """Without its way out, mean-value analysis; the links of all weights' mean, and others."""
    random = np.random.default_rng(3)
    loads = np.append(random.uniform(0.1, 1.0, 40), server)
    counts, weights = read_only(np.ones(41, dtype=np.int64)), random.normal(size=41)
    for weighted in (0.0, links, -3.0 * links):
        for population in (20, 50, 500):
            accurate, *fast = contour_integral(loads, counts, population, weights, links, weighted)
            slow = mean_value_analysis(loads, counts, population, weights, links, weighted)
            assert accurate
            for ours, theirs in zip(fast, slow, strict=True):
                scale = np.abs(theirs).max()
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10 * scale)


@pytest.mark.parametrize("m", [1, 2, 30, 500])
def test_classes_equal_clients_one_by_one(m):
    fleet = sj.Fleet(
        [0.01, 0.1, 1.0],
        counts=[3, 1, 5],
        downlink=[1.0, 0.0, 3.0],
        uplink=[0.5, 20.0, 0.0],
        power_compute=[5.0, 3.0, 1.0],
        power_uplink=[1.0, 2.0, 3.0],
        power_idle=[0.5, 0.3, 0.1],
    )
    members = np.repeat(np.arange(3), fleet.counts)
    routing = np.array([0.02, 0.19, 0.15])
    classes = sj.Network(fleet, routing, m, server_rate=0.7)
    one_by_one = fleet.select(members, counts=np.ones(members.size))
    clients = sj.Network(one_by_one, routing[members], m, server_rate=0.7)
    a, b = sj.analyze(classes), sj.analyze(clients)
    np.testing.assert_allclose(a.throughput, b.throughput, rtol=1e-13)
    np.testing.assert_allclose(a.mean_at_server, b.mean_at_server, rtol=1e-12)
    for name in ("mean_tasks", "mean_on_downlink", "mean_on_uplink", "relative_delay"):
        np.testing.assert_allclose(getattr(a, name)[members], getattr(b, name), rtol=1e-12)
    s, t = penalties(classes), penalties(clients)
    np.testing.assert_allclose(s.staleness, t.staleness, rtol=1e-12)
    gradient = t.staleness_gradient
    difference = np.abs(s.staleness_gradient[members] - gradient).max()
    assert difference <= 1e-10 * np.abs(gradient).max()
    np.testing.assert_allclose(
        sj.covariance(classes), sj.covariance(clients), atol=1e-13 * max(1.0, m**2)
    )


@pytest.mark.parametrize("n, m", [(1, 1), (3, 7), (30, 30), (100, 1000), (1000, 1000)])
def test_columns_of_zeros_change_no_bit(n, m):
    random = np.random.default_rng(n + m)
    rates, p = random.uniform(0.1, 3.0, n), random.dirichlet(np.full(n, 2.0))
    plain = sj.Network(sj.Fleet(rates), p, m)
    zeros = sj.Fleet(rates, downlink=np.zeros(n), uplink=np.zeros(n), power_compute=np.ones(n))
    linked = sj.Network(zeros, p, m)
    a, b = sj.analyze(plain), sj.analyze(linked)
    for name in ("mean_tasks", "mean_tasks_full", "utilization", "relative_delay", "staleness"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert a.throughput == b.throughput
    assert b.mean_on_links is None
    assert b.mean_at_server == b.mean_at_server_full == b.server_utilization == 0.0
    s, t = penalties(plain), penalties(linked)
    for name in ("staleness", "staleness_gradient", "log_throughput_gradient"):
        np.testing.assert_array_equal(getattr(s, name), getattr(t, name))


@pytest.mark.parametrize("m", [1, 2, 30, 99, 500, 5000])
def test_links_without_time_in_the_engines_change_no_bit(m):
    random = np.random.default_rng(m)
    loads, counts, weights = random.random(50), np.ones(50, dtype=np.int64), random.random(50)
    a = steady_state(loads, counts, m, weights)
    b = steady_state(loads, counts, m, weights, links=np.zeros(50))
    assert a.throughput == b.throughput
    np.testing.assert_array_equal(a.mean_tasks, b.mean_tasks)
    np.testing.assert_array_equal(a.weighted_covariance, b.weighted_covariance)
    assert not b.mean_on_links.any()


def test_a_million_distinct_clients_with_links():
    network = varied(1_000_000, 1_000_000, seed=7, links=2.0, server=1e7)
    analysis, s = sj.analyze(network), penalties(network)
    np.testing.assert_allclose(analysis.relative_delay.sum(), 999_999, rtol=1e-10)
    assert analysis.mean_on_links.sum() > 100_000
    assert np.isfinite(s.staleness_gradient).all()


@pytest.mark.parametrize("m", [1, 3, 20, 400])
def test_one_client_with_a_link_has_a_closed_form(m):
    """One queue behind a delay: Erlang's loss formula, with the roles of both stations swapped."""
    network = sj.Network(sj.Fleet([2.0], downlink=[3.0]), [1.0], m)
    blocked = 1.0
    for number in range(1, m + 1):
        blocked = 6.0 * blocked / (number + 6.0 * blocked)
    # Of m tasks all are on the link, and the client idle, as often as Erlang's system is full.
    np.testing.assert_allclose(sj.analyze(network).throughput, 2.0 * (1 - blocked), rtol=1e-11)

"""The best routing: the paper's settings, random starts, and the paper's own descent."""

import numpy as np
import pytest

import sojourn as sj
from sojourn.planning.search.descent import lbfgs

PAPER = sj.LearningConstants(
    initial_gap=15.0, smoothness=1.0, gradient_noise=3.0, heterogeneity=10.0
)
THREE = sj.built_in_fleet("three-clusters")
PER_TIME = sj.PerTime(PAPER, 0.01, 0)
PER_ROUND = sj.PerRound(PAPER, 0.01, 0)


def value(objective, routing):
    routing = np.array(routing)
    fleet = THREE if routing.size == 3 else sj.Fleet(THREE.expand(THREE.service_rates))
    routing = routing / (fleet.counts @ routing)
    return objective.evaluate(sj.Network(fleet, routing, 30)).value


def test_three_clusters_per_time():
    solution = sj.optimize_routing(THREE, 30, PER_TIME)
    assert solution.value <= 1266.5528 * (1 + 1e-6)
    assert (
        min(a.gradient_norm for a in solution.attempts if a.value <= solution.value * (1 + 1e-9))
        < 1e-6
    )
    assert solution.is_guarantee is False
    assert sorted(solution.network.fleet.counts) == [2, 8, 10, 10]
    assert solution.network.fleet.names == ("slow", "medium", "fast, the others", "fast, 2 of 10")


def test_three_clusters_per_round():
    solution = sj.optimize_routing(THREE, 30, PER_ROUND)
    assert solution.value <= 1503.9702 * (1 + 1e-6)
    one = solution.network.routing[solution.network.fleet.counts == 1]
    np.testing.assert_allclose(one, 0.2885, atol=1e-4)


def test_points_that_the_errata_list():
    """The symmetric vector, the printed vector, and the saddle of G."""
    np.testing.assert_allclose(value(PER_TIME, [0.0068, 0.0449, 0.0487]), 1765, atol=1.0)
    np.testing.assert_allclose(value(PER_TIME, [0.00226, 0.02674, 0.07100]), 1266.81, atol=0.01)
    symmetric = lbfgs(sj.Network(THREE, sj.uniform_routing(THREE), 30), PER_ROUND)
    np.testing.assert_allclose(symmetric.value, 1508.07, atol=0.01)
    assert sj.optimize_routing(THREE, 30, PER_ROUND).value < symmetric.value


def test_twenty_clients_let_the_slowest_set_the_pace():
    solution = sj.optimize_routing(sj.built_in_fleet("twenty"), 100, PER_ROUND)
    routing = solution.network.routing
    np.testing.assert_allclose(routing[0], 0.51446, atol=1e-4)
    np.testing.assert_allclose([routing[1], routing[-1]], [0.0263, 0.0248], atol=1e-4)
    assert np.all(np.diff(routing) < 0)


def test_greatest_throughput():
    solution = sj.optimize_routing(THREE, 30, sj.Throughput())
    assert round(3000 * solution.value) == 23_191


def test_the_papers_adam_passes_the_printed_vector_and_stops_short():
    solution = sj.optimize_routing(THREE, 30, PER_TIME, method="adam")
    assert solution.value > sj.optimize_routing(THREE, 30, PER_TIME).value * 1.01


def _random_case(random):
    """A fleet with repeated or distinct speeds, a concurrency and an objective that matter."""
    n = int(random.integers(3, 11))
    kinds = int(random.integers(1, n + 1))
    speeds = np.exp(random.uniform(-1, 1, kinds) * random.choice([0.02, 0.3, 1.5]))
    kind = np.concatenate([np.arange(kinds), random.integers(0, kinds, n - kinds)])
    rates, counts = np.unique(speeds[kind], return_counts=True)
    fleet = sj.Fleet(rates, counts)
    constants = sj.LearningConstants(10 ** random.uniform(-2, 1.5), 1.0, 3.0, 10.0)
    eta = 10 ** random.uniform(-3, 0)
    objectives = [
        sj.PerTime(constants, eta, 0),
        sj.PerRound(constants, eta, 0),
        sj.TimeToAccuracy(constants, 10 ** random.uniform(-1, 1)),
        sj.TimeBudget(constants, 1000.0),
    ]
    return fleet, int(random.integers(2, 120)), objectives[int(random.integers(4))]


@pytest.mark.parametrize("case", [*range(10), 26])
def test_never_worse_than_random_starts(case):
    """A sample of the slow test below, which runs with `make test-slow`."""
    _compare_with_random_starts(case, 10)


@pytest.mark.slow
@pytest.mark.parametrize("case", range(50))
def test_never_worse_than_200_random_starts(case):
    _compare_with_random_starts(case, 200)


def _compare_with_random_starts(case, starts):
    """The random starts route to every client on its own, so they may break any symmetry."""
    random = np.random.default_rng(case)
    fleet, m, objective = _random_case(random)
    ours = sj.optimize_routing(fleet, m, objective).value
    one_by_one = sj.Fleet(fleet.expand(fleet.service_rates))
    best = np.inf
    for _ in range(starts):
        start = random.dirichlet(np.full(fleet.size, random.choice([0.3, 1.0, 3.0])))
        start = np.maximum(start, 1e-6)
        network = sj.Network(one_by_one, start / start.sum(), m)
        best = min(best, lbfgs(network, objective).value)
    assert ours <= best * (1 + 1e-6)


def test_one_client_needs_no_search():
    solution = sj.optimize_routing(sj.Fleet([2.0]), 5, PER_TIME)
    assert solution.network.routing.tolist() == [1.0]


def test_unreachable_accuracy_says_what_is_reachable():
    objective = sj.TimeToAccuracy(PAPER, 1e-4, learning_rate=0.1)
    with pytest.raises(sj.Unreachable, match="the least that any routing attains with 30 tasks"):
        sj.optimize_routing(THREE, 30, objective)


def test_accuracy_that_only_the_best_routing_reaches():
    endless = sj.optimize_routing(THREE, 30, sj.PerRound(PAPER, 0.01, 1e300))
    just = sj.TimeToAccuracy(PAPER, 8.0 * endless.value * 1.01, learning_rate=0.01)
    solution = sj.optimize_routing(THREE, 30, just)
    assert np.isfinite(solution.value)


def test_unknown_method_names_the_nearest():
    with pytest.raises(sj.UnknownName, match="did you mean 'adam'"):
        sj.optimize_routing(THREE, 30, PER_TIME, method="adamm")


def test_descents_see_how_unequal_classes_are():
    """Coordinates of equal curvature: tens of steps where thousands did not arrive."""
    logs = np.arange(-4.4, 4.7, 0.1)
    counts = np.maximum(1, 4000 * np.exp(-(logs**2) / 2)).round()
    fleet = sj.Fleet(np.exp(logs), counts)
    objective = sj.TimeToAccuracy(
        sj.LearningConstants(initial_gap=2.3, smoothness=10, gradient_noise=1, heterogeneity=1), 0.5
    )
    for routing in (sj.uniform_routing, sj.balanced_routing, sj.square_root_routing):
        ended = lbfgs(sj.Network(fleet, routing(fleet), 400), objective)
        assert ended.steps < 150
        assert ended.gradient_norm < 1e-7

"""Objectives: gradients against differences, the best learning rate, names."""

import numpy as np
import pytest

import sojourn as sj
from sojourn.planning.objectives import best_learning_rate
from sojourn.planning.search.descent import LogObjective, OverRoutings
from sojourn.theory.bounds import penalties

CONSTANTS = sj.LearningConstants(15.0, 1.0, 3.0, 10.0)
OBJECTIVES = [
    sj.PerRound(CONSTANTS, 0.01, 10),
    sj.PerRound(CONSTANTS, None, 10),
    sj.PerTime(CONSTANTS, 0.01, 10),
    sj.PerTime(CONSTANTS, None, 10),
    sj.TimeToAccuracy(CONSTANTS, 0.5),
    sj.TimeToAccuracy(CONSTANTS, 300.0, guaranteed=True),
    sj.TimeToAccuracy(CONSTANTS, 5000.0, learning_rate=1e-3),
    sj.TimeBudget(CONSTANTS, 1000.0),
    sj.TimeBudget(CONSTANTS, 1000.0, learning_rate=0.01),
    sj.Throughput(),
    sj.NoiseRate(),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
@pytest.mark.parametrize("m", [1, 6, 200])
def test_softmax_gradient_equals_central_differences(objective, m):
    fleet = sj.Fleet([0.3, 1.0, 4.0], counts=[2, 3, 1])
    function = OverRoutings(
        sj.Network(fleet, sj.uniform_routing(fleet), m), LogObjective(objective)
    )
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


@pytest.mark.parametrize("m", [1, 2, 50])
def test_best_learning_rate_minimises_the_bound(m):
    fleet = sj.built_in_fleet("three-clusters")
    network = sj.Network(fleet, sj.square_root_routing(fleet), m)
    best = best_learning_rate(penalties(network), CONSTANTS, rounds=100)

    def bound(eta):
        return sj.per_round_bound(network, CONSTANTS, learning_rate=eta, rounds=100).value

    assert bound(best) <= min(bound(best * (1 + h)) for h in (-1e-3, 1e-3))


def test_time_budget_is_the_per_round_bound_at_the_rounds_it_allows():
    fleet = sj.built_in_fleet("three-clusters")
    network = sj.Network(fleet, sj.balanced_routing(fleet), 30)
    rounds = 500.0 * sj.analyze(network).throughput
    expected = sj.per_round_bound(network, CONSTANTS, learning_rate=0.01, rounds=rounds).value
    assert sj.TimeBudget(CONSTANTS, 500.0, 0.01).evaluate(network).value == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: sj.PerRound(CONSTANTS, 0.0, 1),
        lambda: sj.PerTime(CONSTANTS, 0.1, -1),
        lambda: sj.TimeToAccuracy(CONSTANTS, 0.0),
        lambda: sj.TimeBudget(CONSTANTS, -5.0),
        lambda: sj.Throughput().with_learning_rate(0.1),
        lambda: sj.NoiseRate().with_learning_rate(0.1),
        lambda: sj.optimize_concurrency(sj.Fleet([1.0, 2.0]), sj.NoiseRate()),
    ],
)
def test_bad_arguments_get_a_sentence(make):
    with pytest.raises(sj.InvalidInput):
        make()


CLUSTERS = sj.built_in_fleet("three-clusters")


@pytest.mark.parametrize(
    "tasks, noise, staleness", [(10, 3.331, 58.6), (30, 1.930, 106.9), (90, 1.465, 251.9)]
)
def test_the_least_noise_of_routed_tasks_on_three_clusters(tasks, noise, staleness):
    """Staleness is the mean over clients of the time that a task spends with them."""
    found = sj.optimize_routing(CLUSTERS, tasks, sj.NoiseRate())
    analysis = sj.analyze(found.network)
    assert round(found.value, 3) == noise
    assert round(analysis.mean_staleness_time, 1) == staleness
    assert analysis.noise_rate == pytest.approx(found.value, rel=1e-12)


@pytest.mark.parametrize(
    "tasks, noise, staleness, in_rounds",
    [(10, 3.413, 60.8, 54), (30, 2.118, 122.0, 118), (90, 1.740, 318.4, 315)],
)
def test_square_root_routing_on_three_clusters(tasks, noise, staleness, in_rounds):
    """Staleness in rounds, divided by the throughput, leaves out the round that ends the task."""
    network = sj.Network(CLUSTERS, sj.square_root_routing(CLUSTERS), tasks)
    analysis = sj.analyze(network)
    assert round(sj.NoiseRate().evaluate(network).value, 3) == noise
    assert round(analysis.mean_staleness_time, 1) == staleness
    assert round(CLUSTERS.counts @ analysis.staleness / 30 / analysis.throughput) == in_rounds


def test_with_one_task_square_root_routing_has_the_least_noise():
    fleet = sj.Fleet([0.2, 1.0, 7.0, 9.0], counts=[1, 4, 2, 3])
    found = sj.optimize_routing(fleet, 1, sj.NoiseRate())
    np.testing.assert_allclose(
        found.network.client_routing, fleet.expand(sj.square_root_routing(fleet)), rtol=1e-4
    )


def test_a_plan_of_least_noise_has_as_many_tasks_as_clients():
    plan = sj.plan(sj.Fleet([0.5, 2.0], counts=[3, 4]), sj.NoiseRate())
    assert plan.concurrency == 7
    assert plan.learning_rate is None
    assert plan.is_guarantee is None

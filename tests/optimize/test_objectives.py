"""Objectives: gradients against differences, the best learning rate, names."""

import numpy as np
import pytest

import sojourn as sj
from sojourn.bounds import penalties
from sojourn.optimize.descent import LogObjective, OverRoutings
from sojourn.optimize.objectives import best_learning_rate

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
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
@pytest.mark.parametrize("m", [1, 6, 200])
def test_softmax_gradient_equals_central_differences(objective, m):
    fleet = sj.Fleet([0.3, 1.0, 4.0], counts=[2, 3, 1])
    function = OverRoutings(fleet, m, LogObjective(objective))
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
    ],
)
def test_bad_arguments_get_a_sentence(make):
    with pytest.raises(sj.InvalidInput):
        make()

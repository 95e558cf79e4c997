"""What a client is worth, against a full search without it or with it twice as fast."""

import numpy as np
import pytest

import sojourn as sj

PAPER = sj.LearningConstants(15.0, 1.0, 3.0, 10.0)
THREE = sj.built_in_fleet("three-clusters")


def test_one_row_per_class_of_the_fleet():
    plan = sj.plan(THREE, sj.PerTime(PAPER, 0.01, 0), concurrency=30)
    worths = {worth.name: worth for worth in sj.sensitivity(plan)}
    assert list(worths) == ["slow", "medium", "fast"]
    alone = sj.plan(sj.Fleet([1.0]), sj.PerTime(PAPER, 0.01, 0), concurrency=3)
    assert sj.sensitivity(alone)[0].without_one is None


@pytest.mark.parametrize("objective", [sj.PerTime(PAPER, 0.01, 0), sj.PerRound(PAPER, 0.01, 0)])
@pytest.mark.parametrize("k", [0, 1, 2])
def test_worth_is_that_of_a_full_search(objective, k):
    worth = sj.sensitivity(sj.plan(THREE, objective, concurrency=30), classes=[k])[0]
    counts = THREE.counts.copy()
    counts[k] -= 1
    without = sj.Fleet(THREE.service_rates, counts)
    faster = sj.Fleet(
        np.append(THREE.service_rates, 2 * THREE.service_rates[k]), np.append(counts, 1)
    )
    for value, fleet in ((worth.without_one, without), (worth.one_twice_as_fast, faster)):
        best = sj.optimize_routing(fleet, 30, objective).value
        np.testing.assert_allclose(value, best, rtol=1e-4)

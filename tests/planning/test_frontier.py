"""The frontier lies below every routing, and knows when there is nothing to trade."""

import numpy as np
import pytest

import sojourn as sj

PAPER = sj.LearningConstants(15.0, 1.0, 3.0, 10.0)
THREE = sj.built_in_fleet("three-clusters")


def test_frontier_is_below_every_routing_and_rises():
    plan = sj.plan(THREE, sj.PerTime(PAPER, 0.01, 0), concurrency=30)
    for penalty in ("staleness", "routing"):
        curve = sj.frontier(THREE, 30, penalty=penalty, points=12, plan=plan)
        assert set(curve.marks) == {"uniform", "balanced", "square-root", "plan"}
        assert np.all(np.diff(curve.least) > 0)
        for throughput, mark in curve.marks.values():
            slower = curve.throughput <= throughput
            assert mark >= curve.least[slower].max(initial=0.0) * (1 - 1e-6)
        greatest = sj.optimize_routing(THREE, 30, sj.Throughput()).value
        assert 0.99 * greatest < curve.throughput[-1] <= greatest


@pytest.mark.parametrize("rates, counts", [([0.5], [5]), ([1.0, 1.0 + 1e-9], [3, 2])])
def test_one_point_where_nothing_is_to_be_traded(rates, counts):
    curve = sj.frontier(sj.Fleet(rates, counts), 4, points=3)
    assert len(curve.networks) == 1
    uniform = sj.analyze(sj.Network(sj.Fleet(rates, counts), [0.2] * len(rates), 4))
    np.testing.assert_allclose(curve.throughput, [uniform.throughput], rtol=1e-6)


def test_throughput_is_that_of_the_networks():
    steps = []
    fleet = sj.Fleet(np.geomspace(0.01, 1.0, 40))
    curve = sj.frontier(fleet, 40, points=4, progress=steps.append)
    assert [sj.analyze(network).throughput for network in curve.networks] == list(curve.throughput)
    assert np.all(np.diff(curve.throughput) > 0)
    assert len(steps) == 3


def test_one_task_has_no_staleness_to_trade():
    with pytest.raises(sj.InvalidInput, match="nothing is stale"):
        sj.frontier(THREE, 1)
    assert np.all(np.diff(sj.frontier(THREE, 1, penalty="routing", points=4).least) > 0)

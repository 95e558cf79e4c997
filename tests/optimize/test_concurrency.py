"""The best concurrency, against a scan and the paper's setting."""

import pytest

import sojourn as sj

PAPER = sj.LearningConstants(15.0, 1.0, 3.0, 10.0)


@pytest.mark.parametrize(
    "eta, expected", [(0.005, 201), (0.01, 107), (0.02, 52), (0.05, 18), (0.1, 8)]
)
def test_fifty_clients_under_uniform_routing(eta, expected):
    found = sj.optimize_concurrency(
        sj.built_in_fleet("fifty"), sj.PerTime(PAPER, eta, 0), routing="uniform"
    )
    assert found.concurrency == expected
    assert len(found.tried) < 40


@pytest.mark.parametrize("eta", [0.01, 0.1])
def test_joint_optimum_beats_every_scanned_concurrency(eta):
    fleet, objective = sj.Fleet([0.3, 1.0, 3.0], counts=[2, 2, 2]), sj.PerTime(PAPER, eta, 0)
    found = sj.optimize_concurrency(fleet, objective)
    scanned = [sj.optimize_routing(fleet, m, objective).value for m in range(1, 25)]
    assert found.value <= min(scanned) * (1 + 1e-9)


def test_per_round_wants_one_task():
    found = sj.optimize_concurrency(
        sj.built_in_fleet("twenty"), sj.PerRound(PAPER, 0.01, 0), routing="balanced"
    )
    assert found.concurrency == 1


def test_throughput_has_no_best_concurrency():
    with pytest.raises(sj.InvalidInput, match="give one"):
        sj.optimize_concurrency(sj.Fleet([1.0]), sj.Throughput())


def test_unreachable_at_every_concurrency():
    objective = sj.TimeToAccuracy(PAPER, 1e-4, learning_rate=0.1)
    with pytest.raises(sj.Unreachable, match="out of reach"):
        sj.optimize_concurrency(sj.Fleet([1.0, 2.0]), objective)

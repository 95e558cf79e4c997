"""The best concurrency, against a scan and the paper's setting."""

import numpy as np
import pytest

import sojourn as sj
from sojourn.planning.search.concurrency import MOST_SEARCHES, MOST_STEPS

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


@pytest.mark.slow
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


class Counted:
    """An objective that counts how often it is evaluated."""

    def __init__(self, objective):
        self.objective, self.evaluations = objective, 0

    def __getattr__(self, name):
        return getattr(self.objective, name)

    def evaluate(self, network):
        self.evaluations += 1
        return self.objective.evaluate(network)


def test_accuracies_near_their_floor_take_bounded_work():
    """At a fixed learning rate most routings and concurrencies are out of reach: work stays bounded."""
    random = np.random.default_rng(5)
    for _ in range(4):
        fleet = sj.Fleet(np.exp(random.normal(0.0, 1.5, 6)), counts=random.integers(1, 9, 6))
        floor = sj.plan(fleet, sj.PerRound(PAPER, 0.003, 1e300), concurrency=1)
        target = 8 * floor.value * random.uniform(1.01, 1.5)
        heard = []
        found = sj.optimize_concurrency(
            fleet, sj.TimeToAccuracy(PAPER, target, learning_rate=0.003), progress=heard.append
        )
        assert np.isfinite(found.value)
        assert sum("all starts" in text for text in heard) <= MOST_SEARCHES
        assert len(heard) <= 110 + MOST_SEARCHES * (MOST_STEPS + 1)
        assert found.value == min(found.tried.values())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_plans_of_fifty_random_fleets_end_in_bounded_work(seed):
    """With and without a fixed learning rate: five hundred fleets in all, speeds up to e^18 apart."""
    check_bounded_work(seed, fleets=50)


def test_plans_of_random_fleets_end_in_bounded_work():
    check_bounded_work(seed=50, fleets=3)


def check_bounded_work(seed, fleets):
    random = np.random.default_rng([5, seed])
    for _ in range(fleets):
        k = int(random.integers(1, 6))
        spread = random.uniform(0.0, 3.0)
        fleet = sj.Fleet(np.exp(random.normal(0.0, spread, k)), counts=random.integers(1, 30, k))
        for eta in (None, 10.0 ** random.uniform(-4.0, -1.0)):
            heard = []
            goal = sj.TimeToAccuracy(PAPER, 10.0 ** random.uniform(-1.0, 1.0), learning_rate=eta)
            try:
                found = sj.optimize_concurrency(fleet, goal, progress=heard.append)
            except sj.SojournError as error:
                assert "reach" in str(error)
            else:
                assert np.isfinite(found.value)
            assert sum("all starts" in text for text in heard) <= MOST_SEARCHES
            assert len(heard) <= 110 + MOST_SEARCHES * (MOST_STEPS + 1)


def test_evaluations_are_bounded():
    random = np.random.default_rng(6)
    for eta in (0.001, 0.01, 0.1):
        fleet = sj.Fleet(np.exp(random.normal(0.0, 1.5, 5)), counts=random.integers(1, 9, 5))
        objective = Counted(sj.PerTime(PAPER, eta, 0))
        sj.optimize_concurrency(fleet, objective)
        assert objective.evaluations < 20_000


@pytest.mark.parametrize("calls", [2, 6, 18])
def test_an_interruption_gives_the_best_until_then(calls):
    fleet, objective = sj.Fleet([0.3, 1.0, 3.0], counts=[2, 2, 2]), sj.PerTime(PAPER, 0.01, 0)
    heard = []

    def progress(text):
        heard.append(text)
        if len(heard) == calls:
            raise KeyboardInterrupt

    found = sj.optimize_concurrency(fleet, objective, progress=progress)
    assert found.interrupted and len(heard) == calls
    assert found.value == objective.evaluate(found.network).value
    heard.clear()
    plan = sj.plan(fleet, objective, progress=progress)
    assert plan.provenance["inputs"]["interrupted"]
    heard.clear()
    routed = sj.optimize_routing(fleet, 7, objective, progress=progress)
    assert routed.interrupted and len(routed.attempts) == calls - 1


def test_an_interruption_before_anything_is_found_ends_the_search():
    def progress(text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sj.plan(sj.Fleet([1.0, 2.0]), sj.PerTime(PAPER, 0.01, 0), progress=progress)

"""Plans: what is left open is optimised; on disk they are exact and fully checked."""

import numpy as np
import pytest

import sojourn as sj

PAPER = sj.LearningConstants(15.0, 1.0, 3.0, 10.0)
THREE = sj.built_in_fleet("three-clusters")
OBJECTIVES = [
    sj.PerRound(PAPER, 0.01, 0),
    sj.PerTime(PAPER, None, 100),
    sj.TimeToAccuracy(PAPER, 0.5),
    sj.TimeToAccuracy(PAPER, 0.5, guaranteed=True),
    sj.TimeBudget(PAPER, 1000.0),
    sj.Throughput(),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_round_trip_through_a_file_is_exact(objective, tmp_path):
    plan = sj.plan(THREE, objective, concurrency=30)
    plan.write(tmp_path / "plan.toml")
    read = sj.Plan.read(tmp_path / "plan.toml")
    assert read.network == plan.network
    assert read.fleet == plan.fleet
    assert read.objective == plan.objective
    assert read.learning_rate == plan.learning_rate
    np.testing.assert_allclose(read.value, plan.value, rtol=1e-12)
    assert read.comparison() == plan.comparison()
    assert read.provenance["inputs"] == {"concurrency": 30}


def test_what_is_given_is_kept():
    plan = sj.plan(
        THREE, sj.PerTime(PAPER, 0.5, 0), concurrency=12, learning_rate=0.02, routing="balanced"
    )
    assert plan.concurrency == 12
    assert plan.learning_rate == 0.02
    np.testing.assert_array_equal(plan.network.routing, sj.balanced_routing(THREE))


def test_everything_open_is_at_least_as_good_as_anything_fixed():
    objective = sj.TimeToAccuracy(PAPER, 0.5)
    best = sj.plan(THREE, objective)
    for m in (1, 5, 30):
        assert best.value <= sj.plan(THREE, objective, concurrency=m).value * (1 + 1e-9)
        fixed = sj.plan(THREE, objective, concurrency=m, routing="square-root")
        assert best.value <= fixed.value


def test_client_routing_covers_every_client():
    plan = sj.plan(THREE, sj.PerTime(PAPER, 0.01, 0), concurrency=30)
    assert plan.client_routing.size == 30
    np.testing.assert_allclose(plan.client_routing.sum(), 1.0)
    assert plan.network.fleet.classes == 4
    np.testing.assert_allclose(np.sort(plan.client_routing)[-2:], 0.2184, atol=1e-4)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("concurrency = 30", "concurency = 30", "the key 'concurrency' is missing"),
        ("concurrency = 30", "concurrency = 30\nlearning-rat = 1", "did you mean 'learning-rate'"),
        ("concurrency = 30", "concurrency = 0", "at least 1"),
        ("concurrency = 30", 'concurrency = "30"', "must be a whole number"),
        ("count = 10", "count = 9", "must sum to 1 over the 29 clients"),
        ("service-rate = 0.01", "service-rate = -0.01", "positive and finite"),
        ("service-rate = 0.01", "rate = 0.01", "'service-rate' is missing"),
        ('name = "per-time"', 'name = "per-tim"', "did you mean 'per-time'"),
        ("rounds = 0", "round = 0", "the key 'rounds' is missing"),
        ("smoothness = 1", "smoothness = -1", "smoothness must be positive"),
        ("[constants]", "[constant]", "needs a table"),
        ("fleet-class = 4", "fleet-class = 7", "must number"),
        ("[objective]", "[objective", "not valid TOML"),
    ],
)
def test_bad_plan_files_say_what_is_wrong(tmp_path, old, new, message):
    path = tmp_path / "plan.toml"
    sj.plan(THREE, sj.PerTime(PAPER, 0.01, 0), concurrency=30).write(path)
    text = path.read_text().replace("fleet-class = 3", "fleet-class = 4", 1)
    text = text.replace("fleet-class = 4", "fleet-class = 3") if "fleet-class" not in old else text
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(sj.InvalidFile, match=message) as caught:
        sj.Plan.read(path)
    assert str(path) in str(caught.value)


def test_grouping_stays_within_its_tolerance_and_maps_back():
    random = np.random.default_rng(3)
    fleet = sj.Fleet(np.exp(random.uniform(0, 3, 5000)))
    grouping = sj.group_clients(fleet, tolerance=0.05)
    ratio = fleet.service_rates / grouping.fleet.service_rates[grouping.group]
    assert grouping.fleet.size == 5000
    assert grouping.fleet.classes < 100
    assert np.abs(np.log(ratio)).max() <= np.log1p(0.05)
    plan = sj.plan(grouping.fleet, sj.PerTime(PAPER, 0.01, 0), concurrency=500)
    routing = grouping.to_original(plan.client_routing)
    np.testing.assert_allclose(routing.sum(), 1.0, rtol=1e-9)
    direct = sj.optimize_routing(fleet, 500, sj.PerTime(PAPER, 0.01, 0))
    grouped = sj.PerTime(PAPER, 0.01, 0).evaluate(sj.Network(fleet, routing / routing.sum(), 500))
    assert grouped.value <= direct.value * 1.01


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


def test_sensitivity_tells_what_a_client_is_worth():
    plan = sj.plan(THREE, sj.PerTime(PAPER, 0.01, 0), concurrency=30)
    worths = {worth.name: worth for worth in sj.sensitivity(plan)}
    assert set(worths) == {"slow", "medium", "fast, the others", "fast, 2 of 10"}
    slow = worths["slow"]
    removed = sj.Fleet([0.01, 0.1, 1.0], counts=[9, 10, 10])
    best = sj.optimize_routing(removed, 30, sj.PerTime(PAPER, 0.01, 0)).value
    np.testing.assert_allclose(slow.without_one, best, rtol=1e-3)
    alone = sj.plan(sj.Fleet([1.0]), sj.PerTime(PAPER, 0.01, 0), concurrency=3)
    assert sj.sensitivity(alone)[0].without_one is None

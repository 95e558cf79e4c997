"""Plans: what is left open is optimised; on disk they are exact and fully checked."""

import numpy as np
import pytest

import sojourn as sj
from sojourn.planning.advice import queueing_cost, warnings
from sojourn.theory.floor import noise_floor

PAPER = sj.LearningConstants(15.0, 1.0, 3.0, 10.0)
THREE = sj.built_in_fleet("three-clusters")
OBJECTIVES = [
    sj.PerRound(PAPER, 0.01, 0),
    sj.PerTime(PAPER, None, 100),
    sj.TimeToAccuracy(PAPER, 0.5),
    sj.TimeToAccuracy(PAPER, 0.5, guaranteed=True),
    sj.TimeBudget(PAPER, 1000.0),
    sj.Throughput(),
    sj.NoiseRate(),
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


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_no_simple_routing_is_better_at_its_own_learning_rate(objective):
    plan = sj.plan(THREE, objective, concurrency=30)
    rows = plan.comparison()
    assert rows["plan"].value == pytest.approx(plan.value, rel=1e-12)
    for name in ("uniform", "balanced", "square-root"):
        network = sj.Network(THREE, sj.named_routing(THREE, name), 30)
        assert rows[name].value == objective.evaluate(network).value
        better = (
            rows[name].value > plan.value if objective.maximize else rows[name].value < plan.value
        )
        assert not better


def test_a_time_budget_gives_every_routing_its_own_rounds():
    rows = sj.plan(THREE, sj.TimeBudget(PAPER, 1000.0), concurrency=30).comparison()
    assert rows.pop("never-queue").value is None
    for row in rows.values():
        assert row.per_round == pytest.approx(row.value, rel=1e-12)
        assert row.per_time == pytest.approx(row.value / row.throughput, rel=1e-12)


@pytest.mark.parametrize("accuracy, concurrency", [(5.03, 1), (5.1, 2)])
def test_accuracy_out_of_reach_for_a_neighbour_is_planned(accuracy, concurrency):
    plan = sj.plan(THREE, sj.TimeToAccuracy(PAPER, accuracy, learning_rate=0.003))
    assert plan.concurrency == concurrency
    assert np.isfinite(plan.value)


def test_a_guarantee_refuses_a_learning_rate_beyond_it():
    objective = sj.TimeToAccuracy(PAPER, 0.5, guaranteed=True)
    with pytest.raises(sj.InvalidInput, match="a guarantee was asked for"):
        sj.plan(THREE, objective, concurrency=30, learning_rate=1e-4)
    assert sj.plan(THREE, objective, concurrency=30, learning_rate=1e-7).is_guarantee


def test_an_edited_learning_rate_counts_as_given(tmp_path):
    path = tmp_path / "plan.toml"
    plan = sj.plan(THREE, sj.TimeToAccuracy(PAPER, 0.5), concurrency=7)
    plan.write(path)
    text = path.read_text()
    path.write_text(text.replace(f"learning-rate = {plan.learning_rate!r}", "learning-rate = 1e-6"))
    edited = sj.Plan.read(path)
    assert edited.learning_rate == edited.objective.learning_rate == 1e-6
    assert edited.value == edited.predict().time_to_accuracy > plan.value
    assert sj.sensitivity(edited, classes=[0])[0].now == edited.value


def test_an_unnamed_fleet_comes_back_unnamed(tmp_path):
    fleet = sj.Fleet(THREE.service_rates, THREE.counts)
    plan = sj.plan(fleet, sj.PerTime(PAPER, 0.01, 0), concurrency=30)
    assert plan.network.fleet.classes > fleet.classes
    plan.write(tmp_path / "plan.toml")
    assert sj.Plan.read(tmp_path / "plan.toml").fleet == fleet


@pytest.mark.parametrize("objective", [sj.NoiseRate(), sj.TimeToAccuracy(PAPER, 5.0)], ids=str)
def test_every_plan_is_held_against_never_queueing(objective):
    plan = sj.plan(THREE, objective, concurrency=10)
    row, theory = plan.comparison()["never-queue"], sj.analyze(plan.network, "never-queue")
    assert row.noise_rate == pytest.approx(noise_floor(THREE, 10), rel=1e-12)
    assert row.throughput == pytest.approx(theory.throughput, rel=1e-12)
    noise, staleness = queueing_cost(plan)
    assert noise == pytest.approx(plan.predict().noise_rate / row.noise_rate, rel=1e-12)
    assert staleness == pytest.approx(plan.predict().staleness_time / 37.0, rel=1e-9)
    assert noise >= 1 and staleness >= 1


def test_never_queueing_is_compared_with_links_and_left_out_with_a_server():
    fleet = sj.Fleet([1.0, 2.0], counts=[2, 2], uplink=[0.5, 0.0])
    plan = sj.plan(fleet, sj.NoiseRate())
    assert plan.concurrency == 4
    row = plan.comparison()["never-queue"]
    # One task each, journeys included: 1/1.5 and 2 per time unit, above the floor.
    assert row.noise_rate == pytest.approx((2 * 1.5 + 2 * 0.5) / 16, rel=1e-12)
    assert row.noise_rate > noise_floor(fleet, 4)
    assert warnings(plan) == []
    served = sj.plan(fleet, sj.NoiseRate(), server_rate=5.0)
    assert "never-queue" not in served.comparison()
    assert queueing_cost(served) is None


def test_warnings_name_few_tasks_and_timid_steps():
    fleet = sj.Fleet([1.0, 2.0], counts=[6, 6])
    assert warnings(sj.plan(fleet, sj.NoiseRate())) == []
    (few,) = warnings(sj.plan(fleet, sj.NoiseRate(), concurrency=1))
    assert few.startswith("1 task in flight brings 12 clients")
    assert "bound" not in few  # the noise rate has none
    brave = sj.plan(fleet, sj.TimeToAccuracy(PAPER, 5000.0, learning_rate=0.1), concurrency=12)
    assert warnings(brave) == []
    (timid,) = warnings(
        sj.plan(fleet, sj.TimeToAccuracy(PAPER, 5000.0, learning_rate=0.001), concurrency=12)
    )
    assert "become unstable at m = 12" in timid

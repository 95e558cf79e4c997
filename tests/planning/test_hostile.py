"""Odd inputs: a sentence or a finite answer, never a traceback, a NaN or half a file."""

import collections
import sys

import numpy as np
import pytest

import sojourn as sj
from sojourn._support.files import replacing

CONSTANTS = sj.LearningConstants(2.0, 1.0, 1.0, 1.0)
FLEET = sj.Fleet([0.1, 1.0], counts=[3, 2], names=["slow", "fast"])
GOALS = {
    "per-round": sj.PerRound(CONSTANTS, None, 100),
    "per-time": sj.PerTime(CONSTANTS, None, 100),
    "time-to-accuracy": sj.TimeToAccuracy(CONSTANTS, 0.5),
    "guaranteed": sj.TimeToAccuracy(CONSTANTS, 0.5, guaranteed=True),
    "time-budget": sj.TimeBudget(CONSTANTS, 1000.0),
    "throughput": sj.Throughput(),
}


def finite(plan):
    numbers = [plan.value, *plan.network.routing, plan.predict().throughput]
    assert np.isfinite(numbers).all() and plan.network.routing.min() > 0
    np.testing.assert_allclose(plan.network.fleet.counts @ plan.network.routing, 1.0, rtol=1e-9)


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize(
    "rates, concurrency",
    [
        ([1.0], 1),
        ([3.0], 10**6),
        ([1e-12, 1.0], 10),
        ([1e-30, 1e30], 2),
        ([1.0, 1.0, 1.0], 1),
        ([0.5, 2.0], 10**6),
        ([0.5, 2.0], 2**40),
    ],
)
def test_odd_fleets_have_finite_plans(goal, rates, concurrency):
    finite(sj.plan(sj.Fleet(rates), GOALS[goal], concurrency=concurrency))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_least_and_the_greatest_constants(scale):
    constants = sj.LearningConstants(scale, scale, scale, scale)
    finite(sj.plan(FLEET, sj.PerTime(constants, None, 10), concurrency=5))


def test_rounds_without_end():
    finite(sj.plan(FLEET, sj.PerTime(CONSTANTS, None, 1e308), concurrency=5))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: sj.Fleet([1e-308, 1.0]), "service_rates must lie between"),
        (lambda: sj.Fleet([1.0], counts=[1e30]), "at most 9007199254740992 clients"),
        (lambda: sj.Fleet([1.0, 1.0], counts=[9e18, 9e18]), "at most 9007199254740992 clients"),
        (
            lambda: sj.optimize_routing(FLEET, 10**18, sj.Throughput()),
            "concurrency must be at most",
        ),
        (lambda: sj.LearningConstants(1e300, 1, 1, 1), "initial_gap must lie between"),
        (lambda: sj.LearningConstants(1, 1, 1, 1e300), "heterogeneity must lie between"),
        (lambda: sj.TimeToAccuracy(CONSTANTS, 1e-300), "squared_gradient_norm must lie between"),
        (lambda: sj.TimeBudget(CONSTANTS, 1e308), "time must lie between"),
        (lambda: sj.PerTime(CONSTANTS, 1e300, 0), "learning_rate must lie between"),
    ],
)
def test_sizes_beyond_reason(make, message):
    with pytest.raises(sj.InvalidInput, match=message):
        make()


def test_without_noise_the_reason_is_given():
    still = sj.TimeToAccuracy(sj.LearningConstants(1, 1, 0, 0), 0.5)
    with pytest.raises(sj.Unreachable, match="without gradient noise and heterogeneity"):
        sj.plan(FLEET, still, concurrency=3)


def test_names_survive_the_plan_file(tmp_path):
    names = ['say "hi"', "new\nline\tand \\ and # and '", "", "Ünï 端末 🚀", "[/bold]"]
    fleet = sj.Fleet([1.0, 2.0, 3.0, 4.0, 5.0], names=names)
    plan = sj.plan(fleet, GOALS["per-time"], concurrency=3)
    plan.write(tmp_path / "plan.toml")
    assert sj.Plan.read(tmp_path / "plan.toml").fleet == fleet


EDITS = [
    ("concurrency = 5", "concurrency = 5.5", "'concurrency' must be a whole number"),
    ("concurrency = 5", "concurrency = true", "'concurrency' must be a whole number"),
    ("concurrency = 5", "concurrency = -1", "concurrency must be at least 1"),
    ("concurrency = 5", "", "the key 'concurrency' is missing"),
    ("concurrency = 5", "concurency = 5", "the key 'concurrency' is missing"),
    ("concurrency = 5", "concurrency = 5\nextra = 1", "unknown key 'extra'"),
    ("count = 3", "count = 0", "counts must be whole numbers"),
    ("count = 3", "count = 99999999999999999999", "at most 9007199254740992 clients"),
    ("count = 3", "count = 4", "routing must sum to 1"),
    ("service-rate = 0.1", "service-rate = nan", "service_rates must be positive"),
    ("service-rate = 0.1", 'service-rate = "quick"', "'service-rate' must be a number"),
    ("service-rate = 0.1", "service_rate = 0.1", "the key 'service-rate' is missing"),
    ("routing = ", "routing = -", "routing must be positive"),
    ("classes = [", "classes = [1,", "classes"),
    ("[objective]", "[objectives]", "did you mean 'objective'"),
    ('name = "per-time"', 'name = "per-tme"', "did you mean 'per-time'"),
    ('name = "per-time"', "name = 3", "'name' must be text"),
    ('name = "per-time"', 'name = "os:system"', "'os:system' is no objective"),
    ("rounds = 100", "rounds = inf", "rounds must be zero or positive"),
    ("smoothness = 1.0", "smoothness = 0", "smoothness must be positive"),
    ("smoothness = 1.0", "smothness = 1.0", "the key 'smoothness' is missing"),
    ("[constants]", "[constant]", "needs a table [constants]"),
    ("\n[predicted]", "\n[[predicted]]", "'predicted' must be a table"),
    ("count = 3", "fleet-class = 7, count = 3", "must number the fleet's classes"),
    ("count = 3", "fleet-class = -7, count = 3", "must number the fleet's classes"),
    (
        "count = 3",
        "fleet-class = 99999999999999999999, count = 3",
        "must number the fleet's classes",
    ),
    ("[objective]", "[objective", "not valid TOML"),
]


@pytest.mark.parametrize("before, after, message", EDITS)
def test_plan_files_edited_by_hand(tmp_path, before, after, message):
    path = tmp_path / "plan.toml"
    sj.plan(FLEET, sj.PerTime(CONSTANTS, 0.01, 100), concurrency=5, routing="uniform").write(path)
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(sj.InvalidInput) as caught:
        sj.Plan.read(path)
    assert message in str(caught.value) and "plan.toml" in str(caught.value)


@pytest.mark.slow
def test_writing_and_reading_a_plan_is_linear_in_the_classes(tmp_path):
    def calls(classes):
        fleet = sj.Fleet(np.geomspace(0.01, 1.0, classes))
        plan = sj.plan(fleet, GOALS["per-time"], concurrency=500, routing="square-root")
        events = collections.Counter()
        sys.setprofile(lambda frame, event, argument: events.update((event,)))
        try:
            plan.write(tmp_path / "plan.toml")
            again = sj.Plan.read(tmp_path / "plan.toml")
        finally:
            sys.setprofile(None)
        assert again.network == plan.network
        return events["call"] + events["c_call"]

    calls(10)
    assert calls(1600) < 4.5 * calls(400)


@pytest.mark.parametrize("place", [".", "file/plan.toml", "/dev/null/plan.toml"])
def test_places_that_cannot_be_written_to(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(sj.InvalidFile, match="cannot be written"), replacing(place):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_interruption_leaves_the_old_plan_and_nothing_else(tmp_path):
    path = tmp_path / "plan.toml"
    sj.plan(FLEET, GOALS["per-time"], concurrency=5).write(path)
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt), replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["plan.toml"]


@pytest.mark.slow
def test_the_outline_of_a_large_fleet_loses_nothing(monkeypatch):
    """From 200 classes on the search goes by an outline; the search through all starts agrees."""
    random = np.random.default_rng(0)
    fleet = sj.Fleet(np.exp(random.normal(0.0, 1.0, 240)))
    objective = sj.PerTime(sj.LearningConstants(15.0, 1.0, 3.0, 10.0), 0.01, 0)
    by_outline = sj.optimize_routing(fleet, 300, objective)
    monkeypatch.setattr("sojourn.planning.search.routing.MANY_CLASSES", 10**9)
    assert by_outline.value <= sj.optimize_routing(fleet, 300, objective).value * (1 + 1e-6)

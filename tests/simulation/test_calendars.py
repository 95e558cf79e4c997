"""Clients that come and go, keep hours and drift: against a slow twin, and against theory."""

import math
from pathlib import Path

import numpy as np
import pytest

import sojourn as sj
from sojourn._support.estimate import Estimate
from sojourn.fleet import Fleet, Network, balanced_routing, uniform_routing
from sojourn.fleet.calendars import Drift, Hours
from sojourn.fleet.laws import Law
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.schedule import Schedule, time_spent
from sojourn.simulation.simulate import replicate, simulate
from sojourn.theory.jackson import analyze, occupancy
from tests.reference.station_simulator import simulate_stations

FLEET = Fleet(
    [0.3, 1.0, 4.0],
    counts=[2, 5, 3],
    mean_up=[6.0, 0.5, 0.0],
    mean_down=[3.0, 1.0, 0.0],
    downlink=[0.5, 0.0, 1.0],
    uplink=[1.0, 2.0, 0.0],
)
STEADY = Fleet(FLEET.service_rates, FLEET.counts)
HOURS = Hours([[(0.0, 8.0), (20.0, 24.0)], [(9.0, 17.5)], [(2.0, 24.0)]], period=24.0)
DRIFT = Drift([[(0.0, 2.0), (700.0, 0.5)], [], [(100.0, 0.1), (101.5, 3.0)]])


@pytest.mark.parametrize("policy", ["routed", "never-queue", "shuffled", "synchronous"])
@pytest.mark.parametrize("offline", ["wait", "lose"])
@pytest.mark.parametrize(
    "fleet, parts, paired",
    [
        (FLEET, {}, False),
        (FLEET, {}, True),
        (STEADY, {"hours": HOURS}, False),
        (STEADY, {"drift": DRIFT}, False),
        (FLEET, {"hours": HOURS, "drift": DRIFT}, True),
    ],
    ids=["absences", "paired", "hours", "drift", "all"],
)
def test_kernel_is_its_twin(
    policy: str, offline: str, fleet: Fleet, parts: dict[str, object], paired: bool
) -> None:
    network = Network(fleet, uniform_routing(fleet), 7, server_rate=3.0)
    laws = {
        "law": Law("lognormal"),
        "link_law": Law("erlang", stages=3),
        "server_law": Law("gamma", shape=2.0),
    }
    scenario = Scenario(policy=policy, paired=paired, offline=offline, **laws, **parts)
    twin, spent = simulate_stations(
        network,
        rounds=3000,
        policy=policy,
        seed=5,
        paired=paired,
        calendars=scenario.calendars(network, 5),
        loses=offline == "lose",
        **laws,
    )
    schedule = simulate(network, scenario, rounds=3000, seed=5)
    client, dispatched, time = zip(*twin, strict=True)
    np.testing.assert_array_equal(schedule.client, client)
    np.testing.assert_array_equal(schedule.dispatched, dispatched)
    np.testing.assert_allclose(schedule.time, time, rtol=1e-12)
    np.testing.assert_allclose(time_spent(schedule), spent, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("law", ["exponential", "deterministic"])
@pytest.mark.parametrize("offline", ["wait", "lose"])
def test_one_client_with_one_task_has_a_closed_form(law: str, offline: str) -> None:
    r"""Work that waits takes (1 + f/r)/mu, whatever the law; lost work of a fixed time s is begun again
    until it gets through: (e^{f s} - 1)(1/f + 1/r) on average, for exponential work no longer than
    before, since what is left is as long as the whole.
    """
    network = Network(Fleet([1.0], mean_up=[2.0], mean_down=[3.0]), [1.0], 1)
    found = replicate(
        network, rounds=5000, replicates=20, law=law, offline=offline, start="spread", seed=3
    )
    begun_again = law == "deterministic" and offline == "lose"
    time = (math.exp(0.5) - 1.0) * (2.0 + 3.0) if begun_again else 1.0 + 3.0 / 2.0
    assert abs(found.throughput.z_scores(1.0 / time)) < 4.0


def test_computing_is_told_apart_from_waiting() -> None:
    """A client that always has a task computes when it is there: a share of the time."""
    fleet = Fleet([1.0, 3.0], mean_up=[2.0, 0.5], mean_down=[1.0, 1.5], power_compute=[1.0, 1.0])
    network = Network(fleet, [0.5, 0.5], 2)
    share = np.array(
        [
            time_spent(simulate(network, time=500.0, policy="never-queue", seed=seed))[:, 0] / 500.0
            for seed in range(20)
        ]
    )
    assert np.abs(Estimate.from_samples(share).z_scores(fleet.availability)).max() < 4.0


def random_networks(number: int) -> list[Network]:
    random = np.random.default_rng(14)
    found = []
    for k in range(number):
        c = int(random.integers(2, 5))
        fleet = Fleet(
            np.exp(random.normal(0.0, 1.0, c)),
            random.integers(1, 5, c),
            mean_up=np.exp(random.normal(1.0, 1.0, c)),
            mean_down=np.exp(random.normal(0.0, 1.0, c)) * (random.random(c) < 0.8),
        )
        m = int(random.integers(1, 2 * fleet.size + 2))
        found.append(Network(fleet, (uniform_routing, balanced_routing)[k % 2](fleet), m))
    return found


@pytest.mark.slow
def test_the_approximation_is_near_the_simulation() -> None:
    """Absences of the order of a task: within 7 %, 1.5 % in the mean, an eighth of the product form's."""
    errors, of_the_product_form = [], []
    for network in random_networks(24):
        theory = analyze(network)
        assert not theory.is_exact
        fleet = network.fleet
        assert fleet.counts @ theory.relative_delay == pytest.approx(network.concurrency - 1)
        simulated = simulate(network, rounds=60_000, seed=1).throughput(warm_up=5000)
        errors.append(abs(theory.throughput / simulated - 1.0))
        of_the_product_form.append(abs(occupancy(network).throughput / simulated - 1.0))
    assert np.mean(errors) < 0.015 and max(errors) < 0.07, np.round(errors, 3)
    assert np.mean(errors) < 0.125 * np.mean(of_the_product_form)


@pytest.mark.parametrize("length, most", [(10.0, 0.05), (100.0, 0.25)])
def test_absences_that_last_many_tasks(length: float, most: float) -> None:
    """Nights: a product form that only counts clients as slower is off many times over."""
    random = np.random.default_rng(15)
    for seed in range(5):
        fleet = Fleet(
            np.exp(random.normal(0.0, 1.0, 3)),
            random.integers(1, 8, 3),
            mean_up=length * np.exp(random.uniform(-1.0, 1.0, 3)),
            mean_down=length * np.exp(random.uniform(-2.0, 0.5, 3)),
        )
        network = Network(fleet, uniform_routing(fleet), int(random.integers(2, 3 * fleet.size)))
        simulated = simulate(network, rounds=200_000, seed=seed).throughput(warm_up=20_000)
        assert analyze(network).throughput == pytest.approx(simulated, rel=most)
        assert occupancy(network).throughput > (1.0 + most) * simulated


def test_a_task_takes_as_long_as_the_formula_says() -> None:
    """(1 + f/r)/mu and 1 + 2 f mu/(r + f)^2, seen by a client that always has a task."""
    mu, f, r = 2.0, 0.5, 0.25
    network = Network(Fleet([mu], mean_up=[1 / f], mean_down=[1 / r]), [1.0], 1)
    runs = [np.diff(simulate(network, rounds=20_000, seed=seed).time) for seed in range(20)]
    mean = Estimate.from_samples(np.array([run.mean() for run in runs]))
    assert abs(mean.z_scores((1.0 + f / r) / mu)) < 4.0
    square = Estimate.from_samples(np.array([(run**2).mean() for run in runs]))
    scv = 1.0 + 2.0 * f * mu / (r + f) ** 2
    assert abs(square.z_scores((1.0 + scv) * ((1.0 + f / r) / mu) ** 2)) < 4.0


def test_hours_are_kept() -> None:
    network = Network(Fleet([5.0], counts=[3]), [1 / 3], 3)
    schedule = simulate(network, time=240.0, policy="never-queue", hours=HOURS, seed=2)
    hour, client = schedule.time % 24.0, schedule.client
    assert np.all((hour[client == 0] <= 8.0) | (hour[client == 0] >= 20.0))
    assert np.all((hour[client == 1] >= 9.0) & (hour[client == 1] <= 17.5))
    share = np.bincount(client) / (5.0 * 240.0)
    np.testing.assert_allclose(share, HOURS.availability, rtol=0.15)


def test_drift_changes_speeds_when_it_says() -> None:
    network = Network(Fleet([1.0, 1.0]), [0.5, 0.5], 2)
    schedule = simulate(
        network,
        time=40.0,
        policy="never-queue",
        law="deterministic",
        drift=[[(10.0, 0.5)], [(10.0, 2.0), (20.0, 0.25)]],
    )
    first, second = (schedule.time[schedule.client == i] for i in (0, 1))
    np.testing.assert_allclose(first, [*range(1, 11), *range(12, 41, 2)])
    np.testing.assert_allclose(
        second, [*range(1, 11), *np.arange(10.5, 20.1, 0.5), *range(24, 41, 4)]
    )


def test_schedule_is_read_back_and_made_in_pieces(tmp_path: Path) -> None:
    network = Network(FLEET, uniform_routing(FLEET), 7)
    parts = {"hours": HOURS, "drift": DRIFT, "offline": "lose", "seed": 2}
    schedule = simulate(network, rounds=500, **parts)
    schedule.write(tmp_path / "whole")
    simulate(network, rounds=500, folder=tmp_path / "pieces", **parts)
    for folder in ("whole", "pieces"):
        again = Schedule.read(tmp_path / folder)
        assert again.network == network
        assert again.scenario == schedule.scenario
        np.testing.assert_array_equal(again.spent, schedule.spent)
        np.testing.assert_array_equal(again.time, schedule.time)


def test_always_there_and_no_drift_change_no_bit() -> None:
    plain = Network(STEADY, uniform_routing(STEADY), 7)
    there = Fleet(STEADY.service_rates, STEADY.counts, mean_up=[1, 2, 0], mean_down=[0, 0, 0])
    a = simulate(plain, rounds=2000, seed=3)
    b = simulate(Network(there, uniform_routing(STEADY), 7), rounds=2000, seed=3)
    np.testing.assert_array_equal(a.time, b.time)
    assert analyze(Network(there, uniform_routing(STEADY), 7)).is_exact


def test_planning_and_bounds_count_the_time_away() -> None:
    away = Fleet([1.0, 2.0], mean_up=[1.0, 3.0], mean_down=[1.0, 1.0])
    slower = Fleet([0.5, 1.5])
    for routing in (sj.balanced_routing, sj.square_root_routing):
        np.testing.assert_allclose(routing(away), routing(slower))
    a, b = (sj.NoiseRate().evaluate(Network(x, [0.5, 0.5], 3)) for x in (away, slower))
    assert a.value == pytest.approx(b.value)
    constants = sj.LearningConstants(1.0, 1.0, 1.0, 1.0)
    assert sj.max_learning_rate(Network(away, [0.5, 0.5], 3), constants) == 0.0


@pytest.mark.parametrize(
    "columns, complaint",
    [
        ({"mean_up": [1.0]}, "mean_down is missing"),
        ({"mean_down": [1.0]}, "mean_up is missing"),
        ({"mean_up": [0.0], "mean_down": [1.0]}, "entry 1 is 0. Leave out"),
        ({"mean_up": [-1.0], "mean_down": [1.0]}, "mean_up must lie between"),
    ],
)
def test_columns_that_cannot_be(columns: dict[str, list[float]], complaint: str) -> None:
    with pytest.raises(sj.InvalidInput, match=complaint):
        Fleet([1.0], **columns)


@pytest.mark.parametrize(
    "build, complaint",
    [
        (lambda: Hours([], 24.0), "at least one device"),
        (lambda: Hours([[]], 24.0), "device 1 of the hours is never there"),
        (lambda: Hours([[(1.0, 2.0)], [(3.0, 2.0)]], 24.0), "intervals of device 2"),
        (lambda: Hours([[(1.0, 25.0)]], 24.0), "the period, 24"),
        (lambda: Hours([[(0.0, 1.0)]], 0.0), "period of hours must be positive"),
        (lambda: Hours([[1.0]], 24.0), "intervals"),
        (lambda: Drift([[(2.0, 1.0), (1.0, 1.0)]]), "times of a drift must rise"),
        (lambda: Drift([[(1.0, 0.0)]]), "factors of a drift must be positive"),
        (lambda: Drift([1.0]), "list per class"),
        (lambda: Scenario(offline="gone"), "wait"),
        (lambda: Scenario(hours=3), "read_hours"),
        (
            lambda: simulate(Network(STEADY, uniform_routing(STEADY), 7), rounds=9,
                             drift=[[(1.0, 2.0)]] * 2),
            "which has 3; it has 2",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(build: object, complaint: str) -> None:
    with pytest.raises(sj.InvalidInput, match=complaint):
        build()  # type: ignore[operator]


def test_hours_and_drift_from_files(tmp_path: Path) -> None:
    hours, drift = tmp_path / "hours.csv", tmp_path / "drift.csv"
    hours.write_text("device,from,until\na,0,8\nb,9,17\na,20,24\n")
    assert sj.read_hours(hours) == Hours([[(0, 8), (20, 24)], [(9, 17)]], period=24.0)
    assert sj.read_hours(hours, period=48.0).period == 48.0
    fleet = Fleet([1.0, 2.0], names=["slow", "fast"])
    drift.write_text("time,speed,class\n0,0.5,slow\n10,2,slow\n3,4,2\n")
    assert sj.read_drift(drift, fleet) == Drift([[(0.0, 0.5), (10.0, 2.0)], [(3.0, 4.0)]])
    drift.write_text("time,speed\n5,0.5\n")
    assert sj.read_drift(drift, fleet) == Drift([[(5.0, 0.5)]])
    for text, complaint in (
        ("device,from,until\na,8,7\n", "line 2: from must be 0 or more and before until"),
        ("device,from,until\na,0,8\na,7,9\n", "line 3: a comes before it has gone, at 8"),
        ("device,from,until\na,0,x\n", "line 2: until must be a number"),
        ("device,from,until\n", "no hours"),
        ("device,since,until\na,0,1\n", "since"),
    ):
        hours.write_text(text)
        with pytest.raises(sj.InvalidFile, match=complaint):
            sj.read_hours(hours)
    for text, complaint in (
        ("time,speed\n5,1\n4,1\n", "line 3: times must rise"),
        ("time,speed\n5,0\n", "line 2: .*speed must be above 0"),
        ("time,speed,class\n5,1,middle\n", "middle"),
        ("time,speed\n", "no drift"),
    ):
        drift.write_text(text)
        with pytest.raises(sj.InvalidFile, match=complaint):
            sj.read_drift(drift, fleet)

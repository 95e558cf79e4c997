"""Clients that do not count the same: bounds, noise, floor, planner and policies, by weights."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.optimize import minimize

import sojourn as sj
from sojourn._support.estimate import Estimate
from sojourn.planning.search.routing import MANY_CLASSES
from sojourn.simulation.simulate import simulate
from sojourn.theory.bounds import penalties
from sojourn.theory.floor import duty_cycles, noise_rate, target_rates
from tests.reference.enumeration import enumerate_network
from tests.theory.test_bounds import CASES
from tests.theory.test_bounds_with_stations import LINKS, RATES, ROUTING, differences

WEIGHTS = [400.0, 30.0, 100.0, 1.0, 250.0]
CONSTANTS = sj.LearningConstants(15.0, 1.5, 3.0, 10.0)
FLEET = sj.Fleet([0.1, 1.0, 4.0], counts=[3, 4, 3], weight=[500, 20, 80])
NETWORK = sj.Network(FLEET, [0.06, 0.1, 0.14], 9)


def test_relative_weights_have_mean_one() -> None:
    relative = FLEET.relative_weights
    assert FLEET.counts @ relative == pytest.approx(FLEET.size, rel=1e-14)
    np.testing.assert_allclose(relative, np.array([500, 20, 80]) * 10 / 1820, rtol=1e-14)
    bare = sj.Fleet([0.1, 1.0, 4.0], counts=[3, 4, 3])
    np.testing.assert_array_equal(bare.relative_weights, np.ones(3))


@pytest.mark.parametrize("server_rate", [None, 1.7])
def test_equal_weights_change_no_bit(server_rate: float | None) -> None:
    links = LINKS if server_rate else {}
    both = [sj.Fleet(RATES, weight=weight, **links) for weight in (None, [0.1] * 5)]
    for m in (1, 3, 7, 300):
        networks = [sj.Network(own, ROUTING, m, server_rate=server_rate) for own in both]
        for make in (penalties, sj.analyze):
            one, other = (make(network) for network in networks)
            for name in vars(one):
                if name not in ("network", "form"):
                    np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
        one, other = (sj.analyze(network) for network in networks)
        assert one.noise_rate == other.noise_rate
        assert one.mean_staleness_time == other.mean_staleness_time
        np.testing.assert_array_equal(one.weights, other.weights)
        for form in (sj.Form(), sj.Form("tight", 3)):
            rates = [sj.max_learning_rate(network, CONSTANTS, form) for network in networks]
            assert rates[0] == rates[1]
        assert sj.noise_floor(both[0], m) == sj.noise_floor(both[1], m)
        np.testing.assert_array_equal(duty_cycles(both[0], m), duty_cycles(both[1], m))


@pytest.mark.parametrize("m", [1, 2, 5])
def test_penalties_against_enumeration(m: int) -> None:
    rates, routing, weight = [0.5, 1.0, 4.0], [0.25, 0.5, 0.25], [10.0, 1.0, 4.0]
    states = enumerate_network(rates, routing, m)
    omega, p = 3 * np.array(weight) / 15, np.array(routing)
    network = sj.Network(sj.Fleet(rates, weight=weight), routing, m)
    found, mean = penalties(network), np.array([float(x) for x in states.mean])
    assert found.routing == pytest.approx((omega**2 / p).sum(), rel=1e-13)
    assert found.staleness == pytest.approx((omega**2 * mean / p**2).sum(), rel=1e-12)
    noise = (omega**2 / p).sum() / (9 * float(states.throughput))
    assert sj.analyze(network).noise_rate == pytest.approx(noise, rel=1e-12)
    assert sj.NoiseRate().evaluate(network).value == pytest.approx(noise, rel=1e-12)


@pytest.mark.parametrize("case", sorted(set(CASES) - {"log throughput"}))
@pytest.mark.parametrize("server_rate", [None, 1.7])
@pytest.mark.parametrize("m", [1, 7, 300])
def test_gradients_equal_central_differences(case: str, server_rate: float | None, m: int) -> None:
    if server_rate and case == "guaranteed time":
        pytest.skip("no rate is proved for a server that takes time")
    links = LINKS if server_rate else {}
    fleet = sj.Fleet(RATES, weight=WEIGHTS, **links)
    network = sj.Network(fleet, ROUTING, m, server_rate=server_rate)
    _, gradient = CASES[case](network)
    numeric = differences(CASES[case], network)
    np.testing.assert_allclose(gradient, numeric, atol=1e-6 * np.abs(numeric).max(), rtol=0)


@pytest.mark.parametrize("buffer", [1, 4])
@pytest.mark.parametrize("squared_gradient_norm", [0.05, 1e6])
def test_gradients_of_the_tight_bound(buffer: int, squared_gradient_norm: float) -> None:
    def time(network: sj.Network) -> tuple[float, np.ndarray]:
        options = {"guaranteed": True, "bound": "tight", "buffer": buffer}
        found = sj.time_to_accuracy(
            network, CONSTANTS, squared_gradient_norm=squared_gradient_norm, **options
        )
        return found.value, found.gradient

    network = sj.Network(sj.Fleet(RATES, weight=WEIGHTS), ROUTING, 7)
    numeric = differences(time, network)
    np.testing.assert_allclose(time(network)[1], numeric, atol=1e-6 * np.abs(numeric).max(), rtol=0)


def test_simulated_noise_per_unit_of_time_and_of_tasks_under_way() -> None:
    """Updates weighted by w_i/p_i, of noise alone: their variances are nu and S_2/n^2."""
    weights = FLEET.expand(FLEET.relative_weights) / (10 * NETWORK.client_routing)
    entering, waiting = [], []
    for seed in range(20):
        run = simulate(NETWORK, rounds=20_000, start="stationary", seed=seed)
        noise = np.random.default_rng(seed).normal(size=run.rounds) * weights[run.client]
        # At speed 1 an update counts one over the throughput.
        entering.append(float((noise**2).sum()) * run.duration / run.rounds**2)
        change = np.zeros(run.rounds + 1)
        np.add.at(change, run.dispatched, noise)
        np.add.at(change, np.arange(run.rounds), -noise)
        waiting.append(float((np.cumsum(change)[500:-2000] ** 2).mean()))
    nu = sj.analyze(NETWORK).noise_rate
    assert abs(Estimate.from_samples(np.array(entering)).z_scores(nu)) < 4.0
    staleness = penalties(NETWORK).staleness / 100.0
    assert abs(Estimate.from_samples(np.array(waiting)).z_scores(staleness)) < 4.0


@given(
    rates=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6),
    weights=st.lists(st.floats(1e-2, 1e2), min_size=6, max_size=6),
    counts=st.lists(st.integers(1, 9), min_size=6, max_size=6),
    share=st.floats(0.01, 1.2),
)
@settings(max_examples=200, deadline=None)
def test_duty_cycles_fill_the_concurrency_and_no_shift_helps(
    rates: list[float], weights: list[float], counts: list[int], share: float
) -> None:
    k = len(rates)
    fleet = sj.Fleet(rates, counts[:k], weight=weights[:k])
    m = max(1, round(share * fleet.size))
    cycles = duty_cycles(fleet, m)
    assert np.all((cycles > 0) & (cycles <= 1))
    assert fleet.counts @ cycles == pytest.approx(min(m, fleet.size), rel=1e-12)
    gain = fleet.relative_weights**2 / (cycles**2 * fleet.service_rates)
    free = cycles < 1
    if free.any():
        assert gain[free].max() == pytest.approx(gain[free].min(), rel=1e-9)
        assert np.all(gain[~free] >= gain[free].max() * (1 - 1e-9))


@pytest.mark.parametrize("links", [{}, {"downlink": [1.0, 0.0, 0.3], "uplink": [0.5, 2.0, 0.0]}])
def test_the_floor_against_a_general_optimiser(links: dict[str, list[float]]) -> None:
    fleet = sj.Fleet([0.2, 1.0, 4.0], [3, 4, 3], weight=[500, 20, 80], **links)
    mu, counts, worth = fleet.service_rates, fleet.counts, fleet.relative_weights**2
    trips = 1 / mu + sum((np.array(own) for own in links.values()), np.zeros(3))
    for m in (2, 6):
        found = minimize(
            lambda r: counts @ (worth / r) / 100,
            mu / 20,
            bounds=[(1e-4, own) for own in mu],
            constraints={"type": "ineq", "fun": lambda r, m=m: m - counts @ (r * trips)},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 2000},
        )
        assert sj.noise_floor(fleet, m) == pytest.approx(found.fun, rel=1e-5)


def test_no_routing_is_below_the_floor_and_one_task_can_reach_it() -> None:
    random = np.random.default_rng(3)
    for _ in range(300):
        k = int(random.integers(1, 7))
        weight = np.exp(random.normal(0, 1.5, k))
        fleet = sj.Fleet(
            np.exp(random.normal(0, 2, k)), random.integers(1, 6, k), weight=weight.tolist()
        )
        routing = random.dirichlet(np.full(k, 0.7)) + 1e-3
        routing /= fleet.counts @ routing
        m = int(random.integers(1, 40))
        rates = sj.analyze(sj.Network(fleet, routing, m)).rates
        assert noise_rate(fleet, rates) >= sj.noise_floor(fleet, m) * (1 - 1e-12)
        best = weight * np.sqrt(fleet.service_rates)
        one = sj.analyze(sj.Network(fleet, best / (fleet.counts @ best), 1))
        assert one.noise_rate == pytest.approx(sj.noise_floor(fleet, 1), rel=1e-12)


def test_never_queueing_attains_the_floor_in_simulation() -> None:
    network = sj.Network(FLEET, sj.uniform_routing(FLEET), 4)
    theory = sj.analyze(network, "never-queue")
    assert theory.noise_rate == sj.noise_floor(FLEET, 4)
    np.testing.assert_allclose(theory.rates, target_rates(FLEET, 4), rtol=1e-14)
    shares = []
    for seed in range(20):
        run = simulate(network, time=3000.0, policy="never-queue", seed=seed)
        shares.append(np.bincount(run.client, minlength=10) / run.duration)
    found = np.mean(shares, axis=0)
    wanted = FLEET.expand(theory.rates)
    # Who is always busy completes about a Poisson number; who rests is a task or two behind.
    assert np.all(np.abs(found - wanted) < 4 * np.sqrt(wanted / (20 * 3000.0)) + 2 / 3000.0)


def test_the_planner_finds_the_best_routing_by_weight() -> None:
    fleet = sj.Fleet([0.5, 1.0, 4.0], weight=[10, 1, 4])
    best = np.array([10, 1, 4]) * np.sqrt(fleet.service_rates)
    found = sj.optimize_routing(fleet, 1, sj.NoiseRate())
    np.testing.assert_allclose(found.network.client_routing, best / best.sum(), rtol=1e-4)
    aware = sj.optimize_routing(FLEET, 9, sj.NoiseRate())
    bare = sj.Fleet(FLEET.service_rates, FLEET.counts)
    unaware = sj.optimize_routing(bare, 9, sj.NoiseRate()).network
    assert unaware.fleet.classes == 3
    there = sj.Network(FLEET, unaware.routing, 9)
    assert aware.value < 0.9 * sj.NoiseRate().evaluate(there).value


def test_weights_are_kept_by_files_groups_and_plans(tmp_path: Path) -> None:
    (tmp_path / "fleet.csv").write_text(
        "service_rate,count,weight,site\n1.0,2,50,a\n1.01,1,50,b\n1.0,3,400,c\n"
    )
    fleet = sj.Fleet.from_csv(tmp_path / "fleet.csv")
    assert fleet.weight is not None and fleet.weight.tolist() == [50, 50, 400]
    fleet.to_csv(tmp_path / "again.csv")
    assert sj.Fleet.from_csv(tmp_path / "again.csv") == fleet
    groups = sj.group_clients(fleet, tolerance=0.1).fleet
    assert groups.weight is not None
    assert sorted(zip(groups.counts.tolist(), groups.weight.tolist(), strict=True)) == [
        (3, 50.0),
        (3, 400.0),
    ]
    plan = sj.plan(fleet, sj.NoiseRate())
    plan.write(tmp_path / "plan.toml")
    read = sj.Plan.read(tmp_path / "plan.toml")
    assert read.fleet == fleet
    assert read.predict().noise_rate == plan.predict().noise_rate


def test_many_classes_are_searched_by_way_of_an_outline() -> None:
    """Starts on the outline carry the weights over; the value is that of a fleet of two weights."""
    random = np.random.default_rng(1)
    size = MANY_CLASSES + 20
    rates = np.exp(random.normal(0, 1, size))
    weight = np.where(random.random(size) < 0.3, 9.0, 1.0)
    fleet = sj.Fleet(rates, weight=weight)
    found = sj.optimize_routing(fleet, size, sj.NoiseRate())
    start = sj.Network(fleet, weight * np.sqrt(rates) / (weight @ np.sqrt(rates)), size)
    assert found.value < sj.NoiseRate().evaluate(start).value
    assert found.value >= sj.noise_floor(fleet, size)


@pytest.mark.parametrize("wrong", [[1.0, 0.0], [1.0, -2.0], [1.0, np.inf], [1.0, 1e31]])
def test_weights_that_are_none_are_refused(wrong: list[float]) -> None:
    with pytest.raises(sj.InvalidInput, match="weight must lie between 1e-30 and 1e"):
        sj.Fleet([1.0, 2.0], weight=wrong)

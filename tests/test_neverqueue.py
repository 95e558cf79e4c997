"""The closed form of never-queue against simulation, and what every steady state must satisfy."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import sojourn as sj
from sojourn.dispatch import POLICIES
from sojourn.estimate import Estimate
from sojourn.floor import noise_floor
from sojourn.simulation.simulate import simulate

FLEETS = {
    "three-clusters": sj.built_in_fleet("three-clusters"),
    "mixed": sj.Fleet([0.3, 1.0, 1.7, 5.0], counts=[3, 2, 4, 1]),
    "alike": sj.Fleet([2.0], counts=[6]),
    "one slow": sj.Fleet([0.01, 1.0], counts=[1, 7]),
}
LAWS = ["exponential", "lognormal", "deterministic"]


def network_of(fleet: sj.Fleet, tasks: int) -> sj.Network:
    return sj.Network(fleet, sj.uniform_routing(fleet), tasks)


def simulated(network: sj.Network, law: str, pieces: int = 20) -> dict[str, Estimate]:
    """Staleness in rounds and in time, rate and busy fraction per class, from 20 pieces of a run."""
    rounds, skip = 420_000, 20_000
    run = simulate(network, rounds=rounds, law=law, policy="never-queue", seed=3)
    members = np.repeat(np.arange(network.fleet.classes), network.fleet.counts)
    sent = np.where(run.dispatched > 0, run.time[run.dispatched - 1], 0.0)
    found: dict[str, list[list[float]]] = {"staleness": [], "staleness_time": [], "rates": []}
    for piece in np.array_split(np.arange(skip, rounds), pieces):
        kind = members[run.client[piece]]
        number = np.bincount(kind, minlength=network.fleet.classes)
        time = run.time[piece[-1]] - run.time[piece[0] - 1]
        delay = np.bincount(kind, weights=run.relative_delay[piece], minlength=number.size)
        stay = np.bincount(kind, weights=run.time[piece] - sent[piece], minlength=number.size)
        found["staleness"].append((delay / number).tolist())
        found["staleness_time"].append((stay / number).tolist())
        found["rates"].append((number / network.fleet.counts / time).tolist())
    return {key: Estimate.from_samples(np.array(value)) for key, value in found.items()}


def agree(found: Estimate, theory: np.ndarray) -> bool:
    """Within four standard errors, or to what the ends of a piece matter where nothing is random."""
    close = np.isclose(found.mean, theory, rtol=2e-3, atol=1e-9)
    with np.errstate(divide="ignore", invalid="ignore"):
        return bool(np.all(close | (np.abs(found.z_scores(theory)) < 4)))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("fleet", FLEETS.values(), ids=FLEETS)
def test_everything_is_exact_with_as_many_tasks_as_clients(fleet: sj.Fleet, law: str) -> None:
    network = network_of(fleet, fleet.size)
    theory, found = sj.analyze(network, "never-queue"), simulated(network, law)
    assert agree(found["staleness"], theory.staleness)
    assert agree(found["staleness_time"], theory.staleness_time)
    assert agree(found["rates"], theory.rates)


@pytest.mark.parametrize("law", LAWS)
def test_with_fewer_tasks_times_and_the_staleness_of_the_always_busy_are_exact(law: str) -> None:
    network = network_of(FLEETS["three-clusters"], 15)
    theory, found = sj.analyze(network, "never-queue"), simulated(network, law)
    np.testing.assert_array_equal(theory.utilization == 1.0, [True, False, False])
    assert agree(found["staleness_time"], theory.staleness_time)
    slow = Estimate(found["staleness"].mean[:1], found["staleness"].standard_error[:1])
    assert agree(slow, theory.staleness[:1])
    mean = network.fleet.counts @ (theory.shares * found["staleness"].mean)
    assert mean == pytest.approx(14, rel=0.02)


@pytest.mark.parametrize(
    ("fleet", "tasks"),
    [("alike", 2), ("alike", 5), ("one slow", 3), ("one slow", 7), ("three-clusters", 28)],
)
def test_equally_fast_clients_that_rest_have_an_exact_staleness(fleet: str, tasks: int) -> None:
    network = network_of(FLEETS[fleet], tasks)
    found = simulated(network, "exponential")["staleness"]
    assert agree(found, sj.analyze(network, "never-queue").staleness)


@pytest.mark.parametrize(
    ("fleet", "tasks", "least", "most"),
    [("mixed", 2, 0.8, 1.25), ("mixed", 5, 0.7, 1.15), ("three-clusters", 15, 0.8, 1.6),
     ("three-clusters", 3, 0.5, 4.3)],
)  # fmt: skip
def test_others_are_estimates_as_good_as_the_docstring_says(
    fleet: str, tasks: int, least: float, most: float
) -> None:
    network = network_of(FLEETS[fleet], tasks)
    found = simulated(network, "exponential")["staleness"].mean
    ratio = found / sj.analyze(network, "never-queue").staleness
    assert least < ratio.min() and ratio.max() < most


@given(
    rates=st.lists(st.floats(1e-2, 1e2), min_size=1, max_size=5),
    counts=st.lists(st.integers(1, 6), min_size=5, max_size=5),
    tasks=st.integers(1, 40),
    policy=st.sampled_from(["routed", "never-queue"]),
)
@settings(max_examples=150, deadline=None)
def test_identities_of_every_theory(
    rates: list[float], counts: list[int], tasks: int, policy: str
) -> None:
    fleet = sj.Fleet(rates, counts[: len(rates)])
    network = sj.Network(fleet, sj.square_root_routing(fleet), tasks)
    found = sj.analyze(network, policy)
    busy = tasks if policy == "routed" else min(tasks, fleet.size)
    sums = {
        "tasks": (fleet.counts @ found.mean_tasks_full, busy),
        "delays": (fleet.counts @ found.relative_delay, busy - 1),
        "shares": (fleet.counts @ found.shares, 1.0),
        "weights": (fleet.counts @ (found.shares * found.weights), 1.0),
        "squares": (fleet.counts @ (found.shares * found.weights**2), found.weight_square),
        "rates": (fleet.counts @ found.rates, found.throughput),
    }
    for name, (total, expected) in sums.items():
        assert total == pytest.approx(expected, rel=1e-9, abs=1e-9), name
    assert np.all(found.staleness >= 0)
    np.testing.assert_allclose(found.rates, found.utilization * fleet.service_rates, rtol=1e-9)
    assert np.all(found.staleness_time >= (1 - 1e-9) / fleet.service_rates)
    assert found.noise_rate >= noise_floor(fleet, tasks) * (1 - 1e-12)


def test_never_queue_attains_both_floors() -> None:
    for tasks in (1, 10, 20, 30, 90):
        found = sj.analyze(network_of(FLEETS["three-clusters"], tasks), "never-queue")
        assert found.noise_rate == pytest.approx(noise_floor(FLEETS["three-clusters"], tasks))
        assert found.mean_staleness_time == pytest.approx(37.0)


def test_routed_time_with_clients_is_what_is_simulated() -> None:
    fleet = FLEETS["three-clusters"]
    network = sj.Network(fleet, sj.square_root_routing(fleet), 30)
    stays = []
    for seed in range(20):
        run = simulate(network, rounds=60_000, start="stationary", seed=seed)
        sent = np.where(run.dispatched > 0, run.time[run.dispatched - 1], np.nan)[20_000:]
        kind = np.repeat(np.arange(3), 10)[run.client[20_000:]]
        stay = run.time[20_000:] - sent
        stays.append([np.nanmean(stay[kind == k]) for k in range(3)])
    assert agree(Estimate.from_samples(np.array(stays)), sj.analyze(network).staleness_time)


def test_a_policy_without_theory_gets_a_sentence() -> None:
    network = network_of(FLEETS["mixed"], 4)
    for name in set(POLICIES) - {"routed", "never-queue"}:
        with pytest.raises(sj.InvalidInput, match=f"'{name}' on this network: there is"):
            sj.analyze(network, name)


def test_links_have_no_theory_of_never_queueing_and_count_in_routed_time() -> None:
    fleet = sj.Fleet([1.0, 2.0], uplink=[0.0, 1.5])
    network = sj.Network(fleet, sj.balanced_routing(fleet), 3, server_rate=4.0)
    with pytest.raises(sj.InvalidInput, match="without links and server"):
        sj.analyze(network, "never-queue")
    found = sj.analyze(network)
    # Little's law over all tasks, wherever they are.
    assert fleet.counts @ (found.rates * found.staleness_time) == pytest.approx(3, rel=1e-12)

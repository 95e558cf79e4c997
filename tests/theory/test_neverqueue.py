"""The closed form of never-queue against simulation, and what every steady state must satisfy."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import sojourn as sj
from sojourn._support.estimate import Estimate
from sojourn.dispatch import POLICIES
from sojourn.simulation.simulate import simulate
from sojourn.theory.floor import noise_floor, round_trip_rates

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


LINKED = sj.Fleet([0.3, 1.0, 4.0], [2, 5, 3], downlink=[0.5, 0.0, 1.0], uplink=[1.0, 2.0, 0.0])


@pytest.mark.parametrize("law", ["exponential", "deterministic"])
@pytest.mark.parametrize("tasks", [10, 25])
def test_with_links_and_a_task_for_everybody_all_is_exact(law: str, tasks: int) -> None:
    network = network_of(LINKED, tasks)
    theory, runs = sj.analyze(network, "never-queue"), []
    for seed in range(20):
        run = simulate(network, rounds=22_000, policy="never-queue", law="exponential",
                       link_law=law, seed=seed)  # fmt: skip
        since = run.time[-1] - run.time[1999]
        of = np.add.reduceat(np.bincount(run.client[2000:], minlength=10), [0, 2, 7])
        held = np.add.reduceat(run.mean_tasks(warm_up=2000), [0, 2, 7])
        runs.append([*(of / LINKED.counts / since), *(held / LINKED.counts)])
    found = Estimate.from_samples(np.array(runs))
    assert agree(found, np.concatenate([theory.rates, theory.relative_delay]))
    assert LINKED.counts @ theory.relative_delay == pytest.approx(9)
    parts = theory.mean_tasks + theory.mean_on_downlink + theory.mean_on_uplink
    np.testing.assert_allclose(parts, theory.relative_delay, rtol=1e-12)
    np.testing.assert_allclose(theory.staleness_time, 1 / round_trip_rates(LINKED), rtol=1e-12)
    # The floor needs second tasks on the way to clients that would never rest.
    assert theory.noise_rate > noise_floor(LINKED, tasks) * 1.05


def test_with_links_and_fewer_tasks_the_rates_are_those_of_the_floor() -> None:
    network = network_of(LINKED, 2)
    theory = sj.analyze(network, "never-queue")
    assert theory.noise_rate == pytest.approx(noise_floor(LINKED, 2), rel=1e-12)
    run = simulate(network, rounds=100_000, policy="never-queue", seed=1)
    of = np.add.reduceat(np.bincount(run.client, minlength=10), [0, 2, 7])
    np.testing.assert_allclose(of / LINKED.counts / run.duration, theory.rates, rtol=0.02)


def test_clients_that_are_away_at_times() -> None:
    """With a task for everybody exact; away and resting, an estimate that says so."""
    fleet = sj.Fleet([1.0, 4.0], [3, 2], mean_up=[6.0, 2.0], mean_down=[3.0, 0.0])
    theory = sj.analyze(network_of(fleet, 5), "never-queue")
    assert theory.is_exact and not sj.analyze(network_of(fleet, 3), "never-queue").is_exact
    np.testing.assert_allclose(theory.rates, [2 / 3, 4.0])
    np.testing.assert_allclose(theory.utilization, [2 / 3, 1.0])
    runs = []
    for seed in range(20):
        run = simulate(network_of(fleet, 5), time=2000.0, policy="never-queue", seed=seed)
        of = np.add.reduceat(np.bincount(run.client, minlength=5), [0, 3])
        runs.append(of / fleet.counts / 2000.0)
    assert agree(Estimate.from_samples(np.array(runs)), theory.rates)


def test_a_server_has_no_theory_of_never_queueing_and_counts_in_routed_time() -> None:
    fleet = sj.Fleet([1.0, 2.0], uplink=[0.0, 1.5])
    network = sj.Network(fleet, sj.balanced_routing(fleet), 3, server_rate=4.0)
    with pytest.raises(sj.InvalidInput, match="without a server that takes time"):
        sj.analyze(network, "never-queue")
    found = sj.analyze(network)
    # Little's law over all tasks, wherever they are.
    assert fleet.counts @ (found.rates * found.staleness_time) == pytest.approx(3, rel=1e-12)

"""Links and server in the simulator: against a slow twin, and against the exact theory."""

from pathlib import Path

import numpy as np
import pytest

from sojourn.dispatch import Chooser, Policy
from sojourn.errors import InvalidInput
from sojourn.fleet import Fleet, Network, square_root_routing, uniform_routing
from sojourn.fleet.laws import Law
from sojourn.simulation import stations
from sojourn.simulation.schedule import Schedule, energy_used, time_spent
from sojourn.simulation.simulate import replicate, simulate
from sojourn.simulation.starts import stationary_journeys
from sojourn.theory.energy import energy_per_round
from sojourn.theory.floor import noise_floor, noise_rate, round_trip_rates, target_rates
from sojourn.theory.jackson import analyze
from tests.reference.station_simulator import simulate_stations

FLEET = Fleet(
    [0.3, 1.0, 4.0],
    counts=[2, 5, 3],
    downlink=[0.5, 0.0, 1.0],
    uplink=[1.0, 2.0, 0.0],
    power_compute=[3.0, 5.0, 9.0],
    power_uplink=[1.0, 2.0, 1.0],
    power_downlink=[0.5, 0.5, 0.25],
    power_idle=[0.1, 0.2, 0.1],
)
UNIFORM = uniform_routing(FLEET)
BOTH = Network(FLEET, UNIFORM, 7, server_rate=2.0)
LINKS = Network(FLEET, UNIFORM, 7)
SERVER = Network(Fleet(FLEET.service_rates, FLEET.counts), UNIFORM, 7, server_rate=2.0)
NETWORKS = {"both": BOTH, "links": LINKS, "server": SERVER}


@pytest.mark.parametrize("policy", ["routed", "never-queue", "shuffled", "synchronous"])
@pytest.mark.parametrize("which", NETWORKS)
@pytest.mark.parametrize("paired", [False, True])
def test_kernel_is_its_twin(which: str, policy: str, paired: bool) -> None:
    laws = {
        "law": Law("lognormal"),
        "link_law": Law("erlang", stages=3),
        "server_law": Law("gamma", shape=2.0),
    }
    network = NETWORKS[which]
    settings = {"policy": policy, "seed": 5, "paired": paired}
    twin, spent = simulate_stations(network, rounds=9000, **laws, **settings)
    schedule = simulate(network, rounds=9000, **laws, **settings)
    client, dispatched, time = zip(*twin, strict=True)
    np.testing.assert_array_equal(schedule.client, client)
    np.testing.assert_array_equal(schedule.dispatched, dispatched)
    np.testing.assert_allclose(schedule.time, time, rtol=1e-12)
    np.testing.assert_allclose(time_spent(schedule), spent, rtol=1e-9, atol=1e-9)
    flying = schedule.in_flight
    if policy != "synchronous":
        assert schedule.pending_client.size == flying


def ten_networks() -> list[Network]:
    random = np.random.default_rng(8)
    networks = []
    for number in range(10):
        k = int(random.integers(1, 5))
        fleet = Fleet(
            np.exp(random.normal(0.0, 1.0, k)),
            random.integers(1, 4, k),
            downlink=random.exponential(1.0, k) * (random.random(k) < 0.7),
            uplink=random.exponential(2.0, k) * (random.random(k) < 0.7),
            power_compute=random.exponential(1.0, k),
            power_uplink=random.exponential(1.0, k),
            power_downlink=random.exponential(1.0, k),
            power_idle=random.exponential(0.1, k),
        )
        weights = random.random(k) + 0.1
        rate = None if number % 5 == 4 else float(fleet.total_rate * random.uniform(0.3, 2.0))
        tasks = int(random.integers(1, 3 * fleet.size + 2))
        routing = weights / (fleet.counts @ weights)
        networks.append(Network(fleet, routing, tasks, server_rate=rate))
    return networks


@pytest.mark.parametrize("number", range(10))
def test_simulation_agrees_with_theory_whatever_the_law_of_links(number: int) -> None:
    network = ten_networks()[number]
    theory = analyze(network)
    energy = energy_per_round(network)
    for place, law in enumerate(("exponential", "deterministic", "lognormal")):
        # Link times other than exponential do not begin in their steady state.
        warm_up = 0 if law == "exponential" else 1000
        found = replicate(
            network,
            rounds=10_000 + warm_up,
            replicates=20,
            warm_up=warm_up,
            link_law=law,
            seed=100 * number + place,
        )
        scores = [
            found.throughput.z_scores(theory.throughput),
            *np.atleast_1d(found.mean_tasks.z_scores(theory.relative_delay)),
        ]
        if place == 0:
            scores.append(found.energy.z_scores(energy.value))
        finite = np.array(scores)[np.isfinite(scores)]
        assert finite.size >= 1
        assert np.abs(finite).max() < 4.0, (law, scores)


def test_stationary_start_is_stationary() -> None:
    """Means over draws of the state at any time, for few and for many tasks."""
    random = np.random.default_rng(3)
    for m in (1, 6, 40):
        network = Network(FLEET, square_root_routing(FLEET), m, server_rate=1.5)
        theory = analyze(network)
        draws = [stationary_journeys(network, random) for _ in range(1000)]
        firsts = np.cumsum(FLEET.counts) - FLEET.counts
        for where, expected in (
            (stations.SERVICE, theory.mean_tasks_full),
            (stations.DOWNLINK, theory.throughput * network.routing * FLEET.downlink),
            (stations.UPLINK, theory.throughput * network.routing * FLEET.uplink),
            (stations.SERVER, network.routing * theory.mean_at_server_full),
        ):
            drawn = [
                np.bincount(clients[stages == where], minlength=network.size)
                for clients, stages in draws
            ]
            totals = np.add.reduceat(np.array(drawn, dtype=np.float64), firsts, axis=1)
            error = totals.std(axis=0, ddof=1) / np.sqrt(len(draws))
            difference = np.abs(totals.mean(axis=0) - FLEET.counts * expected)
            assert np.all(difference <= 4.0 * error + 1e-12)
        assert all(clients.size == stages.size == m for clients, stages in draws)


def test_never_queue_keeps_its_rates_with_links() -> None:
    for m in (3, 6, 20):
        network = Network(FLEET, UNIFORM, m)
        schedule = simulate(network, rounds=200_000, policy="never-queue", seed=1)
        counts = np.bincount(schedule.client, minlength=network.size)
        per_class = np.add.reduceat(counts, [0, 2, 7]) / FLEET.counts / schedule.duration
        np.testing.assert_allclose(per_class, target_rates(FLEET, m), rtol=0.02)
        assert noise_rate(FLEET, per_class) >= noise_floor(FLEET, m) * 0.98


def test_floor_with_links_lies_below_any_rates_that_are_possible() -> None:
    random = np.random.default_rng(0)
    for m in (1, 5, 12, 40):
        least = noise_floor(FLEET, m)
        for _ in range(500):
            rates = FLEET.service_rates * random.random(3)
            occupied = float(FLEET.counts @ (rates / round_trip_rates(FLEET)))
            rates *= min(1.0, m / occupied)
            assert noise_rate(FLEET, rates) >= least * (1 - 1e-12)
    assert noise_floor(FLEET, 10**6) == pytest.approx(noise_rate(FLEET, FLEET.service_rates))
    without = Fleet(FLEET.service_rates, FLEET.counts)
    nothing = Fleet(FLEET.service_rates, FLEET.counts, uplink=[0.0, 0.0, 0.0])
    for m in (1, 5, 9, 30):
        assert noise_floor(nothing, m) == pytest.approx(noise_floor(without, m), rel=1e-14)


def test_energy_without_links_is_read_from_the_schedule() -> None:
    fleet = Fleet([0.5, 2.0], counts=[2, 1], power_compute=[3.0, 1.0], power_idle=[0.5, 0.2])
    network = Network(fleet, uniform_routing(fleet), 4)
    found = replicate(network, rounds=5000, replicates=20, seed=4)
    assert abs(found.energy.z_scores(energy_per_round(network).value)) < 4.0
    with pytest.raises(InvalidInput, match="has no powers"):
        energy_used(simulate(Network(Fleet([1.0]), [1.0], 1), rounds=10))


def test_schedule_with_stations_is_read_back(tmp_path: Path) -> None:
    schedule = simulate(BOTH, rounds=500, seed=2, link_law="deterministic")
    schedule.write(tmp_path / "whole")
    simulate(BOTH, rounds=500, seed=2, link_law="deterministic", folder=tmp_path / "pieces")
    for folder in ("whole", "pieces"):
        again = Schedule.read(tmp_path / folder)
        assert again.network == BOTH
        assert again.scenario.link_law == Law("deterministic")
        np.testing.assert_array_equal(again.spent, schedule.spent)
        np.testing.assert_array_equal(again.time, schedule.time)


def test_zero_links_change_no_bit() -> None:
    plain = Network(Fleet(FLEET.service_rates, FLEET.counts), UNIFORM, 7)
    zero = Network(Fleet(FLEET.service_rates, FLEET.counts, uplink=[0.0, 0.0, 0.0]), UNIFORM, 7)
    np.testing.assert_array_equal(
        simulate(plain, rounds=2000, seed=3).time, simulate(zero, rounds=2000, seed=3).time
    )


class _Zero(Policy):
    name = "zero"

    def chooser(self, random: np.random.Generator) -> Chooser:
        return _First()


class _First(Chooser):
    def choose(self, view: object, finisher: int | None) -> int | None:
        return 0


def test_policy_of_ones_own_is_simulated_with_stations() -> None:
    """The first tasks are spread; then all go to client 0, and come back from nobody else."""
    assert set(simulate(BOTH, rounds=500, policy=_Zero()).client[-100:].tolist()) == {0}

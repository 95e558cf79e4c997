"""Service times that are not exponential: Reiser's approximation against simulation."""

import numpy as np
import pytest

from sojourn._support.estimate import Estimate
from sojourn.errors import InvalidInput
from sojourn.fleet import Fleet, Network
from sojourn.fleet.laws import Law, Trace
from sojourn.simulation.simulate import simulate
from sojourn.theory.jackson import analyze, occupancy
from sojourn.theory.jackson.analysis import approximate_occupancy

LAWS = [Law("deterministic"), Law("lognormal"), Law("erlang"), Law("erlang", stages=4)]


def random_network(seed: int) -> Network:
    random = np.random.default_rng(seed)
    k = int(random.integers(2, 6))
    fleet = Fleet(np.exp(random.normal(0.0, 1.0, k)), random.integers(1, 6, k))
    weights = fleet.service_rates ** random.uniform(0.0, 1.2)
    tasks = int(random.integers(2, 3 * fleet.size))
    return Network(fleet, weights / (fleet.counts @ weights), tasks)


def test_with_exponential_times_it_is_exact() -> None:
    fleet = Fleet([0.5, 2.0, 3.0], counts=[2, 1, 4], downlink=[1.0, 0.0, 0.5], uplink=[0, 2, 1])
    for rate in (None, 1.7):
        network = Network(fleet, [0.1, 0.2, 0.15], 9, server_rate=rate)
        found, exact = approximate_occupancy(network, np.ones(3)), occupancy(network)
        assert found.throughput == pytest.approx(exact.throughput, rel=1e-12)
        for name in ("mean_tasks", "mean_on_links", "mean_tasks_full", "mean_on_links_full"):
            np.testing.assert_allclose(getattr(found, name), getattr(exact, name), rtol=1e-12)
        assert found.mean_at_server == pytest.approx(exact.mean_at_server, rel=1e-12)
    assert analyze(network, law=Law("exponential")).is_exact


def simulated(network: Network, law: Law, seed: int, runs: int, rounds: int) -> Estimate:
    """Throughput, whose error must be known: a rare client's lognormal times add up slowly."""
    seeds = range(1000 * seed, 1000 * seed + runs)
    warm_up = 20_000
    times = [
        (rounds - warm_up)
        / simulate(network, rounds=rounds, law=law, seed=s).throughput(warm_up=warm_up)
        for s in seeds
    ]
    return Estimate.ratio(np.full(runs, float(rounds - warm_up)), times)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_throughput_is_near_that_of_simulation(law: Law) -> None:
    """Within 3 % on 30 random fleets, as far as the simulation can tell."""
    errors, of_the_exact = [], []
    runs = 5 if law.scv > 1.0 else 2
    for seed in range(30):
        network = random_network(seed)
        found = analyze(network, law=law)
        assert not found.is_exact
        total = float(network.fleet.counts @ found.relative_delay)
        assert total == pytest.approx(network.concurrency - 1)
        seen = simulated(network, law, seed, runs, 200_000)
        off = abs(found.throughput / float(seen.mean) - 1.0)
        errors.append(off)
        of_the_exact.append(abs(analyze(network).throughput / float(seen.mean) - 1.0))
        assert off < 0.03 + 3.0 * float(seen.standard_error) / float(seen.mean), seed
    assert np.mean(errors) < 0.25 * np.mean(of_the_exact)
    assert np.mean(errors) < 0.012


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_so_it_is_on_fleets_that_it_was_not_made_on(law: Law) -> None:
    for seed in range(1000, 1030):
        network = random_network(seed)
        seen = simulated(network, law, seed, 8, 1_000_000)
        assert analyze(network, law=law).throughput == pytest.approx(float(seen.mean), rel=0.03)


@pytest.mark.parametrize("law", [*LAWS, Law("gamma"), Law("weibull"), Law("hyperexponential")])
def test_variability_is_that_of_the_sample(law: Law) -> None:
    sample = law.sample(np.random.default_rng(1), 2_000_000)
    assert law.scv == pytest.approx(sample.var(), rel=0.1, abs=1e-12)


def test_laws_by_class() -> None:
    network = random_network(1)
    laws = [Law("deterministic")] * (network.fleet.classes - 1) + [Trace([1.0, 3.0])]
    assert laws[-1].scv == pytest.approx(0.25)
    assert analyze(network, law=laws).throughput > analyze(network).throughput
    with pytest.raises(InvalidInput, match="one law for all clients or one for every class"):
        analyze(network, law=laws[:1] * (network.fleet.classes + 1))
    with pytest.raises(InvalidInput, match="infinite or unknown variance"):
        analyze(network, law=Law("pareto", shape=1.5))

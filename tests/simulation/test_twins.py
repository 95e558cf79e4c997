"""The kernels against slow twins: the same numbers give the same schedule, others the same law."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2_contingency, ks_2samp

from sojourn.dispatch import FirstOf, Policy, Restart
from sojourn.fleet import Fleet, Network, built_in_fleet, uniform_routing
from sojourn.fleet.laws import Law, Trace, as_laws
from sojourn.simulation.simulate import simulate
from sojourn.simulation.streams import alias_table
from tests.reference.simulator import Completion, simulate_events, simulate_memoryless

MIXED = Network(Fleet([0.3, 1.0, 1.7, 5.0], counts=[3, 2, 4, 1]), [0.15, 0.1, 0.07, 0.07], 7)
CROWDED = Network(MIXED.fleet, MIXED.routing, 26)
ROUNDS = 20_000

LAWS = [
    Law("exponential"),
    Law("deterministic"),
    Law("lognormal", sigma=0.7),
    Law("gamma"),
    Law("erlang", stages=3),
    Law("hyperexponential"),
    Law("weibull"),
    Law("pareto"),
    Trace([1.0, 2.0, 9.0]),
    (Law("deterministic"), Law("lognormal"), Trace([3.0, 4.0, 8.0]), Law("exponential")),
]


def spread(network: Network) -> list[int]:
    return [j % network.size for j in range(network.concurrency)]


def assert_same(network: Network, twin: list[Completion], **settings: object) -> None:
    schedule = simulate(network, rounds=len(twin), **settings)  # type: ignore[arg-type]
    client, dispatched, time = zip(*twin, strict=True)
    np.testing.assert_array_equal(schedule.client, client)
    np.testing.assert_array_equal(schedule.dispatched, dispatched)
    np.testing.assert_allclose(schedule.time, time, rtol=1e-12)


@pytest.mark.parametrize("policy", ["routed", "never-queue"])
@pytest.mark.parametrize("network", [MIXED, CROWDED], ids=["mixed", "crowded"])
def test_memoryless_kernel_is_its_twin(network: Network, policy: str) -> None:
    first = spread(network)[: network.size] if policy == "never-queue" else spread(network)
    twin = simulate_memoryless(network, rounds=ROUNDS, policy=policy, first=first, seed=3)
    assert_same(network, twin, policy=policy, seed=3)


@pytest.mark.parametrize("law", LAWS[1:], ids=str)
def test_event_kernel_is_its_twin_for_every_law(law: Law) -> None:
    twin = simulate_events(
        CROWDED,
        rounds=ROUNDS,
        laws=as_laws(law),
        policy="routed",
        first=spread(CROWDED),
        seed=5,
        work=2.0,
    )
    assert_same(CROWDED, twin, law=law, seed=5, work=2.0)


@pytest.mark.parametrize("policy", ["never-queue", "idle", "shuffled", "synchronous"])
@pytest.mark.parametrize("law", ["gamma", "deterministic"])
def test_event_kernel_is_its_twin_for_every_policy(policy: str, law: str) -> None:
    twin = simulate_events(
        MIXED, rounds=ROUNDS, laws=(Law(law),), policy=policy, first=spread(MIXED), seed=8
    )
    assert_same(MIXED, twin, law=law, policy=policy, seed=8)


STOPPING = [
    (Restart(max_staleness=1), "restart", {"max_staleness": 1}),
    (Restart(max_staleness=7), "restart", {"max_staleness": 7}),
    (Restart(max_staleness=60), "restart", {"max_staleness": 60}),
    (FirstOf(first=1), "first-of", {"enough": 1}),
    (FirstOf(first=4), "first-of", {"enough": 4}),
    (FirstOf(first=15, again=True), "first-of", {"enough": 15, "again": True}),
]


@pytest.mark.parametrize(("policy", "name", "knobs"), STOPPING, ids=str)
@pytest.mark.parametrize("law", ["exponential", "lognormal"])
def test_policies_that_stop_tasks_are_their_twins(
    policy: Policy, name: str, knobs: dict[str, Any], law: str
) -> None:
    for network in (MIXED, CROWDED):
        first = list(range(policy.in_flight(network)))
        twin = simulate_events(
            network, rounds=2000, laws=(Law(law),), policy=name, first=first, seed=6, **knobs
        )
        assert_same(network, twin, law=law, policy=policy, seed=6)


def test_kernel_and_independent_twin_have_the_same_law() -> None:
    """Drawing the finisher among the busy, against a clock per client; different seeds."""
    fleet = built_in_fleet("three-clusters")
    network = Network(fleet, uniform_routing(fleet), 30)
    fast = simulate(network, rounds=ROUNDS, seed=21)
    slow = simulate_events(
        network,
        rounds=ROUNDS,
        laws=(Law("exponential"),),
        policy="routed",
        first=spread(network),
        seed=22,
    )
    client, dispatched, time = (np.array(column) for column in zip(*slow, strict=True))
    # Every 20th round duration: neighbours are dependent, and the test wants independent samples.
    gaps = np.diff(fast.time)[::20], np.diff(time)[::20]
    assert ks_2samp(*gaps).pvalue > 1e-4
    counts = np.array([np.bincount(c, minlength=30) for c in (fast.client, client)])
    assert chi2_contingency(counts).pvalue > 1e-4
    delays = fast.relative_delay[::20], (np.arange(ROUNDS) - dispatched)[::20]
    assert ks_2samp(*delays).pvalue > 1e-4


def test_alias_table_holds_the_routing_exactly() -> None:
    random = np.random.default_rng(2)
    counts = random.integers(1, 5, size=40)
    weights = random.pareto(0.7, size=40) + 1e-6
    network = Network(Fleet(np.ones(40), counts), weights / (counts @ weights), 3)
    table = alias_table(network)
    mass = np.bincount(table.other, weights=1.0 - table.keep, minlength=40) + table.keep
    np.testing.assert_allclose(mass / 40 / counts, network.routing, rtol=1e-12, atol=1e-15)

"""The least noise of policies that let tasks finish: brute force, the table, a search for counterexamples."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.optimize import minimize

from sojourn.fleet import Fleet, Network, built_in_fleet, square_root_routing
from sojourn.simulation.schedule import Schedule
from sojourn.simulation.simulate import simulate
from sojourn.theory.floor import duty_cycles, noise_floor, noise_rate, target_rates
from sojourn.theory.jackson import analyze

THREE_CLUSTERS = built_in_fleet("three-clusters")


@pytest.mark.parametrize(
    ("tasks", "floor", "flow"),
    [(1, 22.286, 0.1001), (10, 2.2286, 1.0003), (20, 1.304, 3.262), (30, 1.2333, 11.1)],
)
def test_three_clusters(tasks: int, floor: float, flow: float) -> None:
    rates = target_rates(THREE_CLUSTERS, tasks)
    assert noise_floor(THREE_CLUSTERS, tasks) == pytest.approx(floor, abs=0.5e-3 * floor)
    assert THREE_CLUSTERS.counts @ rates == pytest.approx(flow, rel=1e-3)
    assert noise_floor(THREE_CLUSTERS, 90) == noise_floor(THREE_CLUSTERS, 30)


@given(
    rates=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6),
    counts=st.lists(st.integers(1, 9), min_size=6, max_size=6),
    share=st.floats(0.01, 1.2),
)
@settings(max_examples=200, deadline=None)
def test_duty_cycles_fill_the_concurrency_and_no_shift_helps(
    rates: list[float], counts: list[int], share: float
) -> None:
    fleet = Fleet(rates, counts[: len(rates)])
    m = max(1, round(share * fleet.size))
    cycles = duty_cycles(fleet, m)
    assert np.all((cycles > 0) & (cycles <= 1))
    assert fleet.counts @ cycles == pytest.approx(min(m, fleet.size), rel=1e-12)
    # Optimality: the gain of a little more time, 1/(d^2 mu), is the same wherever d < 1, and
    # nowhere larger where d = 1.
    gain = 1.0 / (cycles**2 * fleet.service_rates)
    free = cycles < 1
    if free.any():
        assert gain[free].max() == pytest.approx(gain[free].min(), rel=1e-9)
        assert np.all(gain[~free] >= gain[free].max() * (1 - 1e-9))


def test_against_a_general_optimiser() -> None:
    fleet = Fleet([0.05, 0.3, 2.0, 7.0], [3, 1, 4, 2])
    found = minimize(
        lambda d: fleet.counts @ (1 / (d * fleet.service_rates)),
        np.full(4, 0.3),
        bounds=[(1e-3, 1.0)] * 4,
        constraints={"type": "eq", "fun": lambda d: fleet.counts @ d - 4},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    np.testing.assert_allclose(duty_cycles(fleet, 4), found.x, rtol=1e-4)


def test_one_task_is_square_root_routing() -> None:
    network = Network(THREE_CLUSTERS, square_root_routing(THREE_CLUSTERS), 1)
    routed = noise_rate(THREE_CLUSTERS, analyze(network).throughput * network.routing)
    assert routed == pytest.approx(noise_floor(THREE_CLUSTERS, 1), rel=1e-12)


def test_no_routing_is_below_the_floor() -> None:
    random = np.random.default_rng(3)
    for _ in range(1000):
        k = int(random.integers(1, 7))
        fleet = Fleet(np.exp(random.normal(0, 2, k)), random.integers(1, 6, k))
        weights = random.dirichlet(np.full(k, 0.7)) + 1e-3
        routing = weights / (fleet.counts @ weights)
        m = int(random.integers(1, 40))
        rates = analyze(Network(fleet, routing, m)).throughput * routing
        assert noise_rate(fleet, rates) >= noise_floor(fleet, m) * (1 - 1e-12)


LAWS = ("exponential", "deterministic", "lognormal", "hyperexponential")
FINISHING = ("routed", "never-queue", "idle", "shuffled", "synchronous")
"""Policies that let every started task finish."""


def _served(run: Schedule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Completions of every client, how long it served them in all (first in, first out) and held them."""
    clients = run.network.fleet.size
    sent = np.concatenate([[0.0], run.time])[run.dispatched]
    free, busy = np.zeros(clients), np.zeros(clients)
    for client, begin, end in zip(run.client, sent, run.time, strict=True):
        busy[client] += end - max(begin, free[client])
        free[client] = end
    held = np.bincount(run.client, weights=run.time - sent, minlength=clients)
    return np.bincount(run.client, minlength=clients), busy, held


def _above_the_floor(random: np.random.Generator) -> tuple[float, float]:
    """Noise over floor and staleness over its bound in a run of any law and policy.

    Both with the mean service times that the run drew. They rest on inequalities that hold for every path, so there
    is no noise to allow for: a client serves no longer than the run lasts, all together no longer than m
    times as long, and a task is with its client for no less time than it is served.
    """
    size = int(random.integers(1, 7))
    rates = np.exp(random.normal(0.0, random.choice([0.3, 1.0, 2.0]), size))
    weights = random.dirichlet(np.full(size, 0.7)) + 1e-2
    if random.random() < 0.4:  # adversarial: the routing that is best with one task
        weights = np.sqrt(rates)
    law, policy = str(random.choice(LAWS)), str(random.choice(FINISHING))
    most = 12 if policy == "routed" else size  # the others give a client one task at a time
    fleet = Fleet(rates)
    network = Network(fleet, weights / weights.sum(), int(random.integers(1, most + 1)))
    run = simulate(network, rounds=400, law=law, policy=policy, seed=int(random.integers(1 << 30)))
    completed, busy, held = _served(run)
    if not completed.all():
        return np.inf, np.inf
    seen = Fleet(completed / busy)
    noise = noise_rate(seen, completed / run.time[-1]) / noise_floor(seen, network.concurrency)
    return noise, float(np.mean(held / completed) / np.mean(busy / completed))


def _search(number: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.array([_above_the_floor(random) for _ in range(number)])


def test_no_policy_that_lets_tasks_finish_is_below_the_floor() -> None:
    found = _search(50, seed=1)
    assert found.min() >= 1.0 - 1e-9
    assert np.all(found.min(axis=0) < 1.02), "both bounds are attained"


@pytest.mark.slow
def test_no_counterexample_to_the_floor_among_a_thousand_settings() -> None:
    assert _search(1000, seed=2).min() >= 1.0 - 1e-9


def test_a_policy_that_restarts_tasks_falls_below_the_floor() -> None:
    network = Network(THREE_CLUSTERS, square_root_routing(THREE_CLUSTERS), 30)
    run = simulate(
        network,
        time=20_000.0,
        law={"name": "hyperexponential", "scv": 10.0},
        policy={"name": "restart", "max-staleness": 200},
        seed=1,
    )
    completed = np.bincount(run.client, minlength=30)
    single = Fleet(THREE_CLUSTERS.expand(THREE_CLUSTERS.service_rates))
    assert noise_rate(single, completed / 20_000.0) < 0.8 * noise_floor(THREE_CLUSTERS, 30)

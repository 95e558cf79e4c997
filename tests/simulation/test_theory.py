"""Simulation against exact theory: exponential service, stationary start, |z| < 4."""

import numpy as np
import pytest
from scipy.stats import chisquare, kstest, t

from sojourn._support.estimate import Estimate
from sojourn.fleet import (
    Fleet,
    Network,
    balanced_routing,
    built_in_fleet,
    named_routing,
    uniform_routing,
)
from sojourn.simulation.simulate import replicate, simulate
from sojourn.simulation.starts import stationary_state
from sojourn.theory.jackson import analyze, covariance
from sojourn.types import FloatArray
from tests.reference.enumeration import states

CLUSTERS = built_in_fleet("three-clusters")
TWENTY = built_in_fleet("twenty")
PRINTED = np.array([0.0068, 0.0449, 0.0487])
PACE_SETTER = np.concatenate(([0.5145], np.linspace(0.0263, 0.0248, 19)))
LARGE = Fleet([0.5, 1.0, 2.0], counts=[3000, 3000, 4000])


def network(fleet: Fleet, routing: str, concurrency: int) -> Network:
    return Network(fleet, named_routing(fleet, routing), concurrency)


NETWORKS = {
    "clusters, uniform": (network(CLUSTERS, "uniform", 30), 100_000),
    "clusters, balanced": (network(CLUSTERS, "balanced", 30), 100_000),
    "clusters, square-root": (network(CLUSTERS, "square-root", 30), 100_000),
    "clusters, one task": (network(CLUSTERS, "uniform", 1), 20_000),
    "clusters, two tasks": (network(CLUSTERS, "balanced", 2), 20_000),
    "clusters, crowded": (network(CLUSTERS, "square-root", 1000), 100_000),
    "twenty, m = 100": (network(built_in_fleet("twenty"), "uniform", 100), 100_000),
    "fifty, m = 7": (network(built_in_fleet("fifty"), "square-root", 7), 50_000),
    "one client": (Network(Fleet([2.0]), [1.0], 5), 20_000),
    "a thousand": (network(Fleet([0.1, 1.0], counts=[500, 500]), "square-root", 1000), 200_000),
    "ten thousand, uniform": (network(LARGE, "uniform", 10_000), 500_000),
    "ten thousand, balanced": (network(LARGE, "balanced", 10_000), 500_000),
}


@pytest.mark.parametrize("case", NETWORKS)
def test_throughput_and_mean_tasks(case: str) -> None:
    net, rounds = NETWORKS[case]
    theory = analyze(net)
    found = replicate(net, rounds=rounds, replicates=20, seed=11)
    assert abs(found.throughput.z_scores(theory.throughput)) < 4
    assert np.all(np.abs(found.mean_tasks.z_scores(theory.mean_tasks)) < 4)
    assert np.all(np.abs(found.staleness.z_scores(theory.staleness)) < 4)


def test_ten_thousand_different_clients() -> None:
    """One client is seen too briefly for a normal law, so clients are summed by the hundred."""
    random = np.random.default_rng(1)
    fleet = Fleet(random.lognormal(0.0, 0.5, size=10_000))
    net = Network(fleet, balanced_routing(fleet), 10_000)
    theory = analyze(net)
    runs = [simulate(net, rounds=200_000, start="stationary", seed=s) for s in range(20)]
    pace = Estimate.from_samples(np.array([run.duration / run.rounds for run in runs]))
    assert abs(pace.z_scores(1.0 / theory.throughput)) < 4
    tasks = np.array([run.mean_tasks().reshape(100, 100).sum(axis=1) for run in runs])
    scores = Estimate.from_samples(tasks).z_scores(theory.mean_tasks.reshape(100, 100).sum(axis=1))
    assert np.all(np.abs(scores) < 4)
    assert kstest(scores, t(df=19).cdf).pvalue > 1e-3


@pytest.mark.parametrize("clients", [30, 300])
def test_a_stationary_start_is_stationary_from_the_first_moment(clients: int) -> None:
    """However short the time, the rounds completed in it are throughput times time on average."""
    random = np.random.default_rng(clients)
    fleet = Fleet(random.lognormal(0.0, 0.5, size=clients))
    net = Network(fleet, named_routing(fleet, "square-root"), 2 * clients)
    found = replicate(net, time=0.5, replicates=400, seed=1)
    assert abs(found.rounds.z_scores(0.5 * analyze(net).throughput)) < 4


def test_mean_relative_delay_is_m_minus_1() -> None:
    net = network(CLUSTERS, "square-root", 30)
    means = [
        float(
            simulate(net, rounds=200_000, start="stationary", seed=s).relative_delay[50_000:].mean()
        )
        for s in range(20)
    ]
    error = np.std(means, ddof=1) / np.sqrt(len(means))
    assert abs(np.mean(means) - 29) < 4 * error
    schedule = simulate(net, rounds=10_000)
    assert schedule.mean_tasks(warm_up=100).sum() == pytest.approx(29, rel=1e-12)


def test_gradient_of_theorem_1_by_monte_carlo() -> None:
    net = Network(Fleet([0.2, 1.0, 3.0], counts=[2, 1, 3]), [0.2, 0.15, 0.15], 8)
    found = replicate(net, rounds=100_000, replicates=20, seed=6)
    exact = covariance(net)
    members = [[0, 1], [2], [3, 4, 5]]
    theory = (
        np.array([[exact[np.ix_(a, b)].sum() / len(b) for b in members] for a in members])
        / net.routing
    )
    assert found.gradient is not None
    assert np.all(np.abs(found.gradient.z_scores(theory)) < 4)
    np.testing.assert_allclose(found.gradient.mean.sum(axis=0), 0.0, atol=1e-10)


@pytest.mark.parametrize("counts", [[1, 1, 1], [2, 1, 1], [2, 2, 1]])
def test_stationary_draw_follows_the_product_form(counts: list[int]) -> None:
    net = Network(Fleet([0.5, 1.0, 4.0], counts=counts), np.full(3, 1 / sum(counts)), 4)
    loads = net.fleet.expand(net.loads)
    space = list(states(net.size, net.concurrency))
    weights = np.array([np.prod(loads ** np.array(x)) for x in space])
    index = {tuple(x): j for j, x in enumerate(space)}
    random = np.random.default_rng(3)
    draws = 2_500
    seen = np.zeros(len(space))
    for _ in range(draws):
        seen[index[tuple(stationary_state(net, random).tolist())]] += 1
    expected = weights / weights.sum() * draws
    rare = expected < 10
    pooled = [np.append(v[~rare], v[rare].sum()) for v in (seen, expected)]
    assert chisquare(*pooled).pvalue > 1e-4


@pytest.mark.parametrize("clients", [300, 1500])
def test_stationary_draw_by_halves_has_the_exact_means(clients: int) -> None:
    """No client holds a fair share of the variance, so that halves are drawn."""
    random = np.random.default_rng(9)
    fleet = Fleet(random.lognormal(0.0, 0.3, size=clients))
    net = Network(fleet, balanced_routing(fleet), clients)
    draws = np.array([stationary_state(net, random) for _ in range(225)])
    assert np.all(draws.sum(axis=1) == clients)
    theory = analyze(net).mean_tasks_full
    tenths = np.array_split(np.argsort(fleet.service_rates), 10)
    for tenth in tenths:
        total = draws[:, tenth].sum(axis=1)
        z = (total.mean() - theory[tenth].sum()) / (total.std(ddof=1) / 15)
        assert abs(z) < 4


def test_spread_start_deals_round_robin() -> None:
    net = network(CLUSTERS, "uniform", 70)
    schedule = simulate(net, rounds=5_000, seed=1)
    initial = np.concatenate(
        [
            schedule.client[schedule.dispatched == 0],
            schedule.pending_client[schedule.pending_dispatched == 0],
        ]
    )
    np.testing.assert_array_equal(np.bincount(initial, minlength=30), [3] * 10 + [2] * 20)


@pytest.mark.parametrize(
    ("routing", "mean", "deviation"),
    [
        (uniform_routing(CLUSTERS), 771.6, 66),
        (balanced_routing(CLUSTERS), 17_122, 731),
        (PRINTED / (10 * PRINTED.sum()), 3_294, 257),
    ],
    ids=["uniform", "balanced", "printed p*_H"],
)
def test_the_paper_three_clusters(routing: FloatArray, mean: float, deviation: float) -> None:
    """Rounds within 3 000 time units, from one task per client."""
    net = Network(CLUSTERS, routing, 30)
    found = replicate(net, time=3000.0, replicates=200, start="spread", seed=2)
    assert abs(found.rounds.z_scores(mean)) < 4
    # The deviation of 200 samples has a relative standard error of 5 %.
    assert found.rounds.standard_error * np.sqrt(200) == pytest.approx(deviation, rel=0.2)


@pytest.mark.parametrize(
    ("routing", "mean"),
    [
        (uniform_routing(TWENTY), 159.9),
        (balanced_routing(TWENTY), 157.7),
        (PACE_SETTER / PACE_SETTER.sum(), 1436.0),
    ],
    ids=["uniform", "balanced", "converged p*_G"],
)
def test_the_paper_twenty_clients(routing: FloatArray, mean: float) -> None:
    """Time of 3 000 rounds, n = 20, m = 100, from five tasks per client."""
    found = replicate(
        Network(TWENTY, routing, 100), rounds=3000, replicates=200, start="spread", seed=2
    )
    assert abs(found.time.z_scores(mean)) < 4

"""Stability and noise of delayed steps: against the digits, each other, and a simulated quadratic."""

import numpy as np
import pytest

import sojourn as sj
from sojourn._support.estimate import Estimate
from sojourn.simulation.simulate import simulate
from sojourn.theory.stability import largest_stable_step, stationary_variance


def squares(
    step: float, tasks: int, rounds: int, seed: int, heavy: float = 1.0, noise: float = 1.0
) -> np.ndarray:
    """x^2 over the rounds of a quadratic that steps as equal clients which never queue deliver.

    An update has weight ``heavy`` with probability 1/heavy and else 0, so that kappa = ``heavy``.
    """
    network = sj.Network(sj.Fleet([1.0], counts=[tasks]), [1.0 / tasks], tasks)
    run = simulate(network, rounds=rounds, policy="never-queue", seed=seed)
    random = np.random.default_rng(seed)
    errors = noise * random.standard_normal(rounds)
    weights = np.where(random.random(rounds) < 1.0 / heavy, heavy, 0.0)
    x = np.empty(rounds + 1)
    x[0] = 1.0
    for t, sent in enumerate(run.dispatched.tolist()):
        x[t + 1] = x[t] - weights[t] * (step * x[sent] + errors[t])
    return x**2


@pytest.mark.parametrize(
    ("step", "tasks", "heavy", "value"),
    [(0.2, 10, 1.0, 8.333), (0.05, 30, 1.0, 25.32), (0.5, 1, 1.0, 1.3333), (0.1, 10, 3.0, None)],
)
def test_variance_of_a_simulated_quadratic(
    step: float, tasks: int, heavy: float, value: float | None
) -> None:
    theory = stationary_variance(step, tasks, heavy)
    if value is not None:
        assert theory == pytest.approx(value, rel=2e-4)
    means = [squares(step, tasks, 40_000, seed, heavy)[5_000:].mean() for seed in range(20)]
    assert abs(Estimate.from_samples(np.array(means)).z_scores(theory)) < 4


@pytest.mark.parametrize("tasks", [1, 5, 40])
@pytest.mark.parametrize("kappa", [1.0, 2.5])
def test_the_variance_grows_without_limit_at_the_largest_step(tasks: int, kappa: float) -> None:
    largest = largest_stable_step(tasks, kappa)
    assert stationary_variance(largest * (1 - 1e-9), tasks, kappa) > 1e6
    with pytest.raises(sj.InvalidInput, match="the largest stable one is"):
        stationary_variance(largest * (1 + 1e-9), tasks, kappa)


def test_mean_squares_fall_below_the_largest_step_and_rise_above_it() -> None:
    tasks, kappa = 12, 1.7
    largest = largest_stable_step(tasks, kappa)
    assert growth(0.98 * largest, tasks, kappa) < 1 < growth(1.02 * largest, tasks, kappa)


def growth(a: float, m: int, kappa: float) -> float:
    """Factor per round of (E x^2, E y^2, E xy, E yy') in the model: its largest eigenvalue."""
    square = np.array([1.0, a * a * kappa, -2 * a, 0.0])
    cross = np.array([0.0, 0.0, 1.0, -a])
    own, pair = np.eye(4)[1], np.eye(4)[3]
    rows = [
        square,
        square / m + (1 - 1 / m) * own,
        square / m + (1 - 1 / m) * cross,
        2 / m * cross + (1 - 2 / m) * pair,
    ]
    return float(np.abs(np.linalg.eigvals(np.array(rows))).max())


def test_many_tasks_follow_the_root() -> None:
    assert largest_stable_step(10**8, 4.0) == pytest.approx((2 / (4.0 * 10**8)) ** 0.5, rel=1e-3)
    assert largest_stable_step(1) == 2.0


@pytest.mark.parametrize("call", [
    lambda: largest_stable_step(0), lambda: largest_stable_step(3, 0.5),
    lambda: stationary_variance(0.0, 3),
])  # fmt: skip
def test_bad_arguments_get_a_sentence(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(sj.InvalidInput):
        call()

"""Calibration against problems whose constants are known."""

import math
from dataclasses import asdict

import pytest
import torch
from torch import nn
from torch.nn import functional

from sojourn.errors import InvalidInput
from sojourn.training import Problem
from sojourn.training.experiment.calibrate import (
    calibrate,
    gradient_moments,
    measure,
    smoothness,
    train_loss,
)

DOUBLE = torch.float64


class Point(nn.Module):
    """The model is a point w; its "output" for a sample is w itself."""

    def __init__(self, dimension):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(dimension, dtype=DOUBLE))

    def forward(self, x):
        return x * 0 + self.w


def half_squares(outputs, targets):
    return 0.5 * (outputs - targets).square().sum(1).mean()


def scattered(clients=12, dimension=5, samples=400, spread=2.0, noise=1.5, batch_size=10):
    """f_i(w) = |w - c_i|^2 / 2 + const: the gradients differ by c_i - mean(c); the noise is known."""
    generator = torch.Generator().manual_seed(11)
    centres = spread * torch.randn(clients, dimension, generator=generator, dtype=DOUBLE)
    sets = []
    for centre in centres:
        drawn = torch.randn(samples, dimension, generator=generator, dtype=DOUBLE)
        targets = centre + noise * (drawn - drawn.mean(0))
        sets.append((torch.zeros_like(targets), targets))
    problem = Problem(Point(dimension), sets, sets[0], half_squares, batch_size=batch_size)
    variance = sum(float(y.var(0, correction=1).sum()) for _, y in sets) / clients
    finite = variance / batch_size * (1 - batch_size / samples)
    between = float((centres - centres.mean(0)).square().sum(1).mean())
    return problem, finite, between


def test_noise_and_dissimilarity_are_unbiased():
    problem, sigma_squared, m_squared = scattered()
    weights = problem.initial_weights()
    estimates = [gradient_moments(problem, weights, seed=seed, pairs=3) for seed in range(30)]
    variances = torch.tensor([estimate[0] for estimate in estimates], dtype=DOUBLE)
    products = torch.tensor([estimate[2] for estimate in estimates], dtype=DOUBLE)
    for found, truth in ((variances, sigma_squared), (products, m_squared)):
        error = float(found.std()) / math.sqrt(len(found))
        assert abs(float(found.mean()) - truth) < 4 * error
        assert error < 0.05 * truth


def test_noise_is_not_taken_for_heterogeneity():
    problem, sigma_squared, _ = scattered(spread=0.0, batch_size=4)
    _, _, m_squared, _ = gradient_moments(problem, problem.initial_weights(), seed=1, pairs=20)
    assert m_squared < 0.1 * sigma_squared


def test_smoothness_is_the_largest_eigenvalue():
    generator = torch.Generator().manual_seed(2)
    model = nn.Linear(6, 1, dtype=DOUBLE)
    sets = [
        (
            scale * torch.randn(100, 6, generator=generator, dtype=DOUBLE),
            torch.zeros(100, 1, dtype=DOUBLE),
        )
        for scale in (1.0, 3.0, 0.5)
    ]
    problem = Problem(model, sets, sets[0], functional.mse_loss, batch_size=10)
    largest = 0.0
    for x, _ in sets:
        design = torch.cat([x, torch.ones(100, 1, dtype=DOUBLE)], dim=1)
        largest = max(largest, float(torch.linalg.eigvalsh(2 * design.T @ design / 100).max()))
    assert smoothness(problem, problem.initial_weights(), seed=1) == pytest.approx(
        largest, rel=5e-3
    )


def test_a_linear_loss_has_no_curvature():
    x = torch.ones(5, 2)
    problem = Problem(nn.Linear(2, 1), [(x, x[:, :1])], (x, x[:, :1]), lambda o, y: (o * y).mean())
    assert smoothness(problem, problem.initial_weights(), seed=0) == 0.0


def test_the_training_loss_weighs_clients_equally():
    sets = [
        (torch.zeros(k, 1, dtype=DOUBLE), torch.full((k, 1), v, dtype=DOUBLE))
        for k, v in ((1, 2.0), (2500, 4.0))
    ]
    problem = Problem(Point(1), sets, sets[0], half_squares, batch_size=1)
    assert train_loss(problem, problem.initial_weights()) == pytest.approx((2.0 + 8.0) / 2)


def test_constants_are_the_larger_of_both_measurements():
    problem, sigma_squared, m_squared = scattered()
    found = calibrate(problem, learning_rate=0.05, seed=3)
    constants = found.constants
    assert found.warm.loss < found.initial.loss
    assert constants.initial_gap == found.initial.loss
    assert constants.smoothness == pytest.approx(1.0)
    assert constants.gradient_noise**2 == pytest.approx(sigma_squared, rel=0.2)
    assert constants.heterogeneity**2 == pytest.approx(m_squared, rel=0.2)
    assert found.warm_up_rounds == 60


def test_a_diverging_warm_up_is_said():
    problem, _, _ = scattered()
    with pytest.raises(InvalidInput, match="diverged at learning rate 1e\\+200"):
        calibrate(problem, learning_rate=1e200, seed=0)


def test_of_a_fleet_with_weights_the_constants_are_of_the_clients_own_losses():
    """f_i(w) = |w - c_i|^2/2 on whole sets: L = 1, and M^2 = mean |c_i - sum_i w_i c_i|^2."""
    centres = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    sets = [(centre.repeat(8, 1), centre.repeat(8, 1)) for centre in centres]
    problem = Problem(Point(2), sets, sets[0], half_squares, batch_size=8)
    weights = torch.tensor([6.0, 3.0, 1.0], dtype=torch.float64)
    found = measure(
        *(problem, problem.initial_weights()),
        **{"seed": 1, "client_weights": weights.tolist(), "weighted_fleet": True},
    )
    middle = (weights / 10.0) @ centres
    spread = float((centres - middle).square().sum(1).mean())
    assert found.dissimilarity == pytest.approx(spread, rel=1e-6)
    assert found.gradient_variance == pytest.approx(0.0, abs=1e-12)
    assert found.smoothness == pytest.approx(1.0, rel=1e-3)
    start = problem.initial_weights()
    losses = 0.5 * (start - centres).square().sum(1)
    assert found.loss == pytest.approx(float((weights / 10.0) @ losses), rel=1e-6)


def test_clients_that_count_by_size_are_clients_with_scaled_losses():
    """u_i f_i in place of f_i: exactly what a problem says whose clients have these losses."""
    problem, _, _ = scattered(clients=4, samples=40)
    sizes = [1.0, 2.0, 3.0, 10.0]
    scales = [size / 4.0 for size in sizes]
    scaled = [(x + scale, y) for scale, (x, y) in zip(scales, problem.train_sets, strict=True)]

    class Scaled(Point):
        def forward(self, x):
            return torch.cat([x * 0 + self.w, x[:, :1]], dim=1)

    def loss(outputs, targets):
        return (outputs[:, -1] * 0.5 * (outputs[:, :-1] - targets).square().sum(1)).mean()

    other = Problem(Scaled(5), scaled, scaled[0], loss, batch_size=10)
    found = calibrate(problem, learning_rate=0.01, seed=3, client_weights=sizes)
    wanted = calibrate(other, learning_rate=0.01, seed=3)
    for point, same in ((found.initial, wanted.initial), (found.warm, wanted.warm)):
        assert asdict(point) == pytest.approx(asdict(same), rel=1e-9)
    assert found.constants.smoothness == pytest.approx(2.5, rel=1e-3)

"""Measuring the constants of the bounds on a problem: A, L, sigma and M."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from sojourn._support.estimate import Estimate
from sojourn.errors import InvalidInput
from sojourn.theory.constants import LearningConstants
from sojourn.training.problem.metrics import Loss
from sojourn.training.problem.problem import Problem, chunks
from sojourn.training.replay.state import relative_weights
from sojourn.types import FloatArray

Part: TypeAlias = tuple[Any, Any, int]
"""A batch and its number of samples."""

PAIRS = 4
WARM_UP_PASSES = 5
CURVATURE_CLIENTS = 8
CURVATURE_SAMPLES = 256
POWER_STEPS = 50
POWER_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Measurement:
    r"""What was measured at one point :math:`w`.

    ``loss`` is :math:`f(w) = \frac1n \sum_i f_i(w)` on the training data; ``smoothness`` the largest
    curvature :math:`|\lambda|` of a client's loss, over the clients looked at; ``gradient_variance``
    :math:`\sigma^2` and ``dissimilarity`` :math:`M^2` are means over clients, each with its
    standard error. Where clients count by size, :math:`f_i` is a client's loss times
    :math:`n n_i/N`, for which everything holds unchanged.
    """

    loss: float
    smoothness: float
    gradient_variance: float
    gradient_variance_error: float
    dissimilarity: float
    dissimilarity_error: float


@dataclass(frozen=True)
class Calibration:
    """Measurements at the first weights and after a short warm-up."""

    initial: Measurement
    warm: Measurement
    warm_up_rounds: int

    @property
    def constants(self) -> LearningConstants:
        """The larger of the two measurements of each, as the assumptions hold everywhere.

        ``initial_gap`` is the initial loss: no loss here is below zero.
        """
        points = self.initial, self.warm
        return LearningConstants(
            initial_gap=self.initial.loss,
            smoothness=max(point.smoothness for point in points),
            gradient_noise=math.sqrt(max(point.gradient_variance for point in points)),
            heterogeneity=math.sqrt(max(point.dissimilarity for point in points)),
        )


def calibrate(
    problem: Problem,
    *,
    learning_rate: float,
    seed: int,
    client_weights: ArrayLike | None = None,
    weighted_fleet: bool = False,
    progress: Callable[[str], None] = lambda step: None,
) -> Calibration:
    """Measure at the first weights, train a little, measure again.

    The warm-up takes 5 passes over the clients, one step at ``learning_rate`` each. Cost: about
    20 gradients per client, and the Hessian-vector products of `smoothness`. ``client_weights`` say
    how much every client's loss counts, as in ``replay``; where the theory that the constants are
    for knows them, too, from the fleet's column ``weight``, say ``weighted_fleet``: then L, sigma
    and M are of the clients' own losses, and otherwise of their losses times n w_i.
    """
    weights = problem.initial_weights()
    scales = _scales(problem, client_weights)
    progress("at the first weights")
    weighing: dict[str, Any] = {"client_weights": scales, "weighted_fleet": weighted_fleet}
    initial = measure(problem, weights, seed=seed, **weighing)
    progress("warm-up")
    number = 2 * PAIRS
    for step in range(WARM_UP_PASSES):
        for client in range(problem.clients):
            gradient = problem.gradient(weights, client, number + step, seed)
            weights = weights - learning_rate * float(scales[client]) * gradient
    if not bool(torch.isfinite(weights).all()):
        raise InvalidInput(
            f"the warm-up diverged at learning rate {learning_rate:g}. Give a smaller one."
        )
    progress("after the warm-up")
    warm = measure(problem, weights, seed=seed, **weighing)
    return Calibration(initial, warm, WARM_UP_PASSES * problem.clients)


def measure(
    problem: Problem,
    weights: Tensor,
    *,
    seed: int,
    client_weights: ArrayLike | None = None,
    weighted_fleet: bool = False,
) -> Measurement:
    """All constants at one point; arguments as in `calibrate`."""
    scales = _scales(problem, client_weights)
    variance, variance_error, dissimilarity, dissimilarity_error = gradient_moments(
        problem, weights, seed=seed, client_weights=scales, weighted_fleet=weighted_fleet
    )
    own = None if weighted_fleet else scales
    return Measurement(
        loss=train_loss(problem, weights, client_weights=scales),
        smoothness=smoothness(problem, weights, seed=seed, client_weights=own),
        gradient_variance=variance,
        gradient_variance_error=variance_error,
        dissimilarity=dissimilarity,
        dissimilarity_error=dissimilarity_error,
    )


def _scales(problem: Problem, client_weights: ArrayLike | None) -> FloatArray:
    given = np.ones(problem.clients) if client_weights is None else client_weights
    return relative_weights(given, problem.clients)


def train_loss(
    problem: Problem, weights: Tensor, *, client_weights: ArrayLike | None = None
) -> float:
    r""":math:`f(w)`: the loss on all data of a client, averaged over clients."""
    model = problem.trained_model(weights)
    losses = []
    with torch.no_grad():
        for client in range(problem.clients):
            total, samples = 0.0, 0
            for x, y, size in chunks(problem.samples, client):
                total += problem.loss(model(x), y).item() * size
                samples += size
            losses.append(total / samples)
    return float(np.mean(_scales(problem, client_weights) * losses))


def gradient_moments(
    problem: Problem,
    weights: Tensor,
    *,
    seed: int,
    pairs: int = PAIRS,
    client_weights: ArrayLike | None = None,
    weighted_fleet: bool = False,
) -> tuple[float, float, float, float]:
    r"""Unbiased :math:`\sigma^2` and :math:`M^2`, each followed by its standard error over pairs.

    .. math::
        \hat\sigma^2 = \frac1n \sum_i \tfrac12 \|g_i - g_i'\|^2, \qquad
        \hat M^2 = \frac1n \sum_i \langle g_i - \bar g,\; g_i' - \bar g' \rangle

    where :math:`g_i, g_i'` are gradients on two independent batches of the size that tasks use:
    their noise cancels in the product, so it is not taken for a difference between clients. With
    ``client_weights`` gradients are times :math:`n w_i`; with ``weighted_fleet`` only in the means.
    """
    scales = torch.from_numpy(_scales(problem, client_weights))[:, None]
    within, own = (scales, 1.0) if weighted_fleet else (1.0, scales)
    variances, products = [], []
    for pair in range(pairs):
        first, second = (
            torch.stack(
                [problem.gradient(weights, i, 2 * pair + k, seed) for i in range(problem.clients)]
            ).double()
            * own
            for k in (0, 1)
        )
        variances.append(float((first - second).square().sum(1).mean()) / 2)
        means = [(within * gradients).mean(0) for gradients in (first, second)]
        centred = (first - means[0]) * (second - means[1])
        products.append(float(centred.sum(1).mean()))
    variance, product = Estimate.from_samples(variances), Estimate.from_samples(products)
    return (
        float(variance.mean),
        float(variance.standard_error),
        max(0.0, float(product.mean)),
        float(product.standard_error),
    )


def smoothness(
    problem: Problem, weights: Tensor, *, seed: int, client_weights: ArrayLike | None = None
) -> float:
    r""":math:`L`: the largest :math:`|\lambda|` of a client's Hessian, by power iteration.

    Hessian-vector products by differentiating twice, on at most 256 samples each of at most 8
    clients spread over the fleet; every client's iteration stops when it changes by less than 0.1 %.
    """
    model = problem.trained_model(weights)
    generator = torch.Generator().manual_seed(seed)
    count = min(problem.clients, CURVATURE_CLIENTS)
    chosen = np.linspace(0, problem.clients - 1, count).round().astype(int).tolist()
    scales = _scales(problem, client_weights)
    return max(
        float(scales[i]) * _largest_curvature(model, problem.loss, _whole(problem, i), generator)
        for i in chosen
    )


def _whole(problem: Problem, client: int) -> list[Part]:
    """All samples of a client."""
    return list(chunks(problem.samples, client))


def curvature(problem: Problem, weights: Tensor, *, seed: int) -> float:
    r"""The largest :math:`|\lambda|` of the Hessian of the average loss, on samples of all clients."""
    most = max(1, 4 * CURVATURE_SAMPLES // problem.clients)
    sizes = [min(most, size) for size in problem.train_sizes]
    parts = [(*problem.samples.first(client, size), size) for client, size in enumerate(sizes)]
    generator = torch.Generator().manual_seed(seed)
    model = problem.trained_model(weights)
    return _largest_curvature(model, problem.loss, parts, generator)


def _mean_loss(
    model: nn.Module, loss: Loss, parts: list[Part], generator: torch.Generator
) -> Tensor:
    """The mean loss on some of the samples; batches that are no tensors of one shape are used whole."""
    alike = all(
        isinstance(x, Tensor)
        and isinstance(y, Tensor)
        and (x.shape[1:], y.shape[1:]) == (parts[0][0].shape[1:], parts[0][1].shape[1:])
        for x, y, _ in parts
    )
    if alike:
        x, y = torch.cat([x for x, _, _ in parts]), torch.cat([y for _, y, _ in parts])
        kept = torch.randperm(len(y), generator=generator)[:CURVATURE_SAMPLES]
        return loss(model(x[kept]), y[kept])
    total = sum(size for _, _, size in parts)
    losses = [loss(model(x), y) * (size / total) for x, y, size in parts]
    return torch.stack(losses).sum()


def _largest_curvature(
    model: nn.Module, loss: Loss, parts: list[Part], generator: torch.Generator
) -> float:
    parameters = [p for p in model.parameters() if p.requires_grad]
    value = _mean_loss(model, loss, parts, generator)
    gradients = torch.autograd.grad(value, parameters, create_graph=True, materialize_grads=True)
    slope = torch.cat([gradient.reshape(-1) for gradient in gradients])
    if not slope.requires_grad:
        return 0.0
    direction = torch.randn(slope.shape, generator=generator, dtype=slope.dtype)
    direction /= direction.norm()
    curvature = 0.0
    for _ in range(POWER_STEPS):
        products = torch.autograd.grad(
            slope, parameters, grad_outputs=direction, retain_graph=True, materialize_grads=True
        )
        image = torch.cat([product.reshape(-1) for product in products])
        before, curvature = curvature, float(image.norm())
        if curvature == 0.0 or abs(curvature - before) <= POWER_TOLERANCE * curvature:
            break
        direction = image / curvature
    return curvature

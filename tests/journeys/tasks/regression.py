"""A regression by squared error, with how far off it is on average."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from sojourn.training import Problem, metrics


def houses(count: int, price: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 5, generator=generator)
    return x, x @ price + 0.1 * torch.randn(count, 1, generator=generator)


def problem(clients: int, seed: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    price = torch.randn(5, 1, generator=generator)
    return Problem(
        nn.Linear(5, 1),
        [houses(30, price, generator) for _ in range(clients)],
        houses(200, price, generator),
        functional.mse_loss,
        batch_size=10,
        metrics={"off_by": metrics.mean_absolute_error},
    )

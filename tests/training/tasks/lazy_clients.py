"""A thousand clients whose samples are made when a task needs them."""

from functools import partial

import torch
from torch import nn
from torch.utils.data import TensorDataset

from sojourn.training import Problem


def load(client: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1000 * seed + client)
    x = torch.randn(12, 5, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long())


def problem(clients: int, seed: int) -> Problem:
    makers = [partial(load, client, seed) for client in range(clients)]
    return Problem(nn.Linear(5, 2), makers, load(clients, seed), batch_size=4, buffers="average")

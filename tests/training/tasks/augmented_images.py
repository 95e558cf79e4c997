"""A convolutional network with batch normalisation, a dataset with random transforms, AdamW."""

import random

import torch
from torch import nn
from torch.utils.data import Dataset

from sojourn.training import Problem


class Images(Dataset):
    def __init__(self, count: int, seed: int, kind: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(3, (count,), generator=generator)
        self.images = torch.randn(count, 1, 8, 8, generator=generator)
        self.images += self.labels[:, None, None, None]
        self.images = self.images.to(kind)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        if random.random() < 0.5:
            image = image.flip(-1)
        return image + 0.1 * torch.randn(image.shape), self.labels[index]


def problem(
    clients: int, seed: int, buffers: str = "average", kind: torch.dtype = torch.float32
) -> Problem:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3)
    )
    return Problem(
        model.to(kind),
        [Images(20, 100 * seed + client, kind) for client in range(clients)],
        Images(50, 100 * seed + 99, kind),
        batch_size=8,
        optimizer=torch.optim.AdamW,
        optimizer_state="client",
        buffers=buffers,
    )


def deployed(clients: int, seed: int) -> Problem:
    """Servers do not receive running statistics: they compute them on samples of their own."""
    return problem(clients, seed, buffers="recompute")


def deployed_in_double(clients: int, seed: int) -> Problem:
    """The same in double precision."""
    return problem(clients, seed, buffers="recompute", kind=torch.float64)

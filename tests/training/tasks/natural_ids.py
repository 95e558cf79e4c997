"""A Hugging Face dataset in memory, split by flwr-datasets: every writer is a client, loaded lazily."""

from functools import partial

import torch
from torch import nn

from sojourn.training import Problem

CLASSES = 3


def collate(rows: list[dict[str, list[float]]]) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.tensor([row["pixels"] for row in rows])
    return x, torch.tensor([row["label"] for row in rows])


def problem(clients: int, seed: int) -> Problem:
    from datasets import Dataset
    from flwr_datasets.partitioner import NaturalIdPartitioner

    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(clients * 15, 9, generator=generator)
    table = {
        "pixels": pixels.tolist(),
        "label": pixels[:, :CLASSES].argmax(1).tolist(),
        "writer": [f"writer-{number % clients}" for number in range(len(pixels))],
    }
    test = Dataset.from_dict({name: column[:clients] for name, column in table.items()})
    partitioner = NaturalIdPartitioner(partition_by="writer")
    partitioner.dataset = Dataset.from_dict(
        {name: column[clients:] for name, column in table.items()}
    )
    parts = [partial(partitioner.load_partition, client) for client in range(clients)]
    return Problem(nn.Linear(9, CLASSES), parts, test, batch_size=4, collate=collate)

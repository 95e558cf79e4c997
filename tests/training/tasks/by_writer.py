"""Records with the id of who wrote them: every writer is a client, whose records are collated."""

import torch
from torch import nn

from sojourn.training import Problem

Record = dict[str, object]


def collate(records: list[Record]) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = torch.stack([torch.as_tensor(record["pixels"]) for record in records])
    return pixels, torch.tensor([record["label"] for record in records])


def problem(clients: int, seed: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    by_writer: dict[str, list[Record]] = {}
    for number in range(clients * 15):
        pixels = torch.randn(9, generator=generator)
        writer = f"writer-{number % clients}"
        record = {"pixels": pixels, "label": int(pixels.argmax() % 3), "writer": writer}
        by_writer.setdefault(writer, []).append(record)
    everyone = [record for records in by_writer.values() for record in records[:3]]
    train = [Records(records[3:]) for records in by_writer.values()]
    return Problem(nn.Linear(9, 3), train, Records(everyone), batch_size=4, collate=collate)


class Records:
    """Some records of a table that others hold, by their places."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]

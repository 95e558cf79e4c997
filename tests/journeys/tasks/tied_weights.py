"""A model that uses one matrix twice: to embed words and to score the next."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from sojourn.training import Problem

WORDS = 20


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.hidden = nn.Linear(16, 16)
        self.scores = nn.Linear(16, WORDS, bias=False)
        self.scores.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.hidden(self.embedding(x)))
        return scores


def problem(clients: int, seed: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(WORDS, (clients + 1, 40), generator=generator)
    sets = [(x, (x + 1) % WORDS) for x in words]
    return Problem(Tied(), sets[1:], sets[0], functional.cross_entropy, batch_size=8)

"""The next letter by a GRU: as many places as letters, judged by perplexity."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from sojourn.training import Problem, metrics

LETTERS = LENGTH = 10


class Letters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, 12)
        self.memory = nn.GRU(12, 16, batch_first=True)
        self.scores = nn.Linear(16, LETTERS)

    def forward(self, x: Tensor) -> Tensor:
        remembered, _ = self.memory(self.embedding(x))
        scores: Tensor = self.scores(remembered)
        return scores


def loss(outputs: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), y.flatten())


def texts(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    start = torch.randint(LETTERS, (count, 1), generator=generator)
    text = (start + 3 * torch.arange(LENGTH + 1)) % LETTERS
    return text[:, :-1], text[:, 1:]


def problem(clients: int, seed: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    return Problem(
        Letters(),
        [texts(12, generator) for _ in range(clients)],
        texts(50, generator),
        loss,
        batch_size=4,
        metrics={"perplexity": metrics.perplexity},
        primary="perplexity",
        higher_is_better=False,
    )

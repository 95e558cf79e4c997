"""Is a review good? A bag of embeddings, one logit, judged by the area under the curve."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from sojourn.training import Problem, metrics

WORDS, LENGTH, SAMPLES = 50, 12, 40


class Reviews(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(WORDS, 8)
        self.score = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(x)
        score: Tensor = self.score(embedded)
        return score


def reviews(count: int, taste: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randint(WORDS, (count, LENGTH), generator=generator)
    good = taste[x].sum(dim=1) + torch.randn(count, generator=generator) > 0
    return x, good.float()[:, None]


def problem(clients: int, seed: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    taste = torch.randn(WORDS, generator=generator)
    return Problem(
        Reviews(),
        [reviews(SAMPLES, taste, generator) for _ in range(clients)],
        reviews(300, taste, generator),
        functional.binary_cross_entropy_with_logits,
        batch_size=8,
        metrics={"auc": metrics.auc},
        primary="auc",
    )

"""A transformer whose backbone is frozen; a low-rank adapter (LoRA) and the head are trained."""

import torch
from torch import Tensor, nn

from sojourn.training import Problem


class LowRank(nn.Module):
    """A frozen linear layer and a trainable correction of rank ``rank``."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16).requires_grad_(False)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True).requires_grad_(False)
        self.norm = nn.LayerNorm(16).requires_grad_(False)
        self.widen, self.narrow = LowRank(nn.Linear(16, 32)), LowRank(nn.Linear(32, 16))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        x = x + self.dropout(self.narrow(torch.relu(self.widen(x))))
        return self.head(x.mean(1))


def problem(clients: int, seed: int) -> Problem:
    tokens = torch.randint(30, (clients + 1, 24, 6))
    labels = (tokens.float().mean(-1) > 14.5).long()
    pairs = list(zip(tokens, labels, strict=True))
    return Problem(Classifier(), pairs[1:], pairs[0], batch_size=8, optimizer=torch.optim.AdamW)

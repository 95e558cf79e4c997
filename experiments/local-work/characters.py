"""A small character transformer on the documentation that ships with Python, one set of topics per client."""

import string
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional

from sojourn.training import Problem

SYMBOLS = "\n .,'()_" + string.ascii_lowercase
OTHER = len(SYMBOLS)
WIDTH, HEADS, LENGTH = 32, 2, 32
WINDOWS, TEST_WINDOWS, BATCH = 256, 256, 16


class CharacterTransformer(nn.Module):
    """One block of causal attention over the last ``LENGTH`` characters: 12,000 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.symbol = nn.Embedding(OTHER + 1, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.mixed = nn.Linear(WIDTH, WIDTH)
        self.hidden, self.back = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, OTHER + 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character at every place: (batch, symbols, places)."""
        h = self.symbol(x) + self.place
        parts = self.attention(self.before(h)).unflatten(2, (3 * HEADS, -1)).transpose(1, 2)
        query, key, value = parts.split(HEADS, dim=1)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        h = h + self.mixed(seen.transpose(1, 2).flatten(2))
        h = h + self.back(functional.gelu(self.hidden(self.between(h))))
        return self.head(h).transpose(1, 2)


def windows(text: str, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``count`` random windows of a text, and the characters that follow at every place."""
    known = {symbol: number for number, symbol in enumerate(SYMBOLS)}
    codes = torch.tensor([known.get(symbol, OTHER) for symbol in text.lower()])
    starts = torch.randint(len(codes) - LENGTH, (count, 1), generator=generator)
    places = starts + torch.arange(LENGTH + 1)
    return codes[places][:, :-1], codes[places][:, 1:]


def problem(clients: int, seed: int) -> Problem:
    """Topics are dealt to clients in order of their names, so that clients differ in what they write."""
    generator = torch.Generator().manual_seed(seed)
    names = sorted(topics)
    tested = names[::5]
    rest = [name for name in names if name not in tested]
    share = -(-len(rest) // clients)
    texts = ["\n".join(topics[n] for n in rest[i * share :][:share]) for i in range(clients)]
    sets = [windows(text, WINDOWS, generator) for text in texts]
    test = windows("\n".join(topics[name] for name in tested), TEST_WINDOWS, generator)
    return Problem(
        CharacterTransformer(),
        sets,
        test,
        batch_size=BATCH,
        optimizer=torch.optim.AdamW,
        optimizer_state="client",
        primary="loss",
        higher_is_better=False,
    )

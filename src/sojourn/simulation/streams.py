"""Random numbers for the kernels, drawn by NumPy in blocks.

The kernels are deterministic functions of these numbers, so a slow twin that is fed the same
numbers must give the same schedule. Blocks have one size, so a schedule does not depend on how
many rounds are asked for at a time.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sojourn.checks import check_seed

BLOCK = 8192

Seed = int | np.random.SeedSequence

Number = TypeVar("Number", bound=np.generic)


class Stream(Generic[Number]):
    """An endless sequence of numbers: ``values[used:]`` are the next ones."""

    def __init__(self, draw: Callable[[int], NDArray[Number]], *, block: int = BLOCK) -> None:
        self._draw = draw
        self._block = block
        self.values = draw(block)
        self.used = 0

    def ensure(self, needed: int) -> None:
        """Have at least ``needed`` numbers ready."""
        while self.values.size - self.used < needed:
            rest = self.values[self.used :]
            fresh = self._draw(self._block)
            self.values = np.concatenate((rest, fresh)) if rest.size else fresh
            self.used = 0

    def take(self, number: int) -> NDArray[Number]:
        """The next ``number`` numbers."""
        self.ensure(number)
        self.used += number
        return self.values[self.used - number : self.used]


def generators(seed: Seed, number: int) -> list[np.random.Generator]:
    """Independent generators that depend on ``seed`` only, however often this is called.

    >>> a, b = (generators(7, 2)[1].random() for _ in range(2))
    >>> a == b
    True
    """
    return [np.random.Generator(np.random.SFC64(child)) for child in spawned(seed, number)]


def spawned(seed: Seed, number: int) -> list[np.random.SeedSequence]:
    """Independent seeds that depend on ``seed`` only, however often this is called."""
    sequence = seed_sequence(seed)
    fresh = np.random.SeedSequence(
        entropy=sequence.entropy, spawn_key=sequence.spawn_key, pool_size=sequence.pool_size
    )
    return fresh.spawn(number)


def seed_sequence(seed: Seed) -> np.random.SeedSequence:
    """``seed`` as a NumPy ``SeedSequence``."""
    if isinstance(seed, np.random.SeedSequence):
        return seed
    return np.random.SeedSequence(check_seed(seed))


def seed_record(seed: Seed) -> Any:
    """The seed as it is written to a file: a number, or entropy and spawn key."""
    if isinstance(seed, np.random.SeedSequence):
        return {"entropy": seed.entropy, "spawn-key": list(seed.spawn_key)}
    return int(seed)


def seed_from_record(record: Any) -> Seed:
    """The inverse of ``seed_record``."""
    if isinstance(record, dict):
        return np.random.SeedSequence(
            entropy=record["entropy"], spawn_key=tuple(record["spawn-key"])
        )
    return int(record)


def substreams(seed: Seed, place: int, number: int) -> list[np.random.Generator]:
    """``number`` independent generators below the one at ``place`` of `generators`."""
    sequence = seed_sequence(seed)
    return [
        np.random.Generator(
            np.random.SFC64(
                np.random.SeedSequence(
                    entropy=sequence.entropy,
                    spawn_key=(*sequence.spawn_key, place, i),
                    pool_size=sequence.pool_size,
                )
            )
        )
        for i in range(number)
    ]

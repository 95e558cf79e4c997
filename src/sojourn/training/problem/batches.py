"""The batches of every client: which samples, how they are augmented, and the seeds of their noise."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from sojourn._support.checks import check_seed
from sojourn.types import IntArray

BLOCK = 32
CACHED_BLOCKS = 16
"""Per client: runs that are computed together may ask for batches that are far apart."""
CACHED_INDICES = 2**22
"""In all, beyond the block that each client is at: a fleet of thousands does not cache 16 for each."""
UNBOUND_CLIENTS = 256
"""Up to so many clients a block is a tensor per batch, faster to take and three times as large."""
CACHED_SAMPLES = 2**21
"""Samples whose augmentation is cached, for runs that ask for the same batch."""
_BATCHES, _NOISE = 0, 1


@runtime_checkable
class DrawsFirst(Protocol):
    """An augmentation that draws what becomes of a batch before it sees it.

    What was drawn has a column per sample, so that many batches can be changed together.
    """

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Both, one after the other."""

    def draw(self, count: int, generator: torch.Generator) -> NDArray[np.generic]:
        """What becomes of ``count`` samples."""

    def moved(self, images: Tensor, drawn: NDArray[np.generic]) -> Tensor:
        """The samples, so changed."""


Augment: TypeAlias = Callable[[Tensor, torch.Generator], Tensor] | DrawsFirst


class Batches:
    """The batches of every client for one seed, drawn a block at a time.

    Batch ``number`` of ``client`` does not depend on who asks, nor on what was asked before, so
    that every strategy sees the same world. A batch is ``batch_size`` samples without repetition,
    independent of the client's other batches; a client with fewer samples than that draws with
    repetition.

    ``size`` says how many samples a client holds; ``offsets`` where those of each client begin, if
    all are numbered together.

    >>> Batches(1, [5, 3].__getitem__, 4, offsets=[0, 5]).indices(client=1, number=0).tolist()
    [7, 5, 5, 6]
    """

    def __init__(
        self,
        seed: int,
        size: Callable[[int], int],
        batch_size: int,
        offsets: Sequence[int] | IntArray | None = None,
    ) -> None:
        self.seed = check_seed(seed)
        self.batch_size = batch_size
        self._size = size
        sizes = range(0, max(1, self.seed.bit_length()), 32)
        self._words = [(self.seed >> bits) & 0xFFFFFFFF for bits in sizes]
        self._padding = [0] * (_POOL - 2 - len(self._words))
        self._offsets = None if offsets is None else [int(offset) for offset in offsets]
        self._blocks: dict[int, dict[int, tuple[Tensor, ...] | Tensor]] = {}
        self._drawn: dict[tuple[int, int], NDArray[np.generic]] = {}

    def indices(self, client: int, number: int) -> Tensor:
        """The samples of batch ``number`` of ``client``, shape ``(batch_size,)``."""
        block, row = divmod(number, BLOCK)
        known = self._blocks.setdefault(client, {})
        if block not in known:
            most = CACHED_INDICES // (BLOCK * self.batch_size * len(self._blocks))
            while len(known) >= max(1, min(CACHED_BLOCKS, most)):
                del known[next(iter(known))]
            known[block] = self._draw(client, block)
        return known[block][row]

    def noise(self, client: int, number: int) -> int:
        """A seed for whatever else is random in that batch: augmentation and dropout."""
        words = [*self._words, client, number, *self._padding, _NOISE]
        return int(_generated(np.array(words, dtype=np.uint32))) >> 1

    def augmented(
        self, augment: Augment | None, x: Tensor, tasks: Sequence[tuple[int, int]]
    ) -> Tensor:
        """The samples of several ``(client, number)``, one batch after the other, each augmented by
        random numbers of its own.
        """
        if augment is None:
            return x
        if isinstance(augment, DrawsFirst):
            return augment.moved(x, np.hstack([self._draw_for(augment, *task) for task in tasks]))
        parts = zip(torch.split(x, self.batch_size), tasks, strict=True)
        return torch.cat([augment(part, self._generator(*task)) for part, task in parts])

    def _draw_for(self, augment: DrawsFirst, client: int, number: int) -> NDArray[np.generic]:
        drawn = self._drawn.get((client, number))
        if drawn is None:
            if len(self._drawn) * self.batch_size >= CACHED_SAMPLES:
                self._drawn.clear()
            drawn = augment.draw(self.batch_size, self._generator(client, number))
            self._drawn[client, number] = drawn
        return drawn

    def _generator(self, client: int, number: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.noise(client, number))

    def _draw(self, client: int, block: int) -> tuple[Tensor, ...] | Tensor:
        entropy = [self.seed, client, block]
        generator = np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=(_BATCHES,)))
        size, shape = self._size(client), (BLOCK, self.batch_size)
        offset = 0 if self._offsets is None else self._offsets[client]
        if size < self.batch_size:
            picked = offset + generator.integers(size, size=shape)
        else:
            order = offset + np.arange(size)
            picked = np.empty(shape, dtype=np.int64)
            _pick(order, generator.integers(np.arange(self.batch_size), size, size=shape), picked)
        rows = torch.from_numpy(picked)
        return rows.unbind() if len(self._blocks) <= UNBOUND_CLIENTS else rows


@njit(cache=True, nogil=True)
def _pick(order: IntArray, swaps: IntArray, picked: IntArray) -> None:
    """The first places of a shuffled ``order``, once per row: place i swaps with ``swaps[row, i]``.

    Whatever order a row begins with, every set of that many samples is equally likely.
    """
    for row in range(swaps.shape[0]):
        for i in range(swaps.shape[1]):
            j = swaps[row, i]
            order[i], order[j] = order[j], order[i]
            picked[row, i] = order[i]


_POOL = 4
"""Words that NumPy mixes the entropy of a seed into."""


@njit(cache=True, nogil=True)
def _generated(words: Any) -> Any:
    """What ``numpy.random.SeedSequence`` generates as its first number of 64 bits.

    ``words`` are its entropy, filled up to four words of 32 bits, and its spawn key. NumPy's objects take
    as long as a twentieth of a small gradient, where a seed is needed for every batch.
    """
    pool = np.zeros(_POOL, dtype=np.uint32)
    constant, factor = np.uint32(0x43B0D7E5), np.uint32(0x931E8875)
    for place in range(_POOL):
        pool[place], constant = _hashed(words[place], constant, factor)
    for source in range(words.size):
        for place in range(_POOL):
            if place != source:
                value = pool[source] if source < _POOL else words[source]
                value, constant = _hashed(value, constant, factor)
                left = np.uint32(np.uint32(0xCA01F9DD) * pool[place])
                mixed = np.uint32(left - np.uint32(np.uint32(0x4973F715) * value))
                pool[place] = mixed ^ (mixed >> np.uint32(16))
    constant, factor = np.uint32(0x8B51F9DD), np.uint32(0x58F38DED)
    low, constant = _hashed(pool[0], constant, factor)
    high, constant = _hashed(pool[1], constant, factor)
    return (np.uint64(high) << np.uint64(32)) | np.uint64(low)


@njit(cache=True, nogil=True)
def _hashed(value: Any, constant: Any, factor: Any) -> Any:
    constant, value = np.uint32(constant * factor), np.uint32(value ^ constant)
    value = np.uint32(value * constant)
    return np.uint32(value ^ (value >> np.uint32(16))), constant

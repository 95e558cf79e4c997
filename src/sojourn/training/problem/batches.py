"""The batches of every client: which samples, how they are augmented, and the seeds of their noise."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

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
        return int(self._sequence(client, number, _NOISE).generate_state(1, np.uint64)[0] >> 1)

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

    def _sequence(self, client: int, number: int, purpose: int) -> np.random.SeedSequence:
        return np.random.SeedSequence([self.seed, client, number], spawn_key=(purpose,))

    def _draw(self, client: int, block: int) -> tuple[Tensor, ...] | Tensor:
        generator = np.random.default_rng(self._sequence(client, block, _BATCHES))
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

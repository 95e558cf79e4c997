"""What one task computes with: its samples, the layers one by one, and the way back."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import conv2d

from sojourn.checks import check_seed
from sojourn.errors import InvalidInput
from sojourn.types import IntArray

BLOCK = 32
KEPT = 16
"""Blocks of a client: runs abreast ask for tasks that are far apart."""
DRAWN = 2**21
"""Samples whose augmentation is remembered, for runs that ask for the same batch."""
_BATCHES, _NOISE = 0, 1


@runtime_checkable
class DrawsFirst(Protocol):
    """An augmentation that draws what becomes of a batch before it sees it.

    What was drawn has a column per sample, so that many batches can be changed together.
    """

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Both, one after the other."""

    def draw(self, count: int, generator: torch.Generator) -> NDArray[Any]:
        """What becomes of ``count`` samples."""

    def moved(self, images: Tensor, drawn: NDArray[Any]) -> Tensor:
        """The samples, so changed."""


Augment: TypeAlias = Callable[[Tensor, torch.Generator], Tensor] | DrawsFirst


class Batches:
    """The batches of every client for one seed, drawn a block at a time.

    Batch ``number`` of ``client`` does not depend on who asks, nor on what was asked before, so
    that every strategy sees the same world. A batch is ``batch_size`` samples without repetition,
    independent of the client's other batches; a client with fewer samples than that draws with
    repetition. Clients follow one another in one numbering of all samples.

    >>> Batches(1, sizes=[5, 3], batch_size=4).indices(client=1, number=0).tolist()
    [7, 5, 5, 6]
    """

    def __init__(self, seed: int, sizes: list[int], batch_size: int) -> None:
        self.seed = check_seed(seed)
        self.batch_size = batch_size
        self._sizes = sizes
        self._offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).tolist()
        self._blocks: dict[int, dict[int, tuple[Tensor, ...]]] = {}
        self._drawn: dict[tuple[int, int], NDArray[Any]] = {}

    def indices(self, client: int, number: int) -> Tensor:
        """The samples of batch ``number`` of ``client``, shape ``(batch_size,)``."""
        block, row = divmod(number, BLOCK)
        known = self._blocks.setdefault(client, {})
        if block not in known:
            if len(known) == KEPT:
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

    def _draw_for(self, augment: DrawsFirst, client: int, number: int) -> NDArray[Any]:
        drawn = self._drawn.get((client, number))
        if drawn is None:
            if len(self._drawn) * self.batch_size >= DRAWN:
                self._drawn.clear()
            drawn = augment.draw(self.batch_size, self._generator(client, number))
            self._drawn[client, number] = drawn
        return drawn

    def _generator(self, client: int, number: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.noise(client, number))

    def _sequence(self, client: int, number: int, purpose: int) -> np.random.SeedSequence:
        return np.random.SeedSequence([self.seed, client, number], spawn_key=(purpose,))

    def _draw(self, client: int, block: int) -> tuple[Tensor, ...]:
        generator = np.random.default_rng(self._sequence(client, block, _BATCHES))
        size, shape = self._sizes[client], (BLOCK, self.batch_size)
        if size < self.batch_size:
            picked = self._offsets[client] + generator.integers(size, size=shape)
        else:
            order = self._offsets[client] + np.arange(size)
            picked = np.empty(shape, dtype=np.int64)
            _pick(order, generator.integers(np.arange(self.batch_size), size, size=shape), picked)
        return torch.from_numpy(picked).unbind()


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


def forward_steps(
    model: nn.Module, *, channels_last: bool = False
) -> list[Callable[[Tensor], Tensor]]:
    """The model as functions to call one after the other.

    To call ``forward`` of a sequence's layers saves what calling a module costs, a tenth of the
    gradient of a small perceptron; a model with hooks is called as a whole. With ``channels_last`` the
    convolutions of a sequence lay out their weights so, too.
    """
    if altered(model):
        return [model]
    if type(model) is nn.Sequential:
        return [
            step for child in model for step in forward_steps(child, channels_last=channels_last)
        ]
    if channels_last and type(model) is nn.Conv2d and model.padding_mode == "zeros":
        return [partial(_convolve_channels_last, model)]
    return [model.forward]


def _convolve_channels_last(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Images of one channel have the same strides either way: it is the weights that tell torch."""
    weight = layer.weight.contiguous(memory_format=torch.channels_last)
    return conv2d(x, weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def altered(model: nn.Module) -> bool:
    """Whether a module does something else than its class: it has hooks, or a ``forward`` of its own."""
    return any(
        m._forward_hooks
        or m._forward_pre_hooks
        or m._backward_hooks
        or m._backward_pre_hooks
        or "forward" in vars(m)
        for m in model.modules()
    )


_ENGINE: Any = torch.autograd.Variable._execution_engine
_ONES = {kind: torch.ones((), dtype=kind) for kind in (torch.float32, torch.float64)}


def backward(loss: Tensor) -> None:
    """``loss.backward()``, without the checks that cost a fifth of a small perceptron's gradient."""
    one = _ONES[loss.dtype] if loss.dim() == 0 else torch.ones_like(loss)
    _ENGINE.run_backward(
        (loss,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's own generator starts from ``seed``; afterwards it is as it was.

    Modules such as dropout take no generator of their own.
    """
    before = torch.random.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.random.set_rng_state(before)


def check_no_parameter_hooks(model: nn.Module) -> None:
    """A copy of a parameter loses its hooks, so training would silently go without them."""
    for name, parameter in model.named_parameters():
        late = getattr(parameter, "_post_accumulate_grad_hooks", None)
        if parameter._backward_hooks or late:
            raise InvalidInput(
                f"the model's parameter '{name}' has a hook, which training would not call: "
                "gradients are computed on copies, often together. Remove it, and do what it does "
                'in the loss or in the rule (server = { name = "plain", clip = 1.0 } clips, '
                "weight-decay decays)."
            )

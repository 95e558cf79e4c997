"""What a pass takes and gives: the samples of its batch, layers one by one, the way back, accuracy."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

from sojourn.errors import InvalidInput
from sojourn.history import RESERVED
from sojourn.types import IntArray

BLOCK = 32
_BATCHES, _NOISE = 0, 1


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
        self._blocks: dict[int, tuple[int, tuple[Tensor, ...]]] = {}

    def indices(self, client: int, number: int) -> Tensor:
        """The samples of batch ``number`` of ``client``, shape ``(batch_size,)``."""
        block, row = divmod(number, BLOCK)
        drawn = self._blocks.get(client)
        if drawn is None or drawn[0] != block:
            drawn = block, self._draw(client, block)
            self._blocks[client] = drawn
        return drawn[1][row]

    def noise(self, client: int, number: int) -> int:
        """A seed for whatever else is random in that batch: augmentation and dropout."""
        return int(self._sequence(client, number, _NOISE).generate_state(1, np.uint64)[0] >> 1)

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


def check_seed(seed: int) -> int:
    """``seed`` as an int of at least 0, or ``InvalidInput``."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidInput(f"seed must be a whole number of at least 0; it is {seed!r}")
    return int(seed)


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


Metric: TypeAlias = Callable[[Tensor, Tensor], float]
"""From all outputs on the test set, and its labels, to a number."""


def forward_steps(model: nn.Module) -> list[Callable[[Tensor], Tensor]]:
    """The model as functions to call one after the other.

    To call ``forward`` of a sequence's layers saves what calling a module costs, a tenth of the
    gradient of a small perceptron; a model with hooks is called as a whole.
    """
    if altered(model):
        return [model]
    if type(model) is nn.Sequential:
        return [step for child in model for step in forward_steps(child)]
    return [model.forward]


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


Counted = tuple[int, int]
"""How many answers are right, of how many."""

Count = Callable[[Tensor, Tensor], Counted]
"""From outputs and labels of some samples."""

Loss = Callable[[Tensor, Tensor], Tensor]


def accuracy_of(loss: Loss, outputs: Tensor, y: Tensor, everyone: Tensor) -> Count | None:
    """How to count right answers, given some outputs with their labels, and all labels there are.

    ``None`` if there is no right and wrong.
    """
    ignored = int(getattr(loss, "ignore_index", -100))
    if not y.is_floating_point():
        if outputs.dim() == y.dim() + 1 and outputs.shape != (*y.shape, 1):
            places = [
                d
                for d in range(1, outputs.dim())
                if outputs.shape[:d] + outputs.shape[d + 1 :] == y.shape
            ]
            if len(places) > 1:
                places = [d for d in places if _points_at_labels(loss, outputs, y, d, ignored)]
            return _classes(places[0], ignored) if len(places) == 1 else None
        return _yes_or_no(0.0) if _same(outputs, y) and _binary(everyone) else None
    if not (_same(outputs, y) and _binary(everyone)):
        return None
    if outputs.shape == y.shape and y.dim() > 1 and y.shape[-1] > 1:
        one_each = bool((everyone.sum(dim=-1) == 1).all())
        if one_each and _close(loss, outputs, outputs + 3.0, y):
            return _one_hot
    return _answers(loss, outputs, y)


def _classes(place: int, ignored: int) -> Count:
    def count(outputs: Tensor, y: Tensor) -> Counted:
        right = outputs.argmax(dim=place) == y
        kept = y != ignored
        return int((right & kept).sum()), int(kept.sum())

    return count


def _one_hot(outputs: Tensor, y: Tensor) -> Counted:
    right = outputs.argmax(dim=-1) == y.argmax(dim=-1)
    return int(right.sum()), right.numel()


def _yes_or_no(threshold: float) -> Count:
    def count(outputs: Tensor, y: Tensor) -> Counted:
        right = (outputs.reshape(y.shape) > threshold) == (y > 0.5)
        return int(right.sum()), right.numel()

    return count


def _answers(loss: Loss, outputs: Tensor, y: Tensor) -> Count | None:
    """Yes from 0 on where the loss takes logits, from one half on where it takes probabilities.

    A loss that is least at the labels themselves, such as a squared error, is of neither kind.
    """
    wanted = y.reshape(outputs.shape).to(outputs.dtype)
    if _value(loss, 16.0 * wanted - 8.0, y) < _value(loss, wanted, y):
        return _yes_or_no(0.0)
    refused = not math.isfinite(_value(loss, torch.full_like(outputs, 2.0), y))
    sure, unsure = 0.98 * wanted + 0.01, torch.full_like(outputs, 0.5)
    return _yes_or_no(0.5) if refused and _value(loss, sure, y) < _value(loss, unsure, y) else None


def _points_at_labels(loss: Loss, outputs: Tensor, y: Tensor, place: int, ignored: int) -> bool:
    """Whether the score of the label is the one whose rise lowers the loss most, along ``place``."""
    scores = torch.zeros_like(outputs).requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(loss(scores, y), scores)
    kept = y != ignored
    return bool((slope.argmin(dim=place) == y)[kept].all())


def _value(loss: Loss, outputs: Tensor, y: Tensor) -> float:
    try:
        return float(loss(outputs, y))
    except (RuntimeError, ValueError):
        return math.inf


def _close(loss: Loss, one: Tensor, other: Tensor, y: Tensor) -> bool:
    return math.isclose(_value(loss, one, y), _value(loss, other, y), rel_tol=1e-4, abs_tol=1e-6)


def _same(outputs: Tensor, y: Tensor) -> bool:
    return outputs.numel() == y.numel() and outputs.squeeze(-1).shape == y.squeeze(-1).shape


def _binary(y: Tensor) -> bool:
    return bool(((y == 0) | (y == 1)).all())


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


def checked_metrics(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """``metrics``, if their names can be columns of a history and they can be called."""
    for name, metric in metrics.items():
        if not name.isidentifier() or name in RESERVED:
            raise InvalidInput(
                f"a metric cannot be called {name!r}: take a name like those in Python that no "
                "column of a history has"
            )
        if not callable(metric):
            raise InvalidInput(f"the metric {name} must be a function (outputs, y) -> number")
    return dict(metrics)

"""What counts as right, for labels of every usual shape.

The task is read off the test set, the outputs and the loss, once: classes (one label per sample, or
one per place of a sequence), one-hot classes, or answers of yes and no (one output or several). What
is none of these, such as a regression, has no accuracy.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

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

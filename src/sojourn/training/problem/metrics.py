"""How good predictions are: metrics for ``Problem(metrics=...)``, and which predictions are right.

A metric is a function of all outputs on the test set, and its labels.
"""

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from sojourn.errors import InvalidInput
from sojourn.runs.history import RESERVED

Metric: TypeAlias = Callable[[Tensor, Tensor], float]
"""From all outputs on the test set, and its labels, to a number."""


def auc(outputs: Tensor, y: Tensor) -> float:
    r"""The chance that a positive sample scores above a negative one, ties counting half.

    Outputs are one score per sample, or two, of which the difference is taken. Cost: a sort.

    >>> auc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.75
    """
    from sklearn.metrics import roc_auc_score

    two = outputs.dim() == y.dim() + 1 and outputs.shape[-1] == 2
    scores = (outputs[..., 1] - outputs[..., 0] if two else outputs).reshape(-1).double()
    positive = y.reshape(-1) > 0.5
    if positive.all() or not positive.any() or not scores.isfinite().all():
        return math.nan
    return float(roc_auc_score(positive.numpy(), scores.numpy()))


def perplexity(outputs: Tensor, y: Tensor) -> float:
    """The exponential of the mean cross-entropy of scores ``(..., classes)``; labels below 0 are left out.

    >>> round(perplexity(torch.zeros(2, 5, 7), torch.zeros(2, 5, dtype=torch.long)), 6)
    7.0
    """
    scores, labels = outputs.reshape(-1, outputs.shape[-1]), y.reshape(-1)
    return float(functional.cross_entropy(scores, labels.where(labels >= 0, -100)).exp())


def mean_absolute_error(outputs: Tensor, y: Tensor) -> float:
    """How far off predictions are on average.

    >>> mean_absolute_error(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 1.0]))
    1.5
    """
    from sklearn import metrics

    if not outputs.isfinite().all():
        return math.nan
    return float(metrics.mean_absolute_error(_flat(y), _flat(outputs)))


def r_squared(outputs: Tensor, y: Tensor) -> float:
    """The share of the variance of ``y`` that is explained; 1 is all of it.

    >>> r_squared(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0]))
    1.0
    """
    from sklearn.metrics import r2_score

    if not outputs.isfinite().all():
        return math.nan
    rows = len(y)
    predicted, wanted = _flat(outputs).reshape(rows, -1), _flat(y).reshape(rows, -1)
    # Several outputs are one sum of squares, not one score each.
    return float(r2_score(wanted, predicted, multioutput="variance_weighted"))


def _flat(values: Tensor) -> NDArray[np.float64]:
    return np.asarray(values.reshape(-1).double().numpy())


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


Counted = tuple[int, int]
"""How many answers are right, of how many."""

Count = Callable[[Tensor, Tensor], Counted]
"""From outputs and labels of some samples."""

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


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
            if len(places) != 1 or not _numbers_of(outputs.shape[places[0]], everyone, ignored):
                return None
            return _classes(places[0], ignored)
        return _yes_or_no(0.0) if _same(outputs, y) and _binary(everyone) else None
    if not (_same(outputs, y) and _binary(everyone)):
        return None
    if outputs.shape == y.shape and y.dim() > 1 and y.shape[-1] > 1:
        one_each = bool((everyone.sum(dim=-1) == 1).all())
        if one_each and _close(loss, outputs, outputs + 3.0, y):
            return _one_hot
    return _answers(loss, outputs, y)


def _numbers_of(outputs: int, labels: Tensor, ignored: int) -> bool:
    """Whether labels are numbers of outputs: a loss of one's own may take others, such as 1 to k."""
    kept = labels[labels != ignored]
    return not kept.numel() or (int(kept.min()) >= 0 and int(kept.max()) < outputs)


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

"""Metrics for ``Problem(metrics=...)``: functions of all outputs on the test set, and its labels."""

import torch
from torch import Tensor
from torch.nn import functional


def auc(outputs: Tensor, y: Tensor) -> float:
    r"""The chance that a positive sample scores above a negative one, ties counting half.

    Outputs are one score per sample, or two, of which the difference is taken. Cost: a sort.

    >>> auc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.75
    """
    two = outputs.dim() == y.dim() + 1 and outputs.shape[-1] == 2
    scores = (outputs[..., 1] - outputs[..., 0] if two else outputs).reshape(-1).double()
    positive = y.reshape(-1) > 0.5
    yes, no = int(positive.sum()), int((~positive).sum())
    if not (yes and no):
        return float("nan")
    values, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    below = counts.cumsum(0) - counts
    ranks = below + (counts + 1) / 2
    total = float(ranks[place][positive].sum())
    return (total - yes * (yes + 1) / 2) / (yes * no)


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
    return float((outputs.reshape(y.shape) - y).abs().mean())


def r_squared(outputs: Tensor, y: Tensor) -> float:
    """The share of the variance of ``y`` that is explained; 1 is all of it.

    >>> r_squared(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0]))
    1.0
    """
    left = (outputs.reshape(y.shape) - y).double().square().sum()
    return float(1.0 - left / (y.double() - y.double().mean(0)).square().sum())

"""Telling problems apart: what a run must not be continued with."""

from typing import Any

from torch import Tensor

from sojourn.train.checkpoint import digest
from sojourn.train.problem import Problem


def problem_digest(problem: Problem) -> str:
    """A fingerprint of model, first weights, loss, augmentation, and of what clients hold.

    Of data all labels are looked at, but one input per client. Code is known by its name alone.
    """
    x, y = problem.test_set
    held: list[Tensor] = [part for xs, ys in problem.train_sets for part in (xs[0], ys)]
    return digest(
        problem.initial_weights(),
        repr(problem.model),
        described(problem.loss),
        described(problem.augment),
        problem.batch_size,
        x[0],
        y,
        *held,
    )


def described(function: Any) -> str:
    """A function's or an object's name, and the plain values that the object holds.

    >>> from torch.nn import CrossEntropyLoss
    >>> described(CrossEntropyLoss()) == described(CrossEntropyLoss(label_smoothing=0.1))
    False
    """
    named = function if hasattr(function, "__qualname__") else type(function)
    held = getattr(function, "__dict__", {})
    plain = {k: v for k, v in held.items() if isinstance(v, int | float | str)}
    return f"{named.__module__}.{named.__qualname__} {sorted(plain.items(), key=repr)}"

"""What a screen sees, what it answers, and what it has to be."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sojourn.types import Vector

Gradient = Callable[[Vector, int], Vector]
"""The gradient at some weights on the server's own samples; the number chooses the batch."""

Outcome = Literal["apply", "refuse", "hold", "keep"]


@dataclass(frozen=True, slots=True)
class Submission:
    """An update that came, the client it is from, and the model that it would move.

    ``weight`` is what the update will be multiplied with beside the learning rate, 1 over its
    divisor, and ``earned`` the sum of the weights that the client would have had so far by its share
    of the plan; ``descends`` whether the server steps against it (a gradient) or along it.
    """

    update: Vector
    client: int
    weights: Vector
    version: int
    weight: float = 1.0
    earned: float = math.inf
    descends: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a submission.

    *apply* ``update``, which is the client's own times ``scale`` unless several clients' make one;
    *refuse* it, for ``reason``, as the client's fault if ``blame``; *hold* it back, which is nobody's
    fault; or *keep* it, because it will move the model together with others. ``idle`` says that its
    client is one whose updates are next to nothing, which is no fault either.
    """

    outcome: Outcome
    update: Vector | None = None
    scale: float = 1.0
    reason: str = ""
    blame: bool = True
    idle: bool = False


class Guard(Protocol):
    """The memory of a screen during one run."""

    def judge(self, given: Submission) -> Verdict:
        """What to do with an update."""

    def record(self) -> Mapping[str, NDArray[Any]]:
        """The memory as named arrays, for a checkpoint."""

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `record` gave."""


class Screen(ABC):
    """Subclasses are frozen dataclasses whose fields are their knobs."""

    name: ClassVar[str]
    needs_reference: ClassVar[bool] = False

    @abstractmethod
    def guard(self, size: int, clients: int, gradient: Gradient | None) -> Guard:
        """The memory for one run with a model of ``size`` weights."""


def unusable(update: object, weights: Vector) -> str | None:
    """Why ``update`` is no update of ``weights`` at all; ``None`` if it is one.

    What could not be read comes as text that says why.

    >>> unusable(np.array([1.0, np.nan]), np.ones(2))
    'it holds values that are not finite'
    >>> unusable(np.ones(2), np.ones(2))
    """
    if isinstance(update, str):
        return update
    if not isinstance(update, np.ndarray) or update.dtype.kind != "f":
        return "it is not an array of real numbers"
    if update.dtype != weights.dtype:
        return f"its numbers are {update.dtype} where the model's are {weights.dtype}"
    if update.shape != weights.shape:
        return f"its shape is {update.shape} where the model has {weights.size} weights"
    if not math.isfinite(norm_of(update)):
        finite = bool(np.isfinite(update).all())
        return "its norm is infinite" if finite else "it holds values that are not finite"
    return None


def norm_of(vector: Vector) -> float:
    """The Euclidean norm, in double precision."""
    wide = vector if vector.dtype == np.float64 else vector.astype(np.float64)
    return math.sqrt(float(np.dot(wide, wide)))

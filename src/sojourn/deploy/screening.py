"""Refusing updates that would harm the model."""

import math

import numpy as np
from numpy.typing import NDArray

from sojourn.types import Vector

LARGEST_RATIO = 30.0
MOST_OF_WEIGHTS = 1e3
ENOUGH_CLIENTS = 3


class Screen:
    """Decides whether an update may be used.

    An update is refused if it is not a vector of ``size`` numbers of the type that the weights
    have (any other would change the model's), if any of them is not finite,
    or if its Euclidean norm is more than ``largest_ratio`` times the median over clients of the
    norm that each sent last (zeros apart). The median is over *clients*, so that no single client can move it,
    however often it sends. An update is refused in any case if its norm is above a thousand times
    that of the weights (or 1, if that is larger): until three clients have sent something this is
    the only bound.

    >>> screen = Screen(size=2, clients=3)
    >>> screen.refusal(np.array([1.0, np.nan]), client=0, weights=np.ones(2))
    'it holds values that are not finite'
    >>> screen.refusal(np.array([1.0, 2.0]), client=0, weights=np.ones(2))
    """

    def __init__(self, *, size: int, clients: int, largest_ratio: float = LARGEST_RATIO) -> None:
        self.size = size
        self.largest_ratio = largest_ratio
        self.norms: NDArray[np.float64] = np.full(clients, np.nan)
        self._heard = 0
        self._median = math.nan
        self._age = 0

    def refusal(self, update: object, *, client: int, weights: Vector) -> str | None:
        """What is wrong with ``update``; ``None`` if nothing is."""
        if not isinstance(update, np.ndarray) or update.dtype.kind != "f":
            return "it is not an array of real numbers"
        if update.dtype != weights.dtype:
            return f"its numbers are {update.dtype} where the model's are {weights.dtype}"
        if update.shape != (self.size,):
            return f"its shape is {update.shape} where the model has {self.size} weights"
        norm = _norm(update)
        if not math.isfinite(norm):
            finite = bool(np.isfinite(update).all())
            return "its norm is infinite" if finite else "it holds values that are not finite"
        bound = self.bound(weights)
        self._remember(client, norm)
        if norm > bound:
            return f"its norm is {norm:.3g}, above the largest allowed, {bound:.3g}"
        return None

    def bound(self, weights: Vector) -> float:
        """The largest norm allowed now."""
        most = MOST_OF_WEIGHTS * max(1.0, _norm(weights))
        if self._heard < ENOUGH_CLIENTS:
            return most
        if self._age >= 1 + self._heard // 8:
            heard = self.norms[~np.isnan(self.norms)]
            self._median = float(np.partition(heard, (heard.size - 1) // 2)[(heard.size - 1) // 2])
            self._age = 0
        return min(most, self.largest_ratio * self._median)

    def restore(self, norms: NDArray[np.float64]) -> None:
        """Take up the norms seen before a checkpoint."""
        self.norms = np.array(norms, dtype=np.float64)
        self._heard = int(np.count_nonzero(~np.isnan(self.norms)))
        self._age = self.norms.size

    def _remember(self, client: int, norm: float) -> None:
        if norm == 0.0:
            return
        if math.isnan(self.norms[client]):
            self._heard += 1
            self._age = self.norms.size
        self.norms[client] = norm
        self._age += 1


def _norm(vector: Vector) -> float:
    wide = vector if vector.dtype == np.float64 else vector.astype(np.float64)
    return math.sqrt(float(np.dot(wide, wide)))

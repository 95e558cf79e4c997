r"""Clipping to the clients' typical norm.

Let :math:`M` be the median over the clients of what each of them typically sends (the median norm
of its last updates). An update of norm :math:`\|g\|` is multiplied by :math:`\min(1, cM/\|g\|)`. The
medians are over *clients*, so that it does not matter how often one sends, and as long as fewer
than half are hostile :math:`M` is between norms that honest clients sent. Hostile clients that
complete :math:`\lambda_i` tasks per unit of time, of weight :math:`w_i`, then move the model by at
most

.. math:: \eta\, c M \sum_{i\ \text{hostile}} \lambda_i w_i

per unit of time, which is :math:`f \lambda \eta c M` for a fraction :math:`f` of the clients if
updates are weighted by :math:`w_i = 1/(n p_i)`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sojourn.checks import check_number
from sojourn.deploy.screening.base import Gradient, Screen, Submission, Verdict, norm_of
from sojourn.types import FloatArray, Vector

LARGEST_RATIO = 2.0
"""With a fifth of the clients hostile the honest are still twice as strong: 4/5 against 2/5."""
ABSURD = 1e3
RECENT = 5
FEW_CLIENTS = 5
MOST_FIRST = 16


@dataclass(frozen=True)
class Norm(Screen):
    """Clip every update to ``largest_ratio`` times the clients' typical norm.

    Until half of the clients (at most 16) have sent something nothing can be said about a norm, and
    updates are held back, because who answers first may be hostile; with fewer than five clients,
    where a majority means little, they are not. A norm a thousand times the largest allowed, or a
    thousand times that of the weights (or 1, if that is larger), is refused as the client's fault.

    >>> guard = Norm().guard(2, 3, None)
    >>> for client in range(3):
    ...     verdict = guard.judge(Submission(np.array([3.0, 4.0]), client, np.ones(2), 0))
    >>> guard.judge(Submission(np.array([30.0, 40.0]), 0, np.ones(2), 0)).update
    array([6., 8.])
    """

    name: ClassVar[str] = "norm"
    largest_ratio: float = LARGEST_RATIO

    def __post_init__(self) -> None:
        check_number("largest_ratio", self.largest_ratio, least=1.0)

    def guard(self, size: int, clients: int, gradient: Gradient | None) -> "NormGuard":
        return NormGuard(clients, self.largest_ratio)


class NormGuard:
    """Every client's last norms; ``typical`` is what it usually sends, NaN before it sent any."""

    def __init__(self, clients: int, largest_ratio: float) -> None:
        self.largest_ratio = largest_ratio
        self.recent: FloatArray = np.full((clients, RECENT), np.nan)
        self.typical: FloatArray = np.full(clients, np.nan)
        half = min((clients + 1) // 2, MOST_FIRST)
        self._enough = half if clients >= FEW_CLIENTS else min(3, clients + 1)
        self._holds = clients >= FEW_CLIENTS
        self._median = math.nan
        self._heard = 0
        self._age = 0

    def judge(self, given: Submission) -> Verdict:
        norm = norm_of(given.update)
        bound = self.bound()
        absurd = ABSURD * min(bound, max(1.0, norm_of(given.weights)))
        self._remember(given.client, norm)
        if norm > absurd:
            reason = f"its norm is {norm:.3g}, above the largest allowed, {absurd:.3g}"
            return Verdict("refuse", reason=reason)
        if self._heard < self._enough and self._holds:
            return Verdict("hold", reason=f"only {self._heard} clients were heard so far")
        if math.isinf(bound):
            bound = self.bound() if self._holds else bound
        if norm <= bound:
            return Verdict("apply", given.update)
        return Verdict("apply", *_clipped(given.update, bound / norm))

    def bound(self) -> float:
        """The norm that updates are clipped to now; infinite while too few were heard."""
        if self._heard < self._enough:
            return math.inf
        if self._age >= 1 + self._heard // 8:
            heard = self.typical[~np.isnan(self.typical)]
            self._median = float(np.partition(heard, (heard.size - 1) // 2)[(heard.size - 1) // 2])
            self._age = 0
        return self.largest_ratio * self._median

    def record(self) -> dict[str, NDArray[Any]]:
        return {"recent": self.recent}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.recent = np.array(arrays["recent"], dtype=np.float64)
        self.typical = np.array([_median(row) for row in self.recent])
        self._heard = int(np.count_nonzero(~np.isnan(self.typical)))
        self._age = self.typical.size + 1

    def _remember(self, client: int, norm: float) -> None:
        if norm == 0.0:
            return
        if math.isnan(self.typical[client]):
            self._heard += 1
            self._age = self.typical.size + 1
        row = self.recent[client]
        row[1:] = row[:-1]
        row[0] = norm
        self.typical[client] = _median(row)
        self._age += 1


def _median(row: FloatArray) -> float:
    known = np.sort(row[~np.isnan(row)])
    return float(known[(known.size - 1) // 2]) if known.size else math.nan


def _clipped(update: Vector, scale: float) -> tuple[Vector, float]:
    factor = update.dtype.type(scale)
    return np.asarray(update * factor), float(factor)

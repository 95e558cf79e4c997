r"""Accepting what agrees with the server's own samples.

With :math:`v` the gradient of the server's samples at a model at most ``every`` versions old, an
update is accepted if its cosine with the direction that :math:`v` would move the model in is above
``least_cosine``, and clipped to ``largest_ratio`` times :math:`\|v\|` where it is a gradient. Every
accepted step then descends on the server's samples, up to their staleness, whatever the number of
hostile clients. Zeno++ (Xie, Koyejo and Gupta 2020); AFLGuard (Fang et al. 2022).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sojourn.checks import check_number, check_whole
from sojourn.deploy.screening.base import Gradient, Screen, Submission, Verdict, norm_of
from sojourn.errors import InvalidInput
from sojourn.types import Vector


@dataclass(frozen=True)
class Reference(Screen):
    """Accept an update if it agrees with the gradient of the server's own samples.

    >>> guard = Reference().guard(2, 3, lambda weights, number: weights)
    >>> guard.judge(Submission(np.array([-1.0, -1.0]), 0, np.ones(2), 0)).reason
    "its cosine with the server's own gradient is -1.00, not above 0"
    """

    name: ClassVar[str] = "reference"
    needs_reference: ClassVar[bool] = True
    every: int = 1
    least_cosine: float = 0.0
    largest_ratio: float = 3.0

    def __post_init__(self) -> None:
        check_whole("every", self.every)
        check_number("least_cosine", self.least_cosine, least=-1.0, most=1.0)
        check_number("largest_ratio", self.largest_ratio, above=0.0)

    def guard(self, size: int, clients: int, gradient: Gradient | None) -> "ReferenceGuard":
        if gradient is None:
            raise InvalidInput(
                "the screen 'reference' needs samples at the server: the problem that it builds must "
                "hold some to compute gradients on"
            )
        return ReferenceGuard(self, gradient)


class ReferenceGuard:
    """The last gradient of the server's own samples, and the version that it is of."""

    def __init__(self, screen: Reference, gradient: Gradient) -> None:
        self.screen, self._gradient = screen, gradient
        self._of = -1
        self._own: Vector = np.zeros(0)
        self._norm = 0.0

    def judge(self, given: Submission) -> Verdict:
        if self._of < 0 or given.version - self._of >= self.screen.every:
            self._own = np.asarray(self._gradient(given.weights, given.version), dtype=np.float64)
            self._norm, self._of = norm_of(self._own), given.version
        norm = norm_of(given.update)
        if norm == 0.0 or self._norm == 0.0:
            return Verdict("apply", given.update)
        along = float(np.dot(given.update.astype(np.float64), self._own))
        cosine = (1.0 if given.descends else -1.0) * along / (norm * self._norm)
        if not cosine > self.screen.least_cosine:
            reason = (
                f"its cosine with the server's own gradient is {cosine:.2f}, "
                f"not above {self.screen.least_cosine:g}"
            )
            return Verdict("refuse", reason=reason, blame=False)
        bound = self.screen.largest_ratio * self._norm
        if not given.descends or norm <= bound:
            return Verdict("apply", given.update)
        factor = given.update.dtype.type(bound / norm)
        return Verdict("apply", np.asarray(given.update * factor), float(factor))

    def record(self) -> dict[str, NDArray[Any]]:
        return {}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._of = -1

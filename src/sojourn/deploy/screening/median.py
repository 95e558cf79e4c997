r"""The coordinate-wise median of a buffer.

Clients are dealt into ``places`` groups by their number. A place holds the weighted mean of what
its group has sent since the last step; when no place is empty the model moves by the coordinate-wise
median of the places, times the number of updates that went into them, and the buffer is emptied. As
long as fewer than half of the places have a hostile client, every coordinate of the step is between
those of honest places. BASGD (Yang and Li 2021). It holds ``places`` vectors as long as the model.

Nobody can stop the model by not answering: once the buffer has had four updates for every place, one
in five places may be empty, and the median is that of the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sojourn.checks import check_whole
from sojourn.deploy.screening.base import Gradient, Screen, Submission, Verdict
from sojourn.types import IntArray

PATIENCE = 4
"""Updates for every place, on average, that empty places are waited for."""
MAY_BE_EMPTY = 5
"""One place in so many."""


@dataclass(frozen=True)
class Median(Screen):
    """Step along the median of ``places`` groups of clients; at most one place per client.

    >>> guard = Median(places=3).guard(1, 3, None)
    >>> for client, value in enumerate((1.0, 99.0, 2.0)):
    ...     verdict = guard.judge(Submission(np.array([value]), client, np.ones(1), 0))
    >>> verdict.update
    array([6.])
    """

    name: ClassVar[str] = "median"
    places: int = 5

    def __post_init__(self) -> None:
        check_whole("places", self.places)

    def guard(self, size: int, clients: int, gradient: Gradient | None) -> "MedianGuard":
        return MedianGuard(size, min(self.places, clients))


class MedianGuard:
    """The buffer: a sum and a count for every place."""

    def __init__(self, size: int, places: int) -> None:
        self.sums: NDArray[Any] = np.zeros((places, size))
        self.counts: IntArray = np.zeros(places, dtype=np.int64)

    def judge(self, given: Submission) -> Verdict:
        place = given.client % self.counts.size
        if self.sums.dtype != given.update.dtype:
            self.sums = self.sums.astype(given.update.dtype)
        self.sums[place] += given.update * given.update.dtype.type(given.weight)
        self.counts[place] += 1
        filled = np.flatnonzero(self.counts)
        missing = self.counts.size - filled.size
        waits = self.counts.sum() < PATIENCE * self.counts.size
        if missing and (waits or missing > self.counts.size // MAY_BE_EMPTY):
            return Verdict("keep")
        means = self.sums[filled] / self.counts[filled, np.newaxis].astype(self.sums.dtype)
        step = np.median(means, axis=0) * self.sums.dtype.type(self.counts.sum())
        # The rule multiplies by the weight of the last client's update, which is in the means.
        step /= step.dtype.type(given.weight)
        self.sums[:] = 0
        self.counts[:] = 0
        return Verdict("apply", np.asarray(step, dtype=given.update.dtype))

    def record(self) -> dict[str, NDArray[Any]]:
        return {"sums": self.sums, "counts": self.counts}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.sums = np.array(arrays["sums"])
        self.counts = np.array(arrays["counts"], dtype=np.int64)

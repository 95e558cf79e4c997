"""Screens: what a server does with an update before it lets the update move the model.

A screen is a frozen value; what it remembers during one run is a `ScreenState`. Several are applied
one after the other. What each of them guarantees, and what it costs, is in ``docs/security.md``.

=============  ===================================================================================
screen         what it does
=============  ===================================================================================
``norm``       clips every update to a multiple of the clients' typical norm; on unless ``none``
``reference``  accepts what agrees with the gradient of the server's own samples
``median``     steps along the coordinate-wise median of a buffer with places for groups of clients
``none``       nothing: only what is no update at all is refused
=============  ===================================================================================
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn._support.checks import check_number, check_whole
from sojourn.errors import InvalidInput
from sojourn.types import IntArray, Vector

Gradient = Callable[[Vector, int], Vector]
"""The gradient at some weights on the server's own samples; the number chooses the batch."""

Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]
"""What a checkpoint holds of something, by name."""

Outcome = Literal["apply", "refuse", "hold", "keep"]

PART = 2**20
"""Numbers of a large vector that are widened to double precision at a time."""
MEDIAN_PATIENCE = 4
"""Updates for every place of the median's buffer, on average, that empty places are waited for."""
MAY_BE_EMPTY = 5
"""One place in so many."""
MAJORITY = 5
"""Clients below which a majority means little."""


def tolerated(clients: int) -> int:
    """How many of so many clients may be hostile: three in ten.

    >>> [tolerated(n) for n in (3, 5, 10, 100)]
    [0, 1, 3, 30]
    """
    return 3 * clients // 10


@dataclass(frozen=True, slots=True)
class Submission:
    """An update that came, the client it is from, and the model that it would move.

    ``weight`` is what the update will be multiplied with beside the learning rate, 1 over its
    divisor, and ``earned`` the sum of the weights that the client would have had so far by its share
    of the plan; ``descends`` whether the server steps against it (a gradient) or along it;
    ``fleet`` how many clients take part or have been heard, by default all of them; ``opposed`` whether the
    client's recent updates point away from the others', or that is not known.
    """

    update: Vector
    client: int
    weights: Vector
    version: int
    weight: float = 1.0
    earned: float = math.inf
    descends: bool = True
    fleet: int | None = None
    opposed: bool = True


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


class ScreenState(ABC):
    """What a screen remembers during one run."""

    @abstractmethod
    def judge(self, given: Submission) -> Verdict:
        """What to do with an update."""

    def forget(self, client: int) -> None:
        """What is remembered of ``client`` is of no use any more; nothing, unless a screen says."""
        return

    def record(self) -> Arrays:
        """The memory as named arrays, for a checkpoint."""
        return {}

    def restore(self, arrays: Arrays) -> None:
        """Take up what `record` gave; nothing, for a screen that records nothing."""
        return


class Screen(ABC):
    """Subclasses are frozen dataclasses whose fields are their parameters."""

    name: ClassVar[str]
    needs_reference: ClassVar[bool] = False

    @abstractmethod
    def begin(self, size: int, clients: int, gradient: Gradient | None) -> ScreenState:
        """The memory for one run with a model of ``size`` weights."""


@dataclass(frozen=True)
class Reference(Screen):
    r"""Accept an update if it agrees with the gradient of the server's own samples.

    With :math:`v` that gradient at a model at most ``every`` versions old, an update is accepted if
    its cosine with the direction that :math:`v` would move the model in is above ``least_cosine``,
    and clipped to ``largest_ratio`` times :math:`\|v\|` where it is a gradient. Every accepted step
    then descends on the server's samples, up to their staleness, whatever the number of hostile
    clients. Zeno++ (Xie, Koyejo and Gupta 2020); AFLGuard (Fang et al. 2022).

    >>> state = Reference().begin(2, 3, lambda weights, number: weights)
    >>> state.judge(Submission(np.array([-1.0, -1.0]), 0, np.ones(2), 0)).reason
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

    def begin(self, size: int, clients: int, gradient: Gradient | None) -> "ReferenceState":
        if gradient is None:
            raise InvalidInput(
                "the screen 'reference' needs samples at the server: the problem that it builds must "
                "hold some to compute gradients on"
            )
        return ReferenceState(self, gradient)


class ReferenceState(ScreenState):
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
        return Verdict("apply", *scaled(given.update, bound / norm))


@dataclass(frozen=True)
class Median(Screen):
    """Step along the coordinate-wise median of ``places`` groups of clients.

    Clients are dealt into groups by their number, at most one place per client. A place holds the
    weighted mean of what its group has sent since the last step; when no place is empty the model
    moves by the coordinate-wise median of the places, times the number of updates that went into
    them, and the buffer is emptied. As long as fewer than half of the places have a hostile client,
    every coordinate of the step is between those of honest places. BASGD (Yang and Li 2021). It
    holds ``places`` vectors as long as the model.

    Nobody can stop the model by not answering: once the buffer has had four updates for every place,
    one in five places may be empty, and the median is that of the others.

    >>> state = Median(places=3).begin(1, 3, None)
    >>> for client, value in enumerate((1.0, 99.0, 2.0)):
    ...     verdict = state.judge(Submission(np.array([value]), client, np.ones(1), 0))
    >>> verdict.update
    array([6.])
    """

    name: ClassVar[str] = "median"
    places: int = 5

    def __post_init__(self) -> None:
        check_whole("places", self.places)

    def begin(self, size: int, clients: int, gradient: Gradient | None) -> "MedianState":
        return MedianState(size, min(self.places, clients))


class MedianState(ScreenState):
    """The buffer: a sum and a count for every place."""

    def __init__(self, size: int, places: int) -> None:
        self.sums: Vector = np.zeros((places, size))
        self.counts: IntArray = np.zeros(places, dtype=np.int64)

    def judge(self, given: Submission) -> Verdict:
        place = given.client % self.counts.size
        if self.sums.dtype != given.update.dtype:
            self.sums = self.sums.astype(given.update.dtype)
        self.sums[place] += given.update * given.update.dtype.type(given.weight)
        self.counts[place] += 1
        filled = np.flatnonzero(self.counts)
        missing = self.counts.size - filled.size
        waits = self.counts.sum() < MEDIAN_PATIENCE * self.counts.size
        if missing and (waits or missing > self.counts.size // MAY_BE_EMPTY):
            return Verdict("keep")
        means = self.sums[filled] / self.counts[filled, np.newaxis].astype(self.sums.dtype)
        step = np.median(means, axis=0) * self.sums.dtype.type(self.counts.sum())
        # The rule multiplies by the weight of the last client's update, which is in the means.
        step /= step.dtype.type(given.weight)
        self.sums[:] = 0
        self.counts[:] = 0
        return Verdict("apply", np.asarray(step, dtype=given.update.dtype))

    def record(self) -> Arrays:
        return {"sums": self.sums, "counts": self.counts}

    def restore(self, arrays: Arrays) -> None:
        self.sums = np.array(arrays["sums"])
        self.counts = np.array(arrays["counts"], dtype=np.int64)


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
    """The Euclidean norm, in double precision; of a large vector by parts, for memory's sake."""
    if vector.size <= PART:
        wide = vector.astype(np.float64, copy=False)
        return math.sqrt(float(np.dot(wide, wide)))
    total = 0.0
    for start in range(0, vector.size, PART):
        wide = vector[start : start + PART].astype(np.float64, copy=False)
        total += float(np.dot(wide, wide))
    return math.sqrt(total)


def scaled(update: Vector, scale: float) -> tuple[Vector, float]:
    """``update`` times ``scale``, and ``scale`` as its own precision holds it."""
    if scale == 1.0:
        return update, scale
    factor = update.dtype.type(scale)
    return np.asarray(update * factor), float(factor)

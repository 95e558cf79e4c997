"""What a run is judged by: the problem's primary measure at the end, over time, or the time to a target."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sojourn._support.checks import check_number
from sojourn._support.estimate import Estimate
from sojourn.errors import UnknownName
from sojourn.runs.history import History
from sojourn.runs.measure import ACCURACY, LOSS, Measure

Kind = Literal["final", "area", "target"]
KINDS = ("final", "area", "target")
LAST = 0.25
"""The last fraction of a pilot run over which a final value is averaged: single evaluations are noisy."""


@dataclass(frozen=True)
class Criterion:
    """A measure at the last evaluation (``final``), averaged over time (``area``), or the time to a ``target``.

    `value` is the number that tables show; `score` is what pilot runs are ranked by, smaller better.

    >>> Criterion("target", 0.8, ACCURACY).describe(), Criterion().describe()
    ('time to 80%', 'final test loss')
    """

    kind: Kind = "final"
    target: float | None = None
    measure: Measure = LOSS

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownName("criterion", self.kind, KINDS)
        if self.kind == "target" and self.measure == ACCURACY:
            check_number("target", self.target, above=0.0, most=1.0)
        elif self.kind == "target":
            check_number("target", self.target)

    @classmethod
    def of(cls, primary: Measure, kind: Kind = "final", target: float | None = None) -> "Criterion":
        """The criterion for a problem with this primary measure.

        An accuracy at the end is replaced by the loss: both order classifiers alike, and the loss is not
        rounded to whole samples.
        """
        judged_by_loss = kind != "target" and primary == ACCURACY
        return cls(kind, target, LOSS if judged_by_loss else primary)

    @property
    def higher_is_better(self) -> bool:
        """Which way `value` is better."""
        return self.kind != "target" and self.measure.higher_is_better

    def value(self, history: History) -> float:
        """The number that is shown for a run; infinitely bad if it diverged or did not reach its target.

        A final value is that of the last row of the history, a time to a target that of
        `History.time_to`: the same numbers as in the run's own files.
        """
        worst = -math.inf if self.higher_is_better else math.inf
        if history.diverged_at is not None or history.rows == 0:
            return worst
        if self.kind == "target":
            assert self.target is not None
            value = history.time_to(self.target)
        elif self.kind == "area":
            value = history.average(self.measure.name)
        else:
            value = float(history.values(self.measure)[-1])
        return value if math.isfinite(value) else worst

    def cost(self, value: float) -> float:
        """A `value` on a scale on which smaller is better, 0 being perfect for a loss or a share."""
        return 1.0 - value if self.higher_is_better else value

    def score(self, history: History, until: float) -> float:
        """How good a pilot run is up to time ``until``, smaller better; infinite if it diverged.

        A final value is averaged over the last quarter of that time, in logarithms where it can be. The time to a
        target is interpolated between evaluations (`Measure.crossing`), for ranking alone. A run that has
        not reached its target ranks behind all that have, by how far it is on its way there.
        """
        if history.diverged_at is not None or history.rows == 0:
            return math.inf
        seen = history.time <= until * (1 + 1e-12)
        time, values = history.time[seen], history.values(self.measure)[seen]
        if self.kind == "target":
            assert self.target is not None
            reached = self.measure.crossing(time, values, self.target)
            return until * (1.0 + self._way_left(values)) if reached is None else reached
        costs = np.asarray([self.cost(value) for value in values.tolist()])
        if self.kind == "area":
            return float(np.trapezoid(costs, time) / max(until, time[-1]))
        last = time >= (1.0 - LAST) * until
        costs = costs[last] if last.any() else costs[-1:]
        if (costs > 0.0).all():
            return float(np.exp(np.mean(np.log(costs))))
        return float(np.mean(costs))

    def _way_left(self, values: np.ndarray) -> float:
        """The fraction of the way from the first value to the target that the best one lacks."""
        assert self.target is not None
        best = np.nanmax(values) if self.measure.higher_is_better else np.nanmin(values)
        whole = abs(self.target - float(values[0]))
        return min(1.0, abs(self.target - float(best)) / whole) if whole > 0.0 else 0.0

    @property
    def stops_at(self) -> float | None:
        """The value of the measure at which a run has shown all that counts."""
        return self.target if self.kind == "target" else None

    def idle(self, history: History | None, until: float) -> float:
        """The score of a run that stays where this one began; 0 if it has no rows. For a target no run is needed."""
        if self.kind == "target":
            return 2.0 * until
        if history is None or not history.rows:
            return 0.0
        return self.cost(float(history.values(self.measure)[0]))

    def text_of(self, values: Sequence[float]) -> str:
        """The mean of the runs' values ± its standard error, or how many runs reached the target."""
        finite = [value for value in values if math.isfinite(value)]
        if len(finite) == len(values):
            return f"{Estimate.from_samples(values):.3g}"
        if self.kind == "target":
            return f"{len(finite)} of {len(values)} reach it" if finite else "not reached"
        return "diverged"

    def describe(self) -> str:
        """The criterion in words, for tables and sentences."""
        if self.kind == "target":
            return self.measure.time_to(self.target or 0.0)
        label = self.measure.label
        return f"final {label}" if self.kind == "final" else f"mean {label} over time"

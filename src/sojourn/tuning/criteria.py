"""What a run is judged by: its final loss, its loss over time, or when it reaches an accuracy."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sojourn.checks import check_number
from sojourn.errors import UnknownName
from sojourn.history import History

Kind = Literal["final", "area", "target"]
KINDS = ("final", "area", "target")


@dataclass(frozen=True)
class Criterion:
    """``final`` (loss at the end), ``area`` (mean loss over time), or ``target`` (time to an accuracy).

    A score is better when it is smaller.
    """

    kind: Kind = "final"
    target: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownName("criterion", self.kind, KINDS)
        if self.kind == "target":
            check_number("target", self.target, above=0.0, most=1.0)

    def score(self, history: History, until: float, spread: float) -> float:
        """How good a run is up to time ``until``; infinite if it diverged.

        A final loss is averaged over the last fraction ``spread`` of that time, in logarithms. A run
        that has not reached its target is ranked behind all that have, by what it lacks.
        """
        if history.diverged_at is not None or history.rows == 0:
            return math.inf
        time, loss = history.time, history.test_loss
        seen = time <= until * (1 + 1e-12)
        if self.kind == "target":
            assert self.target is not None
            reached = crossing(history, self.target)
            if reached <= until:
                return reached
            best = float(np.nanmax(history.test_accuracy[seen], initial=0.0))
            return until * (1.0 + max(0.0, self.target - best))
        if self.kind == "area":
            return float(np.trapezoid(loss[seen], time[seen]) / max(until, time[seen][-1]))
        last = seen & (time >= (1.0 - spread) * until)
        values = loss[last] if last.any() else loss[seen][-1:]
        return float(np.exp(np.mean(np.log(np.maximum(values, 1e-300)))))

    def idle(self, history: History, until: float) -> float:
        """The score of a run that stays where this one began; 0 if it has no rows."""
        if not history.rows:
            return 0.0
        if self.kind == "target":
            assert self.target is not None
            return until * (1.0 + max(0.0, self.target - float(history.test_accuracy[0])))
        return float(history.test_loss[0])

    def describe(self) -> str:
        """In words, for tables and sentences."""
        if self.kind == "target":
            return f"time to {100 * (self.target or 0.0):g} %"
        return "final loss" if self.kind == "final" else "mean loss over time"


def crossing(history: History, accuracy: float) -> float:
    """When the accuracy is first reached, by a straight line between rows; infinite if never."""
    reached = np.flatnonzero(history.test_accuracy >= accuracy)
    if not reached.size:
        return math.inf
    i = int(reached[0])
    if i == 0:
        return float(history.time[0])
    low, high = float(history.test_accuracy[i - 1]), float(history.test_accuracy[i])
    begin, end = float(history.time[i - 1]), float(history.time[i])
    return begin + (end - begin) * (accuracy - low) / (high - low)

"""The measure that runs are judged by: an accuracy, a loss, or a metric of the user's own."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sojourn._support.numbers import number
from sojourn.errors import InvalidInput
from sojourn.types import FloatArray

_TIME_TO = "time to "


@dataclass(frozen=True)
class Measure:
    """A quantity measured on the test set, and which way is better.

    >>> print(ACCURACY.text(0.8123), LOSS.text(0.25), Measure("auc").text(0.9))
    81.2% 0.25 0.9
    """

    name: str
    higher_is_better: bool = True

    @property
    def percent(self) -> bool:
        """Whether it is a share, to be read in percent."""
        return self.name == ACCURACY.name

    @property
    def label(self) -> str:
        """What an axis is called."""
        return f"test {self.name}" if self.name in (ACCURACY.name, LOSS.name) else self.name

    def text(self, value: float) -> str:
        """A value as people read it, with four digits if it is no share.

        >>> LOSS.text(1.0016), LOSS.text(1.00004)
        ('1.002', '1.000')
        """
        return f"{value:.1%}" if self.percent else number(value, 4, zeros=True)

    def target(self, value: float) -> str:
        """A target as people read it.

        >>> ACCURACY.target(0.8), LOSS.target(0.25)
        ('80%', 'loss 0.25')
        """
        return f"{100 * value:.4g}%" if self.percent else f"{self.name} {value:.4g}"

    def time_to(self, target: float) -> str:
        """What the time to a target is called in tables and sentences.

        >>> ACCURACY.time_to(0.8)
        'time to 80%'
        """
        return f"{_TIME_TO}{self.target(target)}"

    def reaches(self, value: float, target: float) -> bool:
        """Whether ``value`` is at least as good as ``target``; what is not a number is not."""
        return value >= target if self.higher_is_better else value <= target

    def first(self, values: Sequence[float] | FloatArray, target: float) -> int | None:
        """The first evaluation of a run at least as good as ``target``; ``None`` if there is none.

        This is the one definition of when a target was reached. `History.time_to` is the time of this
        evaluation, and a run that stops at a target stops here.

        >>> ACCURACY.first([0.1, 0.6, 0.5, 0.9], 0.5), LOSS.first([2.3, 1.1], 1.0)
        (1, None)
        """
        return next((k for k, value in enumerate(values) if self.reaches(value, target)), None)

    def crossing(self, time: FloatArray, values: FloatArray, target: float) -> float | None:
        """When a straight line to the `first` evaluation at ``target`` crosses it, for ranking alone.

        Pilot runs of one rung are evaluated at the same times, so that many of them reach a target at
        the same evaluation. This orders them. It is no time to show: pages show `relative` scores.
        """
        k = self.first(values, target)
        if not k:
            return None if k is None else float(time[0])
        missing_before, missing_then = target - values[k - 1], target - values[k]
        part = missing_before / (missing_before - missing_then)
        return float(time[k - 1] + part * (time[k] - time[k - 1]))

    def leaps(self, before: float, after: float) -> bool:
        """Whether ``after`` is so much better than ``before`` that more evaluations are worth it.

        Two points of accuracy; of anything else, a twentieth.
        """
        gain = after - before if self.higher_is_better else before - after
        return gain > (0.02 if self.percent else 0.05 * max(abs(before), abs(after)))


ACCURACY = Measure("accuracy")
LOSS = Measure("loss", higher_is_better=False)


def check_primary(primary: str, metrics: Iterable[str], higher_is_better: bool) -> Measure:
    """The measure called ``primary``: one of the metrics, ``accuracy`` or ``loss``."""
    for known in (ACCURACY, LOSS):
        if primary == known.name:
            return known
    names = list(metrics)
    if primary not in names:
        offered = ", ".join([*names, ACCURACY.name, LOSS.name])
        raise InvalidInput(f"primary must be one of {offered}; it is {primary!r}")
    return Measure(primary, higher_is_better)


def relative(scores: Sequence[float], criterion: str) -> list[float]:
    """Scores of pilot runs as pages show them: of a time to a target, multiples of the smallest.

    Such scores are interpolated between evaluations (`Measure.crossing`), so that as times they would
    differ from those of `History.time_to`. Other scores are shown as they are.

    >>> relative([3.0, 4.5], "time to 80%"), relative([0.3, 0.45], "final test loss")
    ([1.0, 1.5], [0.3, 0.45])
    """
    if not criterion.startswith(_TIME_TO):
        return list(scores)
    best = min(scores, default=math.nan)
    if best > 0.0:
        return [score / best for score in scores]
    return [1.0 if score == best else math.nan for score in scores]  # reached before training


def scored_by(criterion: str) -> str:
    """What the numbers of `relative` are, in words: they are scores on held-out data, not on the test set.

    >>> scored_by("time to 80%"), scored_by("final test loss")
    ('time to 80% (smallest = 1)', 'final loss')
    """
    if criterion.startswith(_TIME_TO):
        return f"{criterion} (smallest = 1)"
    return criterion.replace("test ", "")

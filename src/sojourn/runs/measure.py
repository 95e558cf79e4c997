"""The measure that runs are judged by: an accuracy, a loss, or a metric of the user's own."""

from collections.abc import Iterable
from dataclasses import dataclass

from sojourn.errors import InvalidInput


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
        """A value as people read it."""
        return f"{value:.1%}" if self.percent else f"{value:.4g}"

    def target(self, value: float) -> str:
        """A target as people read it.

        >>> ACCURACY.target(0.8), LOSS.target(0.25)
        ('80%', 'loss 0.25')
        """
        return f"{100 * value:.4g}%" if self.percent else f"{self.name} {value:.4g}"

    def reaches(self, value: float, target: float) -> bool:
        """Whether ``value`` is at least as good as ``target``; what is not a number is not."""
        return value >= target if self.higher_is_better else value <= target

    def leaps(self, before: float, after: float) -> bool:
        """Whether ``after`` is so much better than ``before`` that evaluations between them are worth having.

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

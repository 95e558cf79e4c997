"""How often a run is evaluated on the test set, and what an evaluation finds."""

import math
from typing import NamedTuple

from sojourn.runs.measure import ACCURACY, Measure

EVALUATION_CHUNK = 1000
"""Samples that are evaluated at once."""


class Measures(NamedTuple):
    """How good weights are on the test set; the accuracy is ``nan`` where there is none."""

    loss: float
    accuracy: float
    metrics: dict[str, float]

    def value(self, measure: Measure) -> float:
        """The value of one measure."""
        if measure.name in self.metrics:
            return self.metrics[measure.name]
        return self.accuracy if measure.name == ACCURACY.name else self.loss


LEAST_ROWS, MOST_ROWS = 10, 100
EVALUATION_SHARE = 0.1
EVALUATION_COST = 0.5


def evaluation_spacing(rounds: int, test_size: int, samples_per_round: int) -> int:
    """Rounds between evaluations: 10 to 100 of them, as many as cost a tenth of the time at most.

    Ten are made whatever they cost, or a strategy that completes few rounds would hardly be seen;
    of a run of fewer than ten rounds every round is evaluated. A sample costs at most half as much
    to evaluate as to compute its gradient. Derived from sizes, not measured, so that it is the same
    in every run.

    >>> evaluation_spacing(rounds=30_000, test_size=10_000, samples_per_round=128)
    352
    >>> evaluation_spacing(rounds=50, test_size=10_000, samples_per_round=128)
    5
    """
    relative_cost = EVALUATION_COST * test_size / samples_per_round
    affordable = relative_cost * (1 - EVALUATION_SHARE) / EVALUATION_SHARE
    wanted = max(math.ceil(affordable), math.ceil(rounds / MOST_ROWS))
    return max(1, min(wanted, rounds // LEAST_ROWS))

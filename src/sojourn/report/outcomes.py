"""What a strategy's runs came to: the one place from which pages take numbers, and how they are written.

Runs that diverged have no end: they are left out of means, and counted.
"""

import math
from collections.abc import Mapping, Sequence

from sojourn._support.estimate import Estimate
from sojourn._support.numbers import UNKNOWN
from sojourn.runs.history import History
from sojourn.runs.measure import Measure

Runs = Mapping[str, Sequence[History]]
"""The runs of every strategy, in the order in which strategies first appear."""


def by_strategy(histories: Sequence[History]) -> dict[str, list[History]]:
    """The runs of every strategy."""
    grouped: dict[str, list[History]] = {}
    for history in histories:
        grouped.setdefault(history.strategy, []).append(history)
    return grouped


def finished(runs: Sequence[History]) -> list[History]:
    """The runs that came to their end."""
    return [run for run in runs if run.rows and run.diverged_at is None]


def final(runs: Sequence[History], measure: Measure) -> Estimate:
    """The mean of ``measure`` at the end of the runs, from their last rows."""
    ends = [float(run.values(measure)[-1]) for run in finished(runs)]
    return Estimate.from_samples([end for end in ends if math.isfinite(end)])


def final_text(runs: Sequence[History], measure: Measure) -> str:
    """The same as people read it: ``75.1 ± 0.5%``."""
    estimate = final(runs, measure)
    if not math.isfinite(estimate.mean) and runs and not finished(runs):
        return "diverged"
    return _text(estimate, measure)


def mean_text(values: Sequence[float], measure: Measure) -> str:
    """The mean of values of ``measure`` with its standard error, as people read it."""
    return _text(Estimate.from_samples(values), measure)


def _text(estimate: Estimate, measure: Measure) -> str:
    if not math.isfinite(estimate.mean):
        return UNKNOWN
    return f"{estimate:.1%}" if measure.percent else f"{estimate:.3g}"


def times_to(runs: Sequence[History], target: float) -> list[float]:
    """When each run came to ``target``; infinite if it did not."""
    times = [run.time_to(target) for run in runs]
    return [time if math.isfinite(time) else math.inf for time in times]


def reached(runs: Sequence[History], target: float) -> int:
    """How many of the runs came to ``target``."""
    return sum(math.isfinite(time) for time in times_to(runs, target))


def time_text(runs: Sequence[History], target: float) -> str:
    """When ``target`` was reached, if by all runs; a mean over the fast ones alone would flatter."""
    number = reached(runs, target)
    if not number:
        return "not reached"
    if number < len(runs):
        return f"{number} of {len(runs)} seeds reached it"
    return f"{Estimate.from_samples(times_to(runs, target)):.3g}"


def seen_staleness(run: History) -> float:
    """Mean staleness over all tasks of a run, from the means between its evaluations."""
    weights = [int(step) for step in run.gradients[1:] - run.gradients[:-1]]
    pairs = [
        (weight, value)
        for weight, value in zip(weights, run.staleness[1:].tolist(), strict=True)
        if weight and math.isfinite(value)
    ]
    total = sum(weight for weight, _ in pairs)
    return sum(weight * value for weight, value in pairs) / total if total else math.nan

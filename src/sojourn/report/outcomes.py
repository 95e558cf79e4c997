"""What a strategy's runs came to: the one place from which a page takes its numbers, and their texts.

Runs that diverged have no end: they are left out of means, and counted.
"""

import math
from collections.abc import Mapping, Sequence

from sojourn.estimate import Estimate
from sojourn.history import History
from sojourn.measure import Measure

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
    if not math.isfinite(estimate.mean):
        return "diverged" if runs and not finished(runs) else "–"
    return f"{estimate:.1%}" if measure.percent else f"{estimate:.3g}"


def times_to(runs: Sequence[History], target: float) -> list[float]:
    """When each run came to ``target``; infinite if it did not."""
    found = [run.time_to(target) for run in runs]
    return [time if math.isfinite(time) else math.inf for time in found]


def reached(runs: Sequence[History], target: float) -> int:
    """How many of the runs came to ``target``."""
    return sum(math.isfinite(time) for time in times_to(runs, target))


def time_text(runs: Sequence[History], target: float) -> str:
    """When ``target`` was reached, if all runs did; a mean over the lucky ones alone would flatter."""
    times = times_to(runs, target)
    number = reached(runs, target)
    if not number:
        return "not reached"
    if number < len(times):
        return f"{number} of {len(times)} seeds reached it"
    estimate = Estimate.from_samples(times)
    return f"{estimate:,.0f}" if estimate.mean >= 100 else f"{estimate:.1f}"


def words(names: Sequence[str]) -> str:
    """A list as a sentence has it.

    >>> words(["plan", "uniform", "balanced"])
    'plan, uniform and balanced'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))

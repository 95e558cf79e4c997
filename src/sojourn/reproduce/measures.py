"""What training runs are compared by, and how a statement about strategies is judged."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sojourn.estimate import Estimate, plus_minus
from sojourn.history import History
from sojourn.report.curves import mean_and_deviation
from sojourn.report.sections import mean_value, settled_value
from sojourn.reproduce.checks import alike, greater, less_variance, margin_of
from sojourn.reproduce.claims import Judged
from sojourn.reproduce.palette import label
from sojourn.reproduce.verdict import OUTCOMES, Outcome

ALIKE = 0.05

Runs = Mapping[str, Sequence[History]]
"""The runs of every strategy, one per seed, in the same order of seeds."""


def by_strategy(histories: Sequence[History]) -> dict[str, list[History]]:
    """Runs grouped by strategy, ordered by seed."""
    grouped: dict[str, list[History]] = {}
    for history in sorted(histories, key=lambda history: history.seed):
        grouped.setdefault(history.strategy, []).append(history)
    return grouped


def final_accuracy(run: History) -> float:
    """Mean test accuracy over the last tenth of the rounds; 0 for a run that diverged."""
    return settled_value(run) if run.diverged_at is None and run.rows else 0.0


def accuracy_throughout(run: History, axis: str) -> float:
    """Test accuracy averaged along ``axis``; 0 for a run that diverged."""
    return mean_value(run, axis) if run.diverged_at is None and run.rows > 1 else 0.0


def variance_between(runs: Sequence[History], axis: str) -> float:
    """Variance of the test loss over seeds, averaged along the run; infinite if one diverged."""
    if len(runs) < 2 or any(run.diverged_at is not None for run in runs):
        return math.inf
    _, _, deviation = mean_and_deviation(runs, "test_loss", axis=axis)
    return float((deviation**2).mean())


def judge_higher(
    runs: Runs, strategy: str, over: Sequence[str], measure: Callable[[History], float]
) -> Judged:
    """Whether ``strategy`` is more accurate than each of ``over``, seed by seed."""
    own = [measure(run) for run in runs[strategy]]
    outcomes = [
        greater([a - measure(b) for a, b in zip(own, runs[rival], strict=True)]) for rival in over
    ]
    found = ", ".join(
        f"{label(name)} {np.mean([measure(run) for run in runs[name]]):.1%}"
        for name in (strategy, *over)
    )
    return Judged(f"{found}.", together(outcomes))


def judge_steadier(runs: Runs, strategy: str, over: Sequence[str], axis: str) -> Judged:
    """Whether the loss varies less between seeds under ``strategy`` than under each of ``over``.

    The evaluations of a run hang together, so that each run counts as one observation however often
    it was evaluated.
    """
    variance = {name: variance_between(runs[name], axis) for name in (strategy, *over)}
    found = ", ".join(
        f"{label(name)} {math.sqrt(value):.3g}"
        if math.isfinite(value)
        else f"{label(name)} {'diverged' if len(runs[name]) > 1 else 'has one run'}"
        for name, value in variance.items()
    )
    outcomes = [
        less_variance(
            variance[strategy], variance[rival], runs=min(len(runs[strategy]), len(runs[rival]))
        )
        for rival in over
    ]
    return Judged(f"Standard deviations: {found}.", together(outcomes))


def judge_alike(pairs: Mapping[str, tuple[Sequence[History], Sequence[History]]]) -> Judged:
    """Whether final accuracies of paired runs agree within five points, with their margins."""
    outcomes, found = [], []
    for name, (runs, others) in pairs.items():
        differences = [
            final_accuracy(a) - final_accuracy(b) for a, b in zip(runs, others, strict=True)
        ]
        mean, margin = Estimate.from_samples(differences).mean, margin_of(differences)
        found.append(f"{name} {plus_minus(100 * mean, 100 * margin, '+.1f')}")
        outcomes.append(alike(differences, within=ALIKE))
    return Judged(f"Differences in points: {', '.join(found)}.", together(outcomes))


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """Several comparisons that must all hold, as one outcome."""
    for outcome in ("does not reproduce", "data not found", "cannot be told here"):
        if outcome in outcomes:
            return OUTCOMES[OUTCOMES.index(outcome)]
    return "reproduces" if outcomes else "cannot be told here"

"""What a strategy's runs came to, in numbers and in curves: the one place from which pages take them.

Runs that diverged have no end: they are left out of means, and counted.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from sojourn._support.estimate import Estimate
from sojourn._support.numbers import UNKNOWN
from sojourn.figures.figure import Figure, Series, View, Weight
from sojourn.figures.timeline import AXES, SECONDS, VIRTUAL
from sojourn.runs.history import History
from sojourn.runs.measure import ACCURACY, LOSS, Measure
from sojourn.types import FloatArray

POINTS = 160
Runs = Mapping[str, Sequence[History]]
"""The runs of every strategy, in the order in which strategies first appear."""
Label = Callable[[str], str]
"""What a person reads for the name of a strategy."""


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
    """The mean of ``measure`` at the end of the runs that have it, from their last rows."""
    ends = [float(run.values(measure)[-1]) for run in finished(runs) if _has(run, measure)]
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
    if math.isnan(estimate.standard_error):
        return measure.text(float(estimate.mean))
    return f"{estimate:.1%}" if measure.percent else f"{estimate:.3g}"


def times_to(runs: Sequence[History], target: float) -> list[float]:
    """When each run came to ``target``; infinite if it did not."""
    times = [run.time_to(target) for run in runs]
    return [time if math.isfinite(time) else math.inf for time in times]


def reached(runs: Sequence[History], target: float) -> int:
    """How many of the runs came to ``target``."""
    return sum(math.isfinite(time) for time in times_to(runs, target))


def stopped_at(runs: Sequence[History], target: float) -> bool:
    """Whether a run stopped at ``target`` before others ended, so that runs have no common end."""
    whole = finished(runs)
    latest = max((float(run.time[-1]) for run in whole), default=0.0)
    return any(run.time_to(target) == run.time[-1] < latest for run in whole)


def mean_time(runs: Sequence[History], target: float) -> Estimate:
    """The mean time to ``target`` if all runs reached it; one over the fast ones alone would flatter."""
    if not runs or reached(runs, target) < len(runs):
        return Estimate(math.nan, math.nan)
    return Estimate.from_samples(times_to(runs, target))


def time_text(runs: Sequence[History], target: float) -> str:
    """The same as people read it, or how many runs reached ``target``."""
    mean, number = mean_time(runs, target), reached(runs, target)
    if math.isfinite(mean.mean):
        return f"{mean:.3g}"
    return f"{number} of {len(runs)} seeds reached it" if number else "not reached"


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


def learning_figure(
    name: str,
    title: str,
    histories: Sequence[History],
    *,
    axis: str = "time",
    label: Label = str,
    caption: str = "",
    horizon: float | None = None,
    points: int = POINTS,
    strong: Sequence[str] = (),
) -> Figure:
    """What runs are judged by, and what else was measured, against rounds and time.

    The view against ``axis`` comes first; ``label`` names curves, which have about so many ``points``
    at most. Runs that were given a ``horizon`` in time are drawn up to it. Where ``strong``
    strategies are named, the others are thin and grey, and only the first has a band.
    """
    axes = [axis, *(other for other in ("rounds", "time") if other != axis)]
    views = tuple(
        learning_view(
            histories,
            measure,
            axis=along,
            label=label,
            horizon=horizon,
            points=points,
            strong=strong,
        )
        for measure in measures_of(histories)
        for along in axes
    )
    return Figure(name, title, _in_words(histories, label), views, caption)


def measures_of(histories: Sequence[History]) -> list[Measure]:
    """What was measured on the test set: what the runs are judged by first."""
    primary = histories[0].measure
    known = [primary, ACCURACY, LOSS]
    known += [Measure(name) for run in histories for name in run.metrics if name != primary.name]
    return [
        measure
        for measure in dict.fromkeys(known)
        if measure == primary
        or any(np.isfinite(h.values(measure)).any() for h in histories if _has(h, measure))
    ]


def _has(history: History, measure: Measure) -> bool:
    return measure in (ACCURACY, LOSS) or measure.name in history.metrics


def on_one_grid(
    runs: Sequence[History],
    column: str,
    *,
    axis: str,
    horizon: float | None = None,
    points: int = POINTS,
) -> tuple[FloatArray, FloatArray]:
    """A grid that runs have in common along ``rounds`` or ``time``, and ``column`` of every run there.

    The grid has the places at which runs were evaluated, or some of them where they are many. Between
    evaluations a run is interpolated linearly, and after its last one it is held, up to the
    ``horizon`` or the end of the longest: so the last point is the mean of the ends.
    """
    along = "round" if axis == "rounds" else "time"
    curves = [(getattr(run, along), run.values(column)) for run in runs if run.rows]
    if not curves:
        return np.empty(0), np.empty((1, 0))
    end = max(float(x[-1]) for x, _ in curves)
    if horizon is not None and axis == "time":
        end = max(end, horizon)
    start = max(float(x[0]) for x, _ in curves)
    grid = np.unique(np.concatenate([[start, end], *(x for x, _ in curves)]).astype(np.float64))
    grid = grid[grid >= start]
    if grid.size > points:
        grid = grid[np.unique(np.linspace(0, grid.size - 1, points).round().astype(int))]
    return grid, np.stack([np.interp(grid, x, y) for x, y in curves])


def learning_view(
    histories: Sequence[History],
    measure: Measure,
    *,
    axis: str,
    label: Label = str,
    horizon: float | None = None,
    points: int = POINTS,
    strong: Collection[str] = (),
) -> View:
    """One measure against ``rounds`` or ``time``; losses on a logarithmic scale where they can be."""
    log = measure == LOSS and all(bool((run.test_loss > 0).all()) for run in histories)
    series = []
    for strategy, runs in by_strategy(histories).items():
        shown = [run for run in finished(runs) if _has(run, measure)] or [
            run for run in runs if _has(run, measure)
        ]
        grid, values = on_one_grid(shown, measure.name, axis=axis, horizon=horizon, points=points)
        mean = values.mean(axis=0)
        pick = bool(strong) and strategy == next(iter(strong))
        weight: Weight = (
            "pick" if pick else "strong" if not strong or strategy in strong else "thin"
        )
        band = {}
        if len(values) > 1 and (pick or not strong):
            if log:
                logarithms = np.log(np.maximum(values, np.finfo(np.float64).tiny))
                error = Estimate.from_samples(logarithms).standard_error
                band = {"low": mean * np.exp(-error), "high": mean * np.exp(error)}
            else:
                error = Estimate.from_samples(values).standard_error
                band = {"low": mean - error, "high": mean + error}
        series.append(Series(strategy, grid, mean, label=label(strategy), weight=weight, **band))
    # Strong curves are drawn over the others, and the pick over all.
    series.sort(key=lambda curve: (curve.is_strong, curve.weight == "pick"))
    real = any(history.clock == "real" for history in histories)
    return View(
        AXES[SECONDS if real else VIRTUAL] if axis == "time" else "rounds (completed tasks)",
        measure.label,
        tuple(series),
        metric=measure.name,
        axis=axis,
        log_y=log,
        percent=measure.percent,
    )


def _in_words(histories: Sequence[History], label: Label) -> str:
    measure = histories[0].measure
    sign = -1.0 if measure.higher_is_better else 1.0
    ends = []
    for strategy, runs in by_strategy(histories).items():
        rounds = float(np.mean([run.round[-1] for run in runs if run.rows] or [0]))
        mean = float(final(runs, measure).mean)
        text = f"{label(strategy)} {final_text(runs, measure)} after {rounds:,.0f} rounds"
        ends.append((sign * mean if np.isfinite(mean) else np.inf, text))
    ends.sort(key=lambda pair: pair[0])
    texts = "; ".join(text for _, text in ends)
    return f"{measure.label.capitalize()} at the end, best first: {texts}."

"""From the histories of a run to figures: a mean and a band over seeds for every strategy."""

from collections.abc import Callable, Sequence

import numpy as np

from sojourn.figure import Figure, Series, View
from sojourn.history import History
from sojourn.measure import ACCURACY, LOSS, Measure
from sojourn.report.outcomes import by_strategy, final, final_text, finished
from sojourn.types import FloatArray

POINTS = 160

Label = Callable[[str], str]
"""What a person reads for the name of a strategy."""


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
) -> Figure:
    """What runs are judged by, and what else was measured, against rounds and time.

    The view against ``axis`` comes first; ``label`` names curves, which have about so many ``points``
    at most. Runs that were given a ``horizon`` in time are drawn up to it.
    """
    axes = [axis, *(other for other in ("rounds", "time") if other != axis)]
    views = tuple(
        learning_view(histories, measure, axis=along, label=label, horizon=horizon, points=points)
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


def mean_and_deviation(
    runs: Sequence[History],
    column: str,
    *,
    axis: str,
    horizon: float | None = None,
    log: bool = False,
    points: int = POINTS,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Grid, mean and standard deviation over runs of ``column`` along ``rounds`` or ``time``.

    The grid has the places at which runs were evaluated, or some of them where they are many. Between
    evaluations a run is interpolated linearly, and after its last one it is held, up to the
    ``horizon`` or the end of the longest: so the last point is the mean of the ends. With ``log`` the
    deviation is that of the logarithms.
    """
    grid, values = on_one_grid(runs, column, axis=axis, horizon=horizon, points=points)
    if not grid.size:
        return grid, grid, grid
    spread = np.log(np.maximum(values, np.finfo(np.float64).tiny)) if log else values
    deviation = spread.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(grid.size)
    return grid, values.mean(axis=0), deviation


def on_one_grid(
    runs: Sequence[History],
    column: str,
    *,
    axis: str,
    horizon: float | None = None,
    points: int = POINTS,
) -> tuple[FloatArray, FloatArray]:
    """A grid that runs have in common, and ``column`` of every run there; see `mean_and_deviation`."""
    along = "round" if axis == "rounds" else "time"
    kept = [(getattr(run, along), run.values(column)) for run in runs if run.rows]
    if not kept:
        return np.empty(0), np.empty((0, 0))
    end = max(float(x[-1]) for x, _ in kept)
    if horizon is not None and axis == "time":
        end = max(end, horizon)
    start = max(float(x[0]) for x, _ in kept)
    grid = np.unique(np.concatenate([[start, end], *(x for x, _ in kept)]).astype(np.float64))
    grid = grid[grid >= start]
    if grid.size > points:
        grid = grid[np.unique(np.linspace(0, grid.size - 1, points).round().astype(int))]
    return grid, np.stack([np.interp(grid, x, y) for x, y in kept])


def learning_view(
    histories: Sequence[History],
    measure: Measure,
    *,
    axis: str,
    label: Label = str,
    horizon: float | None = None,
    points: int = POINTS,
) -> View:
    """One measure against ``rounds`` or ``time``; losses on a logarithmic scale where they can be."""
    log = measure == LOSS and all(bool((run.test_loss > 0).all()) for run in histories)
    series = []
    for strategy, runs in by_strategy(histories).items():
        shown = [run for run in finished(runs) if _has(run, measure)] or [
            run for run in runs if _has(run, measure)
        ]
        grid, mean, deviation = mean_and_deviation(
            shown, measure.name, axis=axis, horizon=horizon, log=log, points=points
        )
        low, high = mean - deviation, mean + deviation
        if log:
            low, high = mean * np.exp(-deviation), mean * np.exp(deviation)
        banded = len(shown) > 1
        series.append(
            Series(
                strategy,
                grid,
                mean,
                low=low if banded else None,
                high=high if banded else None,
                label=label(strategy),
            )
        )
    real = any(history.clock == "real" for history in histories)
    time = "time (seconds)" if real else "time (virtual units)"
    return View(
        time if axis == "time" else "rounds (completed tasks)",
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
    return (
        f"{measure.label.capitalize()} at the end, best first: "
        + "; ".join(text for _, text in ends)
        + "."
    )

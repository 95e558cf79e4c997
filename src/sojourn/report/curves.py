"""From the histories of a run to figures: a mean and a standard error over seeds for every strategy."""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from sojourn.figures.figure import Figure, Series, View, Weight
from sojourn.report.outcomes import by_strategy, final, final_text, finished
from sojourn.runs.history import History
from sojourn.runs.measure import ACCURACY, LOSS, Measure
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
        return np.empty(0), np.empty((0, 0))
    end = max(float(x[-1]) for x, _ in curves)
    if horizon is not None and axis == "time":
        end = max(end, horizon)
    start = max(float(x[0]) for x, _ in curves)
    grid = np.unique(np.concatenate([[start, end], *(x for x, _ in curves)]).astype(np.float64))
    grid = grid[grid >= start]
    if grid.size > points:
        grid = grid[np.unique(np.linspace(0, grid.size - 1, points).round().astype(int))]
    return grid, np.stack([np.interp(grid, x, y) for x, y in curves])


def mean_and_error(values: FloatArray, *, log: bool = False) -> tuple[FloatArray, FloatArray]:
    """Mean and standard error over runs (the rows); with ``log`` the error is that of the logarithms."""
    spread = np.log(np.maximum(values, np.finfo(np.float64).tiny)) if log else values
    number = len(values)
    error = spread.std(axis=0, ddof=1) / np.sqrt(number) if number > 1 else np.zeros_like(values[0])
    return values.mean(axis=0), error


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
        mean, error = mean_and_error(values, log=log) if grid.size else (grid, grid)
        low, high = mean - error, mean + error
        if log:
            low, high = mean * np.exp(-error), mean * np.exp(error)
        pick = bool(strong) and strategy == next(iter(strong))
        weight: Weight = (
            "pick" if pick else "strong" if not strong or strategy in strong else "thin"
        )
        banded = len(shown) > 1 and (pick or not strong)
        series.append(
            Series(
                strategy,
                grid,
                mean,
                low=low if banded else None,
                high=high if banded else None,
                label=label(strategy),
                weight=weight,
            )
        )
    # Strong curves are drawn over the others, and the pick over all.
    series.sort(key=lambda curve: (curve.is_strong, curve.weight == "pick"))
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
    texts = "; ".join(text for _, text in ends)
    return f"{measure.label.capitalize()} at the end, best first: {texts}."

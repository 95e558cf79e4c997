"""From the histories of a run to figures: a mean and a band over seeds for every strategy."""

from collections.abc import Callable, Sequence

import numpy as np

from sojourn.history import History
from sojourn.measure import ACCURACY, LOSS, Measure
from sojourn.report.figure import Figure, Series, View
from sojourn.types import FloatArray

POINTS = 160

Label = Callable[[str], str]
"""What a person reads for the name of a strategy."""

_AXES = {
    "rounds": "rounds",
    "time": "virtual time",
}


def learning_figure(
    name: str,
    title: str,
    histories: Sequence[History],
    *,
    axis: str = "time",
    label: Label = str,
    caption: str = "",
) -> Figure:
    """What runs are judged by, and all else that is measured, against rounds and time.

    The primary measure against ``axis`` comes first; ``label`` names curves.
    """
    axes = [axis, *(other for other in _AXES if other != axis)]
    views = tuple(
        learning_view(histories, measure, axis=along, label=label)
        for measure in measures_of(histories)
        for along in axes
    )
    return Figure(name, title, _in_words(histories, label), views, caption)


def measures_of(histories: Sequence[History]) -> list[Measure]:
    """All that was measured, what runs are judged by first."""
    first = histories[0].measure
    names = [first.name, *histories[0].metrics, ACCURACY.name, LOSS.name]
    measures = [
        {first.name: first, LOSS.name: LOSS}.get(name, Measure(name))
        for name in dict.fromkeys(names)
    ]
    return [
        measure
        for measure in measures
        if any(np.isfinite(run.values(measure)).any() for run in histories)
    ] or [first]


def strategies(histories: Sequence[History]) -> list[str]:
    """The strategies of the runs, in the order in which they first appear."""
    return list(dict.fromkeys(history.strategy for history in histories))


def mean_and_deviation(
    runs: Sequence[History], column: str, *, axis: str
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Grid, mean and standard deviation over runs of ``column`` along ``rounds`` or ``time``.

    Between evaluations a run is interpolated linearly. The grid ends where the first run ends, so
    that every point is a mean over all runs.
    """
    along = "round" if axis == "rounds" else "time"
    kept = [(getattr(run, along), run.values(column)) for run in runs if run.rows]
    if not kept:
        return np.empty(0), np.empty(0), np.empty(0)
    end = min(float(x[-1]) for x, _ in kept)
    start = max(float(x[0]) for x, _ in kept)
    longest = max(kept, key=lambda pair: pair[0].size)[0]
    if axis == "rounds" and all(np.array_equal(x, longest) for x, _ in kept):
        grid = longest.astype(np.float64)
        if grid.size > POINTS:
            grid = grid[np.unique(np.linspace(0, grid.size - 1, POINTS).round().astype(int))]
    else:
        grid = np.linspace(start, end, min(POINTS, max(2, longest.size)))
    values = np.stack([np.interp(grid, x, y) for x, y in kept])
    deviation = values.std(axis=0, ddof=1) if len(kept) > 1 else np.zeros(grid.size)
    return grid, values.mean(axis=0), deviation


def learning_view(
    histories: Sequence[History], measure: Measure, *, axis: str, label: Label = str
) -> View:
    """One measure against ``rounds`` or ``time``; losses on a logarithmic scale where they can be."""
    series = []
    for strategy in strategies(histories):
        runs = [history for history in histories if history.strategy == strategy]
        grid, mean, deviation = mean_and_deviation(runs, measure.name, axis=axis)
        low, high = mean - deviation, mean + deviation
        if measure == LOSS:
            low = np.maximum(low, mean / 10.0)
        banded = len(runs) > 1
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
    x_label = "seconds" if axis == "time" and real else _AXES[axis]
    return View(
        x_label,
        measure.label,
        tuple(series),
        metric=measure.name,
        axis=axis,
        log_y=measure == LOSS and all(bool((run.test_loss > 0).all()) for run in histories),
        percent=measure.percent,
    )


def _in_words(histories: Sequence[History], label: Label) -> str:
    ends = []
    measure = histories[0].measure
    for strategy in strategies(histories):
        runs = [history for history in histories if history.strategy == strategy]
        final = float(np.mean([run.final for run in runs]))
        rounds = float(np.mean([run.round[-1] for run in runs if run.rows] or [0]))
        said = f"{label(strategy)} {measure.text(final)} after {rounds:,.0f} rounds"
        ends.append((-final if measure.higher_is_better else final, said))
    ends.sort(key=lambda pair: pair[0])
    name = measure.label[0].upper() + measure.label[1:]
    return f"{name} at the end, best first: " + "; ".join(text for _, text in ends) + "."

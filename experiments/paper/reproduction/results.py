"""What strategies come to, as the tables of the reproduction have it."""

import math
from collections.abc import Callable, Sequence

from sojourn._support.estimate import Estimate
from sojourn.figures.figure import Table
from sojourn.report.outcomes import (
    Label,
    by_strategy,
    final_text,
    finished,
    measures_of,
    seen_staleness,
)
from sojourn.runs.history import History
from sojourn.runs.measure import ACCURACY

LAST = 0.1


def results_table(histories: Sequence[History], *, axis: str, label: Label, title: str) -> Table:
    """Accuracy over the last tenth and on average along ``axis``, and what runs did, over seeds.

    Runs that diverged are left out of the means.
    """
    measure = histories[0].measure
    unit = "s" if any(history.clock == "real" for history in histories) else "units"
    percent = 100 if measure.percent else 1
    digits = 1 if measure.percent else 3
    sign = ", %" if measure.percent else ""
    others = [other for other in measures_of(histories) if other not in (measure, ACCURACY)]
    rows = []
    for strategy, runs in by_strategy(histories).items():
        good = finished(runs)
        rows.append(
            (
                label(strategy),
                f"{runs[0].learning_rate:g}",
                _over(good, lambda run: percent * settled_value(run), digits),
                *(final_text(runs, other) for other in others),
                _over(good, lambda run: percent * mean_value(run, axis), digits),
                _over(good, lambda run: float(run.round[-1]), 0),
                _over(good, lambda run: float(run.time[-1]), 0),
                _over(good, seen_staleness),
            )
        )
    columns = (
        "strategy",
        "learning rate",
        f"{measure.name} over the last tenth{sign}",
        *(f"final {other.label}" for other in others),
        f"mean over {axis}{sign}",
        "rounds",
        f"time, {unit}",
        "staleness, updates",
    )
    many = len({history.seed for history in histories}) > 1
    note = "± is one standard error over seeds." if many else ""
    return Table(columns, tuple(rows), title=title, note=note)


def settled_value(run: History) -> float:
    """The primary measure averaged over the last tenth of the rounds."""
    if not run.rows:
        return math.nan
    return float(run.values(run.measure)[run.round >= (1 - LAST) * run.round[-1]].mean())


def mean_value(run: History, axis: str) -> float:
    """The primary measure averaged along ``rounds`` or ``time``, by the trapezoidal rule."""
    return run.average(run.measure.name, "round" if axis == "rounds" else "time")


def _over(runs: Sequence[History], of: Callable[[History], float], digits: int = 1) -> str:
    values = [value for run in runs if math.isfinite(value := of(run))]
    if not values:
        return "–"
    text = f"{Estimate.from_samples(values):,.{digits}f}"
    return text if len(values) == len(runs) else f"{text} ({len(values)} of {len(runs)} seeds)"

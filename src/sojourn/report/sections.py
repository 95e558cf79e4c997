"""The parts of the page as plain values: sections, an overview, and the section of a run."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sojourn.estimate import Estimate
from sojourn.history import History
from sojourn.report.curves import Label, learning_figure, strategies
from sojourn.report.figure import Figure, Table
from sojourn.runfolder import Run

LAST = 0.1


@dataclass(frozen=True)
class Section:
    """One part of the page, below its title: words, statements, figures, tables.

    ``heading`` stands above the first column of the ``sayings``: who says them.
    """

    anchor: str
    title: str
    kicker: str = ""
    verdict: str = ""
    lead: str = ""
    notes: tuple[str, ...] = ()
    heading: str = ""
    sayings: tuple["Saying", ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Saying:
    """A sentence and the cases it was judged in; cases with one finding are together."""

    says: str
    reading: str
    cases: tuple["Case", ...]


@dataclass(frozen=True)
class Case:
    """What was found, and of which of the saying's cases."""

    about: tuple[str, ...]
    found: str
    outcome: str


@dataclass(frozen=True)
class Entry:
    """A line of the overview: a section, the verdict on it, and what else there is to say."""

    anchor: str
    number: str
    title: str
    source: str
    verdict: str
    cells: tuple[str, ...] = ()


@dataclass(frozen=True)
class Overview:
    """What stands before all sections: one line for each of those that were judged."""

    title: str
    standfirst: str
    columns: tuple[str, ...]
    entries: tuple[Entry, ...]
    note: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """How often there is which verdict."""
        return Counter(entry.verdict for entry in self.entries)


def run_section(run: Run, index: int) -> Section:
    """A training or deployment run: curves, and the numbers behind them."""
    real = any(history.clock == "real" for history in run.histories)
    seeds = len({history.seed for history in run.histories})
    lead = (
        f"{len(strategies(run.histories))} strategies, {seeds} seed{'s' if seeds > 1 else ''} each, "
        f"in {'real' if real else 'virtual'} time."
    )
    if seeds > 1:
        lead += " Lines are means, bands one standard deviation over seeds."
    figure = learning_figure(f"learning-{index}", "How learning went", run.histories)
    return Section(
        anchor=f"run-{index}",
        title=run.name,
        kicker="Run",
        lead=lead,
        notes=tuple(_divergences(run.histories)),
        figures=(replace(figure, wide=True),),
        tables=(results_table(run.histories, run.targets),),
    )


def results_table(
    histories: Sequence[History],
    targets: Sequence[float] = (),
    *,
    axis: str = "time",
    settled: bool = False,
    label: Label = str,
) -> Table:
    """What runs are judged by, at the end and on average, throughput, staleness, times to targets.

    The mean is taken along ``axis``. With ``settled`` the end is the last tenth of the run.
    """
    measure = histories[0].measure
    scale, unit, digits = (100.0, ", %", 1) if measure.percent else (1.0, "", None)
    rows = []
    for strategy in strategies(histories):
        runs = [history for history in histories if history.strategy == strategy]
        rows.append(
            (
                label(strategy),
                f"{runs[0].learning_rate:g}",
                _over(
                    runs, lambda run: scale * (settled_value(run) if settled else run.final), digits
                ),
                _over(runs, lambda run: scale * mean_value(run, axis), digits),
                *(
                    _over(runs, lambda run, name=name: float(run.values(name)[-1]), None)  # type: ignore[misc]
                    for name in runs[0].metrics
                    if name != measure.name
                ),
                _over(runs, lambda run: float(run.round[-1]) if run.rows else math.nan, 0),
                _over(runs, lambda run: float(run.time[-1]) if run.rows else math.nan, 0),
                _over(runs, seen_staleness),
                *(_over(runs, lambda run, to=target: run.time_to(to)) for target in targets),  # type: ignore[misc]
            )
        )
    columns = (
        "strategy",
        "learning rate",
        f"{measure.name} over the last tenth{unit}" if settled else f"final {measure.name}{unit}",
        f"mean over {axis}{unit}",
        *(name for name in histories[0].metrics if name != measure.name),
        "rounds",
        "time",
        "staleness",
        *(f"time to {measure.target(target).replace('%', ' %')}" for target in targets),
    )
    many = len({history.seed for history in histories}) > 1
    note = "± is one standard error over seeds." if many else ""
    return Table(columns, tuple(rows), title="Results", note=note)


def settled_value(run: History) -> float:
    """The primary measure averaged over the last tenth of the rounds."""
    if not run.rows:
        return math.nan
    return float(run.values(run.measure)[run.round >= (1 - LAST) * run.round[-1]].mean())


def mean_value(run: History, axis: str) -> float:
    """The primary measure averaged along ``rounds`` or ``time``, by the trapezoidal rule."""
    return run.average(run.measure.name, "round" if axis == "rounds" else "time")


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


def provenance_rows(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Provenance flattened to name and text."""
    rows: list[tuple[str, str]] = []
    for key, value in provenance.items():
        if isinstance(value, Mapping):
            inner = ", ".join(f"{name} {text}" for name, text in value.items())
            rows.append((key, inner or "none"))
        else:
            rows.append((key, str(value)))
    return rows


def _over(runs: Sequence[History], of: Callable[[History], float], digits: int | None = 1) -> str:
    values = [value for run in runs if math.isfinite(value := of(run))]
    if not values:
        return "–"
    form = ".4g" if digits is None else f",.{digits}f"
    text = format(Estimate.from_samples(values), form)
    return text if len(values) == len(runs) else f"{text} ({len(values)} of {len(runs)} seeds)"


def _divergences(histories: Sequence[History]) -> list[str]:
    return [
        f"{run.strategy}, seed {run.seed}: diverged at round {run.diverged_at:,} "
        f"with learning rate {run.learning_rate:g}; the rows before are shown."
        for run in histories
        if run.diverged_at is not None
    ]

"""The parts of the page as plain values: sections, an overview, and the section of a run."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sojourn.estimate import Estimate
from sojourn.figure import Figure, Table
from sojourn.history import History
from sojourn.measure import ACCURACY
from sojourn.report.curves import Label, learning_figure, measures_of
from sojourn.report.outcomes import by_strategy, final_text, finished, time_text
from sojourn.report.tuned import (
    confirmed_table,
    race_figure,
    rungs_table,
    tried_table,
    tuned_verdict,
)
from sojourn.report.verdict import Tile, verdict_of
from sojourn.runfolder import Run

LAST = 0.1


@dataclass(frozen=True)
class Section:
    """One part of the page, below its title: words, tiles, statements, figures, drawings, tables.

    ``finding`` is what the part says, before anything else; ``opening`` tables stand before the
    figures. ``heading`` stands above the first column of the ``sayings``: who says them.
    """

    anchor: str
    title: str
    kicker: str = ""
    verdict: str = ""
    finding: str = ""
    tiles: tuple[Tile, ...] = ()
    lead: str = ""
    notes: tuple[str, ...] = ()
    heading: str = ""
    sayings: tuple["Saying", ...] = ()
    opening: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    drawings: tuple["Drawing", ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Drawing:
    """A picture that is ready: SVG whose colours the page's style decides."""

    name: str
    title: str
    alt: str
    svg: str
    file: str
    caption: str = ""


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


def run_section(run: Run, index: int, notes: Sequence[str] = ()) -> Section:
    """A training, tuning or deployment run: its verdict, curves, and the numbers behind them."""
    real = any(history.clock == "real" for history in run.histories)
    seeds = len({history.seed for history in run.histories})
    number = len(by_strategy(run.histories))
    lead = (
        f"{number} strateg{'ies' if number > 1 else 'y'}, {seeds} seed{'s' if seeds > 1 else ''} "
        f"each, in {'real' if real else 'virtual'} time."
    )
    if seeds > 1:
        lead += (
            " Lines are means, bands one standard deviation over seeds (of the logarithm, where the "
            "axis is logarithmic); strategies are compared seed by seed, at 95 %."
        )
    verdict = tuned_verdict(run) if run.tuning else verdict_of(run.histories, run.targets)
    figure = learning_figure(
        f"learning-{index}", "How learning went", run.histories, horizon=run.horizon
    )
    return Section(
        anchor=f"run-{index}",
        title=run.name,
        kicker="Tuning" if run.tuning else "Run",
        finding=verdict.sentence,
        tiles=verdict.tiles,
        lead=lead,
        notes=(*_divergences(run.histories), *notes),
        opening=(confirmed_table(run),) if run.tuning else (),
        figures=(replace(figure, wide=True),),
        tables=(results_table(run.histories, run.targets),),
    )


def race_section(run: Run, index: int) -> Section:
    """The race behind a tuning's answer: who went on, what it cost, what was tried."""
    tuning = run.tuning
    seconds = f" in {tuning['seconds']:,.0f} s" if "seconds" in tuning else ""
    return Section(
        anchor=f"race-{index}",
        title="The race",
        kicker=run.name,
        lead=f"Every strategy at every learning rate began; pilots on held-out data decided who "
        f"went on. That took {tuning['gradients']:,} gradients{seconds}, confirmation included in "
        "the seconds. The test set was looked at only after it.",
        figures=(race_figure(f"race-{index}", tuning),),
        tables=(rungs_table(tuning), tried_table(tuning)),
    )


def results_table(
    histories: Sequence[History],
    targets: Sequence[float] = (),
    *,
    axis: str = "time",
    settled: bool = False,
    label: Label = str,
) -> Table:
    """What strategies end at and are on average, what they did, and times to targets, over seeds.

    The mean is taken along ``axis``. With ``settled`` the final accuracy is that of the last tenth
    of the run. Runs that diverged are left out of the means.
    """
    measure = histories[0].measure
    unit = "s" if any(history.clock == "real" for history in histories) else "units"
    percent = 100 if measure.percent else 1
    sign = ", %" if measure.percent else ""
    others = [other for other in measures_of(histories) if other not in (measure, ACCURACY)]
    rows = []
    for strategy, runs in by_strategy(histories).items():
        good = finished(runs)
        digits = 1 if measure.percent else 3
        end = _over(good, lambda run: percent * settled_value(run), digits)
        rows.append(
            (
                label(strategy),
                f"{runs[0].learning_rate:g}",
                end if settled else final_text(runs, measure),
                *(final_text(runs, other) for other in others),
                _over(good, lambda run: percent * mean_value(run, axis), digits),
                _over(good, lambda run: float(run.round[-1]), 0),
                _over(good, lambda run: float(run.time[-1]), 0),
                _over(good, seen_staleness),
                *(time_text(runs, target) for target in targets),
            )
        )
    columns = (
        "strategy",
        "learning rate",
        f"{measure.name} over the last tenth{sign}" if settled else f"final {measure.label}",
        *(f"final {other.label}" for other in others),
        f"mean over {axis}{sign}",
        "rounds",
        f"time, {unit}",
        "staleness, updates",
        *(f"time to {measure.target(target)}, {unit}" for target in targets),
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


def _over(runs: Sequence[History], of: Callable[[History], float], digits: int = 1) -> str:
    values = [value for run in runs if math.isfinite(value := of(run))]
    if not values:
        return "–"
    text = f"{Estimate.from_samples(values):,.{digits}f}"
    return text if len(values) == len(runs) else f"{text} ({len(values)} of {len(runs)} seeds)"


def _divergences(histories: Sequence[History]) -> list[str]:
    return [
        f"{run.strategy}, seed {run.seed}: diverged at round {run.diverged_at:,} "
        f"with learning rate {run.learning_rate:g}; the rows before are shown."
        for run in histories
        if run.diverged_at is not None
    ]

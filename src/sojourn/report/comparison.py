"""Strategies compared seed by seed, and strategies times settings in one table for a paper.

Means, standard errors, paired tests over common seeds, and times of which some are censored.
"""

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtr

from sojourn._support.estimate import Estimate
from sojourn.errors import InvalidInput, UnknownName
from sojourn.report.outcomes import by_strategy, finished, stopped_at, times_to
from sojourn.runs.comparison import LEVEL, t_limit
from sojourn.runs.folder import Run
from sojourn.runs.history import History
from sojourn.runs.measure import Measure

PM = r"\pm"
PROBLEM_KEYS = ("fleet", "data", "partition", "model", "problem", "batch-size", "time", "rounds")
"""Keys of an experiment that say what is learned, by whom and for how long."""


@dataclass(frozen=True)
class Paired:
    r"""The mean difference to the reference under the same seeds, and how sure it is.

    ``p`` is that of the paired t-test, ``adjusted`` the same after Holm's correction for all
    comparisons with the reference; ``low`` and ``high`` bound the difference, with 95 % confidence for
    all comparisons together (Bonferroni). One seed gives neither.
    """

    difference: float
    low: float
    high: float
    p: float
    seeds: int
    adjusted: float = math.nan


NOT_COMPARED = Paired(math.nan, math.nan, math.nan, math.nan, 0)
"""Of the reference itself."""


@dataclass(frozen=True)
class TimeTo:
    """Times to a target of which some are only known to be longer than the run.

    ``median`` counts those as longer than all others, and is infinite if half were not in time.
    ``restricted`` is the mean of the times cut at ``horizon``, the end of the shortest run that
    neither diverged nor stopped at the target: a mean that waits for nobody (the restricted mean
    survival time). ``paired`` has a p-value only where all runs of both strategies reached the
    target: times cut at the horizon hardly vary, and a t-test on them finds differences by chance.
    """

    target: float
    reached: int
    runs: int
    median: float
    restricted: Estimate
    horizon: float
    paired: Paired | None = None

    @property
    def texts(self) -> tuple[str, str]:
        """The median, or the time that it is beyond, and how many reached the target, if not all."""
        known = math.isfinite(self.median)
        share = "" if self.reached == self.runs else f" ({self.reached}/{self.runs})"
        return f"{self.median:.4g}" if known else f"> {self.horizon:.4g}", share


@dataclass(frozen=True)
class Row:
    """One strategy; what it is compared with has no ``paired``."""

    name: str
    learning_rate: float
    seeds: tuple[int, ...]
    diverged: int
    final: Estimate
    mean: Estimate
    paired: Paired | None
    times: tuple[TimeTo, ...]


@dataclass(frozen=True)
class Comparison:
    """All strategies beside the one they are compared with."""

    measure: Measure
    reference: str
    rows: tuple[Row, ...]

    def to_csv(self) -> str:
        """One line per strategy, every number in full; what is not known is empty."""
        name = self.measure.name
        head = ["strategy", "learning_rate", "seeds", "diverged"]
        head += [f"final_{name}", f"final_{name}_se", f"mean_{name}", f"mean_{name}_se"]
        head += ["difference", "difference_low", "difference_high", "p", "p_holm"]
        for time in self.rows[0].times:
            keys = ("reached", "median", "restricted_mean", "restricted_se", "horizon", "p")
            head += [f"time_to_{time.target:g}_{key}" for key in keys]
        lines: list[list[object]] = [[*head]]
        for row in self.rows:
            cells: list[object] = [row.name, row.learning_rate, len(row.seeds), row.diverged]
            cells += [row.final.mean, row.final.standard_error]
            cells += [row.mean.mean, row.mean.standard_error]
            paired = row.paired or NOT_COMPARED
            cells += [paired.difference, paired.low, paired.high, paired.p, paired.adjusted]
            for time in row.times:
                cells += [time.reached, time.median, time.restricted.mean]
                cells += [time.restricted.standard_error, time.horizon]
                cells.append((time.paired or NOT_COMPARED).p)
            lines.append(cells)
        return _csv(lines)

    def to_latex(self) -> str:
        """A ``tabular`` for a paper, which needs the package ``booktabs``."""
        measure = self.measure
        heads = ["strategy", f"final {measure.name}", f"mean {measure.name}", "difference", "$p$"]
        heads += [measure.time_to(time.target) for time in self.rows[0].times]
        lines = []
        for row in self.rows:
            cells = [escaped(row.name), _tex(row.final, measure), _tex(row.mean, measure)]
            cells += _tex_paired(row.paired or NOT_COMPARED, measure)
            lines.append([*cells, *("${}${}".format(*time.texts) for time in row.times)])
        return _tabular(heads, lines)


def compare(
    runs: dict[str, Sequence[History]], targets: Sequence[float] = (), reference: str | None = None
) -> Comparison:
    """Compare groups of runs, by name, with the first or with ``reference``, seed by seed."""
    if not runs:
        raise InvalidInput("there is nothing to compare: no runs")
    against = next(iter(runs)) if reference is None else reference
    if against not in runs:
        raise UnknownName("strategy", against, runs)
    measures = {history.measure for group in runs.values() for history in group}
    if len(measures) > 1:
        names = " and ".join(sorted(measure.name for measure in measures))
        raise InvalidInput(f"runs that are judged by {names} cannot be compared")
    every = [history for group in runs.values() for history in group]
    horizons = {target: _horizon(every, target) for target in targets}
    first, others = runs[against], max(1, len(runs) - 1)
    rows = []
    for name, group in runs.items():
        other = None if name == against else first
        good = [history for history in group if history.diverged_at is None]
        rows.append(
            Row(
                name,
                group[0].learning_rate,
                tuple(history.seed for history in group),
                len(group) - len(good),
                Estimate.from_samples([history.final for history in good]),
                Estimate.from_samples([history.mean for history in good]),
                None
                if other is None
                else _paired(_by_seed(good, _final), _by_seed(other, _final), others),
                tuple(_time_to(group, other, *cut, others) for cut in horizons.items()),
            )
        )
    return Comparison(measures.pop(), against, _adjusted(rows))


def _horizon(runs: Sequence[History], target: float) -> float:
    """The end of the shortest run that neither diverged nor ended at ``target``; else the latest end.

    Runs that diverged, or that `stop-at` ended at the target, are short and yet hide no time.
    """
    whole = finished(runs) or [run for run in runs if run.rows]
    went_on = [float(run.time[-1]) for run in whole if run.time_to(target) != run.time[-1]]
    return min(went_on) if went_on else max(float(run.time[-1]) for run in whole)


def _final(history: History) -> float:
    return history.final if history.diverged_at is None else math.nan


def _by_seed(group: Sequence[History], of: Callable[[History], float]) -> dict[int, float]:
    return {history.seed: of(history) for history in group}


def _paired(first: dict[int, float], second: dict[int, float], comparisons: int) -> Paired:
    common = [
        s for s in first if math.isfinite(first[s]) and math.isfinite(second.get(s, math.nan))
    ]
    difference = Estimate.from_samples([first[seed] - second[seed] for seed in common])
    mean, error = float(difference.mean), float(difference.standard_error)
    if len(common) < 2:
        return Paired(mean, math.nan, math.nan, math.nan, len(common))
    if error == 0.0:
        return Paired(mean, mean, mean, 1.0 if mean == 0.0 else 0.0, len(common))
    margin = t_limit(LEVEL / comparisons, len(common)) * error
    p = 2.0 * float(stdtr(len(common) - 1, -abs(mean) / error))
    return Paired(mean, mean - margin, mean + margin, p, len(common))


def _time_to(
    group: Sequence[History],
    other: Sequence[History] | None,
    target: float,
    horizon: float,
    comparisons: int,
) -> TimeTo:
    def cut(history: History) -> float:
        return min(*times_to([history], target), horizon)

    times = times_to(group, target)
    paired = None
    if other is not None:
        paired = _paired(_by_seed(group, cut), _by_seed(other, cut), comparisons)
        if not all(map(math.isfinite, [*times, *times_to(other, target)])):
            paired = replace(paired, low=math.nan, high=math.nan, p=math.nan)
    return TimeTo(
        target,
        sum(math.isfinite(time) for time in times),
        len(times),
        float(np.median(times)),
        Estimate.from_samples([cut(history) for history in group]),
        horizon,
        paired,
    )


def _adjusted(rows: Sequence[Row]) -> tuple[Row, ...]:
    values = holm([math.nan if row.paired is None else row.paired.p for row in rows])
    return tuple(
        row if row.paired is None else replace(row, paired=replace(row.paired, adjusted=p))
        for row, p in zip(rows, values, strict=True)
    )


def holm(values: Sequence[float]) -> list[float]:
    """Holm's correction: the k-th smallest of n values of p times n - k + 1, none below another.

    >>> holm([0.01, math.nan, 0.04])
    [0.02, nan, 0.04]
    """
    order = sorted((p, i) for i, p in enumerate(values) if math.isfinite(p))
    adjusted, most = [math.nan] * len(values), 0.0
    for rank, (p, i) in enumerate(order):
        most = adjusted[i] = max(most, min(1.0, (len(order) - rank) * p))
    return adjusted


def _csv(lines: Sequence[Sequence[object]]) -> str:
    """Lines of a CSV file; numbers that are not known or infinite are empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for line in lines:
        writer.writerow(["" if cell != cell or cell == math.inf else cell for cell in line])
    return file.getvalue()


def _tabular(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A LaTeX table with the rules of ``booktabs``: names to the left, numbers to the right."""
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            r"\toprule",
            " & ".join(map(escaped, heads)) + r" \\",
            r"\midrule",
            *(" & ".join(cells) + r" \\" for cells in lines),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _tex(estimate: Estimate, measure: Measure) -> str:
    if math.isnan(estimate.mean):
        return "--"
    if not measure.percent:
        return f"${format(estimate, '.4g').replace('±', PM)}$"
    return rf"${format(estimate, '.1%').replace('±', PM).removesuffix('%')}\,\%$"


def _tex_paired(paired: Paired, measure: Measure) -> list[str]:
    if math.isnan(paired.difference):
        return ["--", "--"]
    scale, form = (100.0, "+.1f") if measure.percent else (1.0, "+.3g")
    least = f"${paired.adjusted:.2g}$" if paired.adjusted >= 0.001 else "$<0.001$"
    p = "--" if math.isnan(paired.adjusted) else least
    return [f"${scale * paired.difference:{form}}$", p]


def escaped(text: str) -> str:
    """``text`` as LaTeX prints it."""
    special = {c: f"\\{c}" for c in "&%#_{}"}
    special |= {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "$": r"\$",
    }
    return text if text.startswith("$") else "".join(special.get(c, c) for c in text)


@dataclass(frozen=True)
class Entry:
    """One strategy in one setting: its final score or its time to a target.

    ``best`` marks the best mean of the setting; ``bold`` those not significantly worse than it, by a
    paired t-test over seeds after Holm's correction. A strategy that did not reach the target in every
    run is tested by its final values, or not at all where runs stopped at the target.
    """

    score: Estimate
    time: TimeTo | None
    best: bool
    bold: bool
    p: float

    def text(self, measure: Measure) -> str:
        """The score, or the median time; ``> 400 (1/3)`` where fewer than half reached the target."""
        if self.time is not None:
            return "".join(self.time.texts)
        if math.isnan(self.score.mean):
            return "-"
        return format(self.score, ".1%" if measure.percent else ".4g")


@dataclass(frozen=True)
class SettingsTable:
    """``entries[strategy][setting]``; ``None`` where a strategy did not run in a setting."""

    measure: Measure
    target: float | None
    settings: tuple[str, ...]
    entries: Mapping[str, tuple[Entry | None, ...]]

    def to_markdown(self) -> str:
        """A Markdown table."""
        lines = [
            f"| strategy | {' | '.join(self.settings)} |",
            f"| --- |{' ---: |' * len(self.settings)}",
            *(f"| {name} | {' | '.join(cells)} |" for name, cells in self._marked("**{}**")),
        ]
        return "\n".join([*lines, ""])

    def to_latex(self) -> str:
        """A ``tabular`` for a paper, which needs the package ``booktabs``."""
        symbols = {"%": r"\,\%", "±": r"$\pm$", ">": "$>$"}
        lines = [
            [escaped(name), *("".join(symbols.get(c, c) for c in cell) for cell in cells)]
            for name, cells in self._marked(r"\textbf{{{}}}")
        ]
        return _tabular(["strategy", *self.settings], lines)

    def to_csv(self) -> str:
        """A line per strategy and setting, every number in full; what is not known is empty."""
        score = self.measure.name if self.target is None else f"time_to_{self.target:g}"
        head = ["strategy", "setting", score, "standard_error", "reached", "runs", "horizon"]
        lines: list[list[object]] = [[*head, "best", "not_significantly_worse", "p_holm"]]
        for name, entries in self.entries.items():
            for setting, entry in zip(self.settings, entries, strict=True):
                if entry is None:
                    continue
                time = entry.time
                shown = entry.score if time is None else time.restricted
                cells: list[object] = [name, setting, shown.mean, shown.standard_error]
                cells += ["", "", ""] if time is None else [time.reached, time.runs, time.horizon]
                lines.append([*cells, int(entry.best), int(entry.bold), entry.p])
        return _csv(lines)

    def _marked(self, bold: str) -> Iterator[tuple[str, list[str]]]:
        """Every strategy with its entries as text, those that are bold in the format ``bold``."""
        for name, entries in self.entries.items():
            texts = [("-" if entry is None else entry.text(self.measure)) for entry in entries]
            yield (
                name,
                [
                    bold.format(text) if entry is not None and entry.bold else text
                    for entry, text in zip(entries, texts, strict=True)
                ],
            )


def differing_problem(runs: Sequence[Run]) -> str | None:
    """What the problems of runs differ in, in words; ``None`` where seeds can be paired."""
    first = runs[0]
    for run in runs[1:]:
        for key in PROBLEM_KEYS:
            value, other_value = first.experiment.get(key), run.experiment.get(key)
            if first.experiment and run.experiment and value != other_value:
                return (
                    f"{key}: {_short(value)} in {first.name}, {_short(other_value)} in {run.name}"
                )
    return None


def _short(value: object) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def settings_table(runs: Sequence[Run], target: float | None = None) -> SettingsTable:
    """Every strategy in every setting, each setting a run folder; seeds pair within a setting."""
    names = [run.name for run in runs]
    if len(set(names)) != len(names):
        names = [str(run.path) for run in runs]
    columns, measures = [], set()
    for run in runs:
        measure, column = _column(by_strategy(run.histories), target)
        measures.add(measure)
        columns.append(column)
    if len(measures) > 1:
        judged = " and ".join(sorted(measure.name for measure in measures))
        raise InvalidInput(f"settings that are judged by {judged} cannot share a table")
    strategies = list(dict.fromkeys(name for column in columns for name in column))
    entries = {name: tuple(column.get(name) for column in columns) for name in strategies}
    return SettingsTable(measures.pop(), target, tuple(names), entries)


def _p_worse(row: Row, measure: Measure, ends: bool) -> float:
    """The p-value by which a strategy is worse than the best of a setting; ``nan`` without a test.

    By times if the row has some and all runs came to the target, else by final values if they are
    ``ends``.
    """
    by_time = row.times[0].paired if row.times else None
    if by_time is not None and not math.isnan(by_time.p):
        return by_time.p
    if row.paired is None or not ends:
        return math.nan
    ends_better = (row.paired.difference > 0.0) == measure.higher_is_better
    return 1.0 if row.times and ends_better else row.paired.p


def _column(
    groups: Mapping[str, Sequence[History]], target: float | None
) -> tuple[Measure, dict[str, Entry]]:
    targets = [] if target is None else [target]
    first = compare(dict(groups), targets)
    sign = -1.0 if first.measure.higher_is_better and target is None else 1.0

    def rank(row: Row) -> float:
        score = row.final.mean if target is None else row.times[0].restricted.mean
        return math.inf if math.isnan(score) else sign * float(score)

    best = min(first.rows, key=rank).name
    rows = compare(dict(groups), targets, best).rows
    ends = not any(stopped_at([h for g in groups.values() for h in g], t) for t in targets)
    adjusted = holm([_p_worse(row, first.measure, ends) for row in rows])
    return first.measure, {
        row.name: Entry(
            row.final,
            None if target is None else row.times[0],
            best=row.name == best,
            bold=row.name == best or p >= LEVEL,
            p=p,
        )
        for row, p in zip(rows, adjusted, strict=True)
    }

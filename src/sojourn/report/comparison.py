"""Strategies compared seed by seed: means, deviations, paired tests, times that may be censored."""

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from sojourn.errors import InvalidInput, UnknownName
from sojourn.estimate import Estimate
from sojourn.history import History
from sojourn.measure import Measure
from sojourn.types import FloatArray


@dataclass(frozen=True)
class Spread:
    """A mean and a standard deviation over runs."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of some numbers; one alone has no deviation."""
        many = len(values) > 1
        mean = float(np.mean(values)) if values else math.nan
        return cls(mean, float(np.std(values, ddof=1)) if many else math.nan)


@dataclass(frozen=True)
class Paired:
    r"""The mean difference to the reference under the same seeds, and how sure it is.

    ``p`` is that of the paired t-test, ``adjusted`` the same after Holm's correction for all
    comparisons with the reference; ``low`` and ``high`` bound 95 %. One seed tells nothing.
    """

    difference: float
    low: float
    high: float
    p: float
    seeds: int
    adjusted: float = math.nan


@dataclass(frozen=True)
class TimeTo:
    """Times to a target of which some are only known to be longer than the run.

    ``median`` counts those as longer than all others, and is infinite if half were not in time.
    ``restricted`` is the mean of the times cut at ``horizon``, the end of the shortest run of all:
    a mean that waits for nobody (the restricted mean survival time).
    """

    target: float
    reached: int
    runs: int
    median: float
    restricted: Spread
    horizon: float
    paired: Paired | None = None


@dataclass(frozen=True)
class Row:
    """One strategy; what it is compared with has no ``paired``."""

    name: str
    learning_rate: float
    seeds: tuple[int, ...]
    diverged: int
    final: Spread
    mean: Spread
    paired: Paired | None
    times: tuple[TimeTo, ...]


@dataclass(frozen=True)
class Comparison:
    """All strategies beside the one they are compared with."""

    measure: Measure
    reference: str
    rows: tuple[Row, ...]


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
    horizon = min(float(h.time[-1]) for group in runs.values() for h in group if h.rows)
    first = runs[against]
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
                Spread.of([history.final for history in good]),
                Spread.of([history.mean for history in good]),
                None if other is None else _paired(_by_seed(good, _final), _by_seed(other, _final)),
                tuple(_time_to(group, other, target, horizon) for target in targets),
            )
        )
    return Comparison(measures.pop(), against, _adjusted(rows))


def _final(history: History) -> float:
    return history.final if history.diverged_at is None else math.nan


def _by_seed(group: Sequence[History], of: Callable[[History], float]) -> dict[int, float]:
    return {history.seed: of(history) for history in group}


def _paired(one: dict[int, float], other: dict[int, float]) -> Paired:
    common = [s for s in one if math.isfinite(one[s]) and math.isfinite(other.get(s, math.nan))]
    found = Estimate.from_samples([one[seed] - other[seed] for seed in common])
    mean, error = float(found.mean), float(found.standard_error)
    if len(common) < 2:
        return Paired(mean, math.nan, math.nan, math.nan, len(common))
    if error == 0.0:
        return Paired(mean, mean, mean, 1.0 if mean == 0.0 else 0.0, len(common))
    margin = float(stats.t.ppf(0.975, len(common) - 1)) * error
    p = 2.0 * float(stats.t.sf(abs(mean) / error, len(common) - 1))
    return Paired(mean, mean - margin, mean + margin, p, len(common))


def _time_to(
    group: Sequence[History], other: Sequence[History] | None, target: float, horizon: float
) -> TimeTo:
    def cut(history: History) -> float:
        time = history.time_to(target)
        return min(time, horizon) if math.isfinite(time) else horizon

    times = sorted(math.inf if math.isnan(t) else t for t in (h.time_to(target) for h in group))
    return TimeTo(
        target,
        sum(math.isfinite(time) for time in times),
        len(times),
        _median(np.array(times)),
        Spread.of([cut(history) for history in group]),
        horizon,
        None if other is None else _paired(_by_seed(group, cut), _by_seed(other, cut)),
    )


def _median(times: FloatArray) -> float:
    middle = (times.size - 1) / 2
    return float((times[math.floor(middle)] + times[math.ceil(middle)]) / 2)


def _adjusted(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Holm: the k-th smallest of n values of p is multiplied by n - k + 1, and none is below another."""
    order = sorted(
        (row.paired.p, i)
        for i, row in enumerate(rows)
        if row.paired is not None and math.isfinite(row.paired.p)
    )
    found, most = list(rows), 0.0
    for rank, (p, i) in enumerate(order):
        most = max(most, min(1.0, (len(order) - rank) * p))
        paired = found[i].paired
        assert paired is not None
        found[i] = replace(found[i], paired=replace(paired, adjusted=most))
    return tuple(found)


def to_csv(comparison: Comparison) -> str:
    """One line per strategy, every number in full; what is not known is empty."""
    name, file = comparison.measure.name, io.StringIO()
    targets = [time.target for time in comparison.rows[0].times]
    head = ["strategy", "learning_rate", "seeds", "diverged"]
    head += [f"final_{name}", f"final_{name}_sd", f"mean_{name}", f"mean_{name}_sd"]
    head += ["difference", "difference_low", "difference_high", "p", "p_holm"]
    for target in targets:
        keys = ("reached", "median", "restricted_mean", "restricted_sd", "horizon", "p")
        head += [f"time_to_{target:g}_{key}" for key in keys]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    for row in comparison.rows:
        paired = row.paired
        cells: list[object] = [row.name, row.learning_rate, len(row.seeds), row.diverged]
        cells += [row.final.mean, row.final.deviation, row.mean.mean, row.mean.deviation]
        cells += (
            [None] * 5
            if paired is None
            else [paired.difference, paired.low, paired.high, paired.p, paired.adjusted]
        )
        for time in row.times:
            p = None if time.paired is None else time.paired.p
            cells += [time.reached, time.median, time.restricted.mean, time.restricted.deviation]
            cells += [time.horizon, p]
        writer.writerow(["" if c is None or c != c or c == math.inf else c for c in cells])
    return file.getvalue()


def to_latex(comparison: Comparison) -> str:
    r"""A ``tabular`` for a paper, which needs the package ``booktabs``."""
    measure, rows = comparison.measure, comparison.rows
    targets = [time.target for time in rows[0].times]
    heads = ["strategy", f"final {measure.name}", f"mean {measure.name}", "difference", "$p$"]
    heads += [f"time to {measure.target(target)}" for target in targets]
    lines = [
        rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        r"\toprule",
        " & ".join(map(_escaped, heads)) + r" \\",
        r"\midrule",
    ]
    for row in rows:
        cells = [_escaped(row.name), _tex(row.final, measure), _tex(row.mean, measure)]
        cells += _tex_paired(row.paired, measure)
        cells += [_tex_time(time) for time in row.times]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _tex(spread: Spread, measure: Measure) -> str:
    scale, form = (100.0, ".1f") if measure.percent else (1.0, ".4g")
    unit = r"\,\%" if measure.percent else ""
    if math.isnan(spread.mean):
        return "--"
    if math.isnan(spread.deviation):
        return f"${scale * spread.mean:{form}}{unit}$"
    return rf"${scale * spread.mean:{form}} \pm {scale * spread.deviation:{form}}{unit}$"


def _tex_paired(paired: Paired | None, measure: Measure) -> list[str]:
    if paired is None or math.isnan(paired.difference):
        return ["--", "--"]
    scale, form = (100.0, "+.1f") if measure.percent else (1.0, "+.3g")
    least = f"${paired.adjusted:.2g}$" if paired.adjusted >= 0.001 else "$<0.001$"
    p = "--" if math.isnan(paired.adjusted) else least
    return [f"${scale * paired.difference:{form}}$", p]


def _tex_time(time: TimeTo) -> str:
    if not math.isfinite(time.median):
        return f"$> {time.horizon:.4g}$ ({time.reached}/{time.runs})"
    seen = "" if time.reached == time.runs else f" ({time.reached}/{time.runs})"
    return f"${time.median:.4g}${seen}"


def _escaped(text: str) -> str:
    special = {c: f"\\{c}" for c in "&%#_{}"}
    special |= {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "$": r"\$",
    }
    return text if text.startswith("$") else "".join(special.get(c, c) for c in text)

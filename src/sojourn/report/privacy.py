"""What privacy costs: the primary measure at the end against the epsilon spent."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sojourn._support.numbers import number
from sojourn.figures.figure import Figure, Series, Table, View
from sojourn.report.outcomes import final, final_text
from sojourn.report.page import Section
from sojourn.rules.privacy import EPSILON
from sojourn.runs.folder import Run
from sojourn.runs.history import History

_OPTIONS = ("privacy-clip", "privacy-noise")
_ESTIMATE = ("mean", "standard_error")


class Spent(NamedTuple):
    """A strategy, what it is without its privacy, its noise, its epsilon at the end and its runs."""

    name: str
    family: str
    noise: float
    epsilon: float
    runs: tuple[History, ...]


def epsilon_of(runs: Sequence[History]) -> float:
    """The largest epsilon that one of the runs has spent at its end; infinite without privacy."""
    if not runs or any(EPSILON not in run.metrics for run in runs):
        return math.inf
    return max(float(run.metrics[EPSILON][-1]) for run in runs)


def epsilon_text(epsilon: float) -> str:
    """As people read it.

    >>> epsilon_text(17.6432), epsilon_text(math.inf)
    ('17.6', 'infinite')
    """
    return number(epsilon) if math.isfinite(epsilon) else "infinite"


def privacy_section(run: Run, index: int) -> Section | None:
    """The measure at the end against epsilon; ``None`` if no rule of the run is private."""
    found = _spent(run)
    if not any(math.isfinite(one.epsilon) for one in found):
        return None
    measure = run.histories[0].measure
    rows = []
    for one in sorted(found, key=lambda one: (one.family, -one.epsilon)):
        noise = number(one.noise) if one.noise else "none"
        rows.append((one.name, noise, epsilon_text(one.epsilon), final_text(one.runs, measure)))
    columns = ("strategy", "noise", "epsilon", f"final {measure.label}")
    return Section(
        anchor=f"privacy-{index}",
        title="What privacy costs",
        kicker=run.name,
        lead="Every update was clipped and got Gaussian noise, in units of the clipping norm. Epsilon is that "
        "of the client that answered most often, at delta = 1e-5; the smaller, the less the model says of any "
        "one client.",
        figures=(_figure(f"privacy-{index}", found, run),),
        tables=(Table(columns, tuple(rows), title="Privacy and what it costs"),),
    )


def _spent(run: Run) -> list[Spent]:
    """Every strategy with its epsilon, as far as the summary says its rule."""
    found = []
    for entry in run.summary.get("strategies", []):
        rule = entry.get("rule")
        runs = tuple(h for h in run.histories if h.strategy == entry.get("name"))
        if not isinstance(rule, Mapping) or not runs:
            continue
        private = all(name in rule for name in _OPTIONS)
        noise = float(rule["privacy-noise"]) if private else 0.0
        epsilon = epsilon_of(runs) if private else math.inf
        found.append(Spent(runs[0].strategy, _family(entry, rule), noise, epsilon, runs))
    return found


def _family(entry: Mapping[str, Any], rule: Mapping[str, Any]) -> str:
    """What strategies that differ in their privacy alone have in common."""
    parts = {k: v for k, v in rule.items() if k not in (*_OPTIONS, "name")}
    text = ", ".join(f"{key} {value}" for key, value in sorted(parts.items()))
    return ", ".join(filter(None, [f"{rule['name']}, {entry.get('policy', '')}", text]))


def _figure(name: str, found: list[Spent], run: Run) -> Figure:
    measure, series = run.histories[0].measure, []
    for family in dict.fromkeys(one.family for one in found):
        own = [one for one in found if one.family == family and math.isfinite(one.epsilon)]
        if not own:
            continue
        own.sort(key=lambda one: one.epsilon)
        ends = [final(one.runs, measure) for one in own]
        means, errors = (np.array([getattr(end, f) for end in ends]) for f in _ESTIMATE)
        band = {"low": means - errors, "high": means + errors} if np.isfinite(errors).all() else {}
        series.append(Series(family, [one.epsilon for one in own], means, **band))
    view = View(
        "epsilon", f"final {measure.label}", tuple(series), log_x=True, percent=measure.percent
    )
    least, most = (
        f(one.epsilon for one in found if math.isfinite(one.epsilon)) for f in (min, max)
    )
    alt = (
        f"Final {measure.label} of {len(series)} strategies against epsilon, from "
        f"{epsilon_text(least)} to {epsilon_text(most)}."
    )
    caption = "Means over seeds, ± one standard error. Left is more private."
    return Figure(name, f"Final {measure.label} against epsilon", alt, (view,), caption)

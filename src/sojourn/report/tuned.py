"""How a tuning came to its answer: successive halving, what factors are worth, other conditions."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TypedDict

from sojourn._support.numbers import UNKNOWN, number
from sojourn.figures.figure import Figure, Series, Table, View
from sojourn.figures.palette import inks
from sojourn.report.outcomes import by_strategy
from sojourn.report.page import Section
from sojourn.report.verdict import Rung, Tuning, checked_tuning
from sojourn.runs.factors import Effect, effects_on, levels_of, main_effects
from sojourn.runs.folder import Run
from sojourn.runs.measure import relative, scored_by

Tracks = Mapping[tuple[str, float], list[tuple[float, float]]]
"""Of each strategy at a learning rate: fraction of the run and score, as it is shown, at every rung."""


class Condition(TypedDict):
    """Scores of strategies under one condition; ``None`` if a run diverged."""

    condition: str
    scores: dict[str, float | None]


def halving_section(run: Run, index: int) -> Section:
    """The successive halving behind a tuning's answer: what was tried, what it cost."""
    tuning = checked_tuning(run)
    seconds = f" Tuning took {tuning['seconds']:,.0f} s in all." if "seconds" in tuning else ""
    names = list(by_strategy(run.histories))
    return Section(
        anchor=f"race-{index}",
        title="How the strategy was chosen",
        lead="Successive halving: every strategy began at every other learning rate, those beside its best "
        "one followed, and the best by held-out data went on to the next rung. The test set was used only "
        f"afterwards, with fresh seeds. The pilot runs of {_compared(tuning)} candidates took "
        f"{tuning['gradients']:,} gradients.{seconds}",
        figures=(race_figure(f"race-{index}", tuning["race"], tuning["criterion"], names),),
        tables=(_rungs_table(tuning), _tried_table(tuning)),
        folded=True,
    )


def race_figure(
    name: str, race: Sequence[Rung], criterion: str, strategies: Sequence[str] = ()
) -> Figure:
    """Scores against the fraction of the horizon; the rest is grey beside the best of each strategy.

    These are the best candidates that ran to the end. ``strategies`` are those of the run's other
    figures, so that a strategy has the same colour in all.
    """
    tracks = _tracks(race, criterion)
    rungs = [float(rung["fraction"]) for rung in race]
    finalists = [candidate for candidate, points in tracks.items() if points[-1][0] == rungs[-1]]
    finalists.sort(key=lambda candidate: tracks[candidate][-1][1])
    best_of = dict(reversed(finalists))
    named = [(strategy, rate) for strategy, rate in finalists if best_of[strategy] == rate]
    x: list[float] = []
    y: list[float] = []
    for candidate, points in tracks.items():
        if candidate not in named:
            x += [rungs.index(fraction) for fraction, _ in points] + [math.nan]
            y += [score for _, score in points] + [math.nan]
    series = []
    if x:
        series.append(Series("others", x, y, kind="track", weight="background"))
    for strategy, rate in named:
        fractions, scores = zip(*tracks[strategy, rate], strict=True)
        places = [rungs.index(fraction) for fraction in fractions]
        series.append(Series(f"{strategy}, {rate:g}", places, scores, kind="track"))
    best = (
        f"{finalists[0][0]} at learning rate {finalists[0][1]:g}" if finalists else "no candidate"
    )
    alt = (
        f"{len(tracks)} candidates did not diverge, {len(finalists)} ran to the end; the best score "
        f"there has {best}."
    )
    view = View(
        "part of the run",
        f"{scored_by(criterion)} on held-out data",
        tuple(series),
        categories=tuple(_part(rung) for rung in rungs),
        log_y=all(value > 0 for s in series for value in s.y if math.isfinite(value)),
    )
    caption = (
        "Each line is a strategy at a learning rate; after every rung only the best go on. Named: the "
        "best learning rate of every strategy that ran to the end."
    )
    colours = inks(best_of, inks(strategies))
    palette = {f"{strategy}, {rate:g}": colours[strategy] for strategy, rate in named}
    return Figure(name, "Successive halving", alt, (view,), caption, wide=True, palette=palette)


def _rungs_table(tuning: Tuning) -> Table:
    """What every rung cost, and how many were left."""
    rows = []
    race = tuning["race"]
    entered = [str(len(rung["candidates"]) + rung["diverged"]) for rung in race]
    for rung, began, went_on in zip(race, entered, [*entered[1:], "–"], strict=True):
        part, diverged = _part(float(rung["fraction"])), str(rung["diverged"])
        rows.append((part, began, diverged, went_on, f"{rung['gradients']:,}"))
    rows.append(("in all", _compared(tuning), "", "", f"{tuning['gradients']:,}"))
    columns = ("part of the run", "candidates", "diverged", "went on", "gradients")
    return Table(columns, tuple(rows), title="Cost of every rung")


def _compared(tuning: Tuning) -> str:
    """How many candidates were run; in files of earlier versions, to the first rung."""
    first = tuning["race"][0]
    return f"{tuning.get('candidates', len(first['candidates']) + first['diverged']):,}"


def _tried_table(tuning: Tuning) -> Table:
    """The learning rates that were tried of every strategy, the best, and how far it went."""
    tracks = _tracks(tuning["race"], tuning["criterion"])
    rows = []
    for strategy in dict.fromkeys(name for name, _ in tracks):
        rates = sorted(rate for name, rate in tracks if name == strategy)
        furthest = max(tracks[strategy, rate][-1][0] for rate in rates)
        last = {rate: tracks[strategy, rate][-1] for rate in rates}
        best = min((rate for rate in rates if last[rate][0] == furthest), key=lambda r: last[r][1])
        score = last[best][1]
        span = f"{rates[0]:g} to {rates[-1]:g}" if len(rates) > 1 else f"{rates[0]:g}"
        row = (strategy, span, str(len(rates)), f"{best:g}", _part(furthest), number(score))
        rows.append((-furthest, score, row))
    columns = ("strategy", "learning rates", "tried", "best", "part of the run", "score")
    return Table(
        columns,
        tuple(row for *_, row in sorted(rows)),
        title="What was tried",
        note=f"The score is the {scored_by(tuning['criterion'])}, on held-out data. Learning rates that "
        "diverged are left out.",
    )


def _tracks(race: Sequence[Rung], criterion: str) -> Tracks:
    tracks: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for rung in race:
        scores = relative([float(entry["score"]) for entry in rung["candidates"]], criterion)
        for entry, score in zip(rung["candidates"], scores, strict=True):
            key = str(entry["name"]), float(entry["learning_rate"])
            tracks.setdefault(key, []).append((float(rung["fraction"]), score))
    return tracks


def _part(fraction: float) -> str:
    """A fraction of a run in words.

    >>> _part(0.125), _part(1.0)
    ('1/8', 'all')
    """
    return "all" if fraction >= 1.0 else str(Fraction(fraction).limit_denominator(100))


def factors_section(run: Run, index: int) -> Section | None:
    """The main effects of a factorial experiment; ``None`` if a run is none.

    It is one if its strategies differ in their levels, and several pairs in one factor alone.

    Of a tuning these are the effects on the scores of the first rung, by which other
    combinations were chosen.
    """
    percent = False
    if run.tuning:
        effects, about = _effects_of_pilots(checked_tuning(run)), "score of the first rung"
    else:
        entries = run.summary.get("strategies", [])
        if not all("rule" in entry for entry in entries):  # made by hand, or by another program
            return None
        levels = {str(entry["name"]): levels_of(entry) for entry in entries}
        different = {tuple(by_factor.values()) for by_factor in levels.values()}
        strategies = {history.strategy for history in run.histories}
        if not strategies or strategies - set(levels) or len(different) < len(levels):
            return None
        effects = main_effects(run.histories, levels)
        percent, about = run.histories[0].measure.percent, f"final {run.histories[0].measure.name}"
    if max((effect.pairs for effect in effects), default=0) < 2:
        return None
    significant = [effect for effect in effects if effect.significant]
    unit = " points" if percent else ""
    lead = (
        "Strategies that differ in one factor alone are compared with the same seeds. "
        + ("A ratio below 1 is better. " if effects[0].ratio else "")
        + (
            f"Intervals hold for all effects together (95 %, {effects[0].seeds} seeds)."
            if effects[0].seeds > 1
            else "With one pilot seed there are no intervals."
        )
    )
    return Section(
        anchor=f"factors-{index}",
        title="What each factor is worth",
        finding="; ".join(
            f"{e.level} instead of {e.reference}: {_amount(e.value, e.ratio, percent)}{unit}"
            for e in significant
        ),
        lead=lead,
        tables=(effects_table(effects, about, percent=percent),),
        folded=True,
    )


def conditions_section(run: Run, index: int) -> Section | None:
    """The recommendation and its rivals under other conditions; ``None`` if they were not tried."""
    tuning = run.tuning or {}
    conditions: Sequence[Condition] = tuning.get("conditions", [])
    if len(conditions) < 2:
        return None
    names = list(conditions[0]["scores"])
    rows = []
    for condition in conditions:
        scores = [condition["scores"].get(name) for name in names]
        finite = [score for score in scores if score is not None]
        best = min(finite, default=math.nan)
        shown = dict(zip(finite, relative(finite, tuning["criterion"]), strict=True))
        texts = (
            "diverged" if score is None else number(shown[score]) + (" *" if score == best else "")
            for score in scores
        )
        rows.append((f"{condition['condition']}", *texts))
    return Section(
        anchor=f"conditions-{index}",
        title="What the answer depends on",
        lead="Pilot runs of the recommended strategy and its nearest rivals, under conditions other than "
        f"the assumed ones. The number is the {scored_by(tuning['criterion'])} on held-out data, smaller being better; "
        "* marks the best of a row.",
        tables=(Table(("if", *names), tuple(rows), title="Scores under other conditions"),),
        folded=True,
    )


def _effects_of_pilots(tuning: Tuning) -> list[Effect]:
    """From the best score of every strategy at the first rung."""
    levels = tuning.get("levels", {})
    scores: dict[str, dict[int, float]] = {}
    for entry in tuning["race"][0]["candidates"]:  # the best score first
        name = str(entry["name"])
        if name in levels and entry["score"] > 0.0:
            scores.setdefault(name, {0: float(entry["score"])})
    return effects_on(scores, levels, ratio=True) if len(scores) > 1 else []


def effects_table(effects: Sequence[Effect], about: str, *, percent: bool) -> Table:
    """A row per effect, in points where it is about a share (``percent``).

    Intervals and tests only where seeds were repeated.
    """
    ratio, tested = effects[0].ratio, any(effect.seeds > 1 for effect in effects)
    rows = []
    for effect in effects:
        value, low, high = (
            _amount(number, ratio, percent) for number in (effect.value, effect.low, effect.high)
        )
        interval = UNKNOWN if math.isinf(effect.high) else f"{low} to {high}"
        test = (interval, "yes" if effect.significant else "no") if tested else ()
        name = f"{effect.factor}: {effect.level}"
        rows.append((name, effect.reference, value, str(effect.pairs), *test))
    what = f"{'ratio' if ratio else 'difference'}, {about}{', points' * percent}"
    columns = ("factor", "instead of", what, "pairs", *(("95 %", "significant") if tested else ()))
    return Table(columns, tuple(rows), title="Main effects")


def _amount(value: float, ratio: bool, percent: bool) -> str:
    """A ratio, or a difference with its sign; that of a share in points."""
    if ratio:
        return f"{value:.3g}"
    return f"{100.0 * value:+.1f}" if percent else f"{value:+.3g}"

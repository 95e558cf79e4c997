"""A tuning, shown: its answer, the strategies that fresh seeds confirmed, and the race before."""

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

from sojourn.comparison import told_apart
from sojourn.errors import InvalidFile
from sojourn.estimate import Estimate
from sojourn.figure import Figure, Series, Table, View
from sojourn.palette import FAINT
from sojourn.report.outcomes import by_strategy, final_text, time_text
from sojourn.report.verdict import Tile, Verdict
from sojourn.runfolder import Run

Candidate = tuple[str, float]
"""A strategy at a learning rate."""
SCORES = {"final loss": "loss, averaged near the end"}
"""Criteria whose score is not the number of the same name in other tables."""


def tuned_verdict(run: Run) -> Verdict:
    """The answer of a tuning: its own sentence first."""
    tuning = _checked(run)
    runs = by_strategy(run.histories)
    pick, measure = str(tuning["pick"]), run.histories[0].measure
    own = runs.get(pick, [])
    score = Estimate.from_table(tuning["confirmed"][0]["score"])
    seeds = len({history.seed for history in run.histories})
    target = next(
        (t for t in reversed(run.targets) if own and "seeds" not in time_text(own, t)), None
    )
    second = (
        Tile(_score(score), f"{tuning['criterion']}, {pick}")
        if target is None
        else Tile(time_text(own, target), f"time to {measure.target(target)}, {pick}")
    )
    return Verdict(
        f"Use {pick} at learning rate {tuning['learning_rate']:g}",
        str(tuning["sentence"]),
        (
            Tile(pick, f"at learning rate {tuning['learning_rate']:g}"),
            second,
            Tile(final_text(own, measure), f"final {measure.label}, {pick}"),
            Tile(str(seeds), f"fresh seeds, after a race of {_entered(tuning)} candidates"),
        ),
    )


def confirmed_table(run: Run) -> Table:
    """The finalists and baselines on fresh seeds, and whether they can be told from the pick."""
    tuning = _checked(run)
    runs = by_strategy(run.histories)
    measure = run.histories[0].measure
    rows = []
    best = _scores(tuning["confirmed"][0])
    for entry in tuning["confirmed"]:
        own = runs.get(str(entry["name"]), [])
        rows.append(
            (
                str(entry["name"]),
                f"{entry['learning_rate']:g}",
                _score(Estimate.from_table(entry["score"])),
                final_text(own, measure) if own else "–",
                _against(entry, tuning, best),
            )
        )
    return Table(
        (
            "strategy",
            "learning rate",
            f"score: {SCORES.get(tuning['criterion'], tuning['criterion'])}",
            f"final {measure.label}",
            "against the pick, seed by seed",
        ),
        tuple(rows),
        title="Confirmed on fresh seeds",
        note="A smaller score is better. ± is one standard error over seeds. Every strategy has the "
        "learning rate that was best for it.",
    )


def race_figure(name: str, tuning: Mapping[str, Any]) -> Figure:
    """Scores against the fraction of the horizon: those that ran to the end named, the rest grey."""
    tracks = _tracks(tuning)
    rungs = [float(rung["fraction"]) for rung in tuning["race"]]
    finalists = [candidate for candidate, points in tracks.items() if points[-1][0] == rungs[-1]]
    finalists.sort(key=lambda candidate: tracks[candidate][-1][1])
    x, y = [], []
    for candidate, points in tracks.items():
        if candidate not in finalists:
            x += [rungs.index(fraction) for fraction, _ in points] + [math.nan]
            y += [score for _, score in points] + [math.nan]
    series = [Series(FAINT, x, y, kind="track", label="dropped on the way")] if x else []
    for strategy, rate in finalists:
        label = f"{strategy}, {rate:g}"
        fractions, scores = zip(*tracks[strategy, rate], strict=True)
        places = [rungs.index(fraction) for fraction in fractions]
        series.append(Series(label, places, scores, kind="track", label=label))
    best = f"{finalists[0][0]} at learning rate {finalists[0][1]:g}" if finalists else "nobody"
    alt = (
        f"{len(tracks)} candidates began, {len(finalists)} ran to the end; the best score there "
        f"has {best}."
    )
    view = View(
        "part of the run",
        f"{tuning['criterion']} on held-out data",
        tuple(series),
        categories=tuple(_part(rung) for rung in rungs),
        log_y=all(value > 0 for s in series for value in s.y if math.isfinite(value)),
    )
    caption = "Each line is a strategy at a learning rate; at every rung only the best go on."
    return Figure(name, "Who went on", alt, (view,), caption, wide=True)


def rungs_table(tuning: Mapping[str, Any]) -> Table:
    """What every rung of the race cost, and how many were left."""
    rows = []
    for rung, after in pairwise([*tuning["race"], None]):
        going_on = "–" if after is None else str(len(after["candidates"]) + after["diverged"])
        rows.append(
            (
                _part(float(rung["fraction"])),
                str(len(rung["candidates"]) + rung["diverged"]),
                str(rung["diverged"]),
                going_on,
                f"{rung['gradients']:,}",
            )
        )
    total = (("together", str(_entered(tuning)), "", "", f"{tuning['gradients']:,}"),)
    columns = ("part of the run", "candidates", "diverged", "went on", "gradients")
    return Table(columns, (*rows, *total), title="What the race cost")


def tried_table(tuning: Mapping[str, Any]) -> Table:
    """The learning rates that were tried of every strategy, the best, and how far it went."""
    tracks = _tracks(tuning)
    rows = []
    for strategy in dict.fromkeys(name for name, _ in tracks):
        rates = sorted(rate for name, rate in tracks if name == strategy)
        furthest = max(tracks[strategy, rate][-1][0] for rate in rates)
        there = [rate for rate in rates if tracks[strategy, rate][-1][0] == furthest]
        best = min(there, key=lambda rate: tracks[strategy, rate][-1][1])
        rows.append(
            (
                furthest,
                tracks[strategy, best][-1][1],
                (
                    strategy,
                    f"{rates[0]:g} to {rates[-1]:g}" if len(rates) > 1 else f"{rates[0]:g}",
                    str(len(rates)),
                    f"{best:g}",
                    _part(furthest),
                    f"{tracks[strategy, best][-1][1]:.3g}",
                ),
            )
        )
    rows.sort(key=lambda row: (-row[0], row[1]))
    columns = (
        "strategy",
        "learning rates that did not diverge",
        "how many",
        "best",
        "ran",
        "score there",
    )
    return Table(columns, tuple(row for *_, row in rows), title="What was tried")


def _checked(run: Run) -> Mapping[str, Any]:
    missing = {"sentence", "pick", "learning_rate", "criterion", "confirmed", "race", "gradients"}
    missing -= set(run.tuning)
    if missing or not run.tuning["confirmed"] or not run.tuning["race"]:
        raise InvalidFile(
            f"{run.name}: the answer of the tuning lacks {', '.join(sorted(missing)) or 'rows'}. "
            "Run 'sojourn tune' again on the folder: what is done is kept."
        )
    return run.tuning


def _tracks(tuning: Mapping[str, Any]) -> dict[Candidate, list[tuple[float, float]]]:
    """Fraction and score at every rung that each candidate ran."""
    tracks: dict[Candidate, list[tuple[float, float]]] = {}
    for rung in tuning["race"]:
        for entry in rung["candidates"]:
            key = str(entry["name"]), float(entry["learning_rate"])
            tracks.setdefault(key, []).append((float(rung["fraction"]), float(entry["score"])))
    return tracks


def _part(fraction: float) -> str:
    """A fraction of a run in words.

    >>> _part(0.125), _part(1.0)
    ('1/8', 'all')
    """
    return "all" if fraction >= 1.0 else str(Fraction(fraction).limit_denominator(100))


def _entered(tuning: Mapping[str, Any]) -> int:
    first = tuning["race"][0]
    return len(first["candidates"]) + int(first["diverged"])


def _scores(entry: Mapping[str, Any]) -> list[float]:
    return [math.inf if score is None else float(score) for score in entry["scores"]]


def _score(score: Estimate) -> str:
    return f"{score:.3g}" if math.isfinite(score.mean) else "–"


def _against(entry: Mapping[str, Any], tuning: Mapping[str, Any], best: list[float]) -> str:
    if entry["name"] == tuning["pick"]:
        return "the pick"
    own = _scores(entry)
    both = [(a, b) for a, b in zip(own, best, strict=False) if math.isfinite(a + b)]
    if entry["name"] in tuning["tied"]:
        return "ties"
    if not both:
        return "–"
    gap = Estimate.difference([a for a, _ in both], [b for _, b in both])
    told = told_apart(own[: len(best)], best[: len(own)], looks=len(tuning["confirmed"]) - 1)
    return f"{gap:+.2g}" + ("" if told is not None else " (not certain)")

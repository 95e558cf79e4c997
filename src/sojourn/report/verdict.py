"""What a run says, in a sentence that its histories decide: who wins, by how much, and who ties.

Strategies are compared seed by seed; two that a paired t-test at 5 % cannot tell apart tie.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sojourn.comparison import told_apart
from sojourn.estimate import Estimate
from sojourn.history import History
from sojourn.measure import Measure
from sojourn.report.outcomes import (
    Runs,
    by_strategy,
    final_text,
    finished,
    reached,
    time_text,
    times_to,
    words,
)

MOST_NAMES = 3
"""Names that a sentence lists; of more it says how many there are."""


@dataclass(frozen=True)
class Tile:
    """A number to see at once, and what it is."""

    value: str
    label: str


@dataclass(frozen=True)
class Verdict:
    """The finding as a title, as a sentence with its numbers, and as four tiles."""

    headline: str
    sentence: str
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class _Ranking:
    """The strategies, best first, and those that cannot be told from the best (itself included)."""

    order: tuple[str, ...]
    tied: tuple[str, ...]

    @property
    def best(self) -> str:
        return self.order[0]

    @property
    def behind(self) -> str | None:
        """The best of those that are certainly worse."""
        return next((name for name in self.order if name not in self.tied), None)


def verdict_of(histories: Sequence[History], targets: Sequence[float] = ()) -> Verdict:
    """The verdict on the runs of one experiment or deployment.

    Of ``targets`` the hardest that some strategy reached with every seed is spoken of.
    """
    runs = by_strategy(histories)
    measure = histories[0].measure
    seeds = len({history.seed for history in histories})
    target = _target(runs, targets, measure)
    to_target = None if target is None else _rank(_times(runs, target), _missed(runs, target))
    at_end = _rank(_ends(runs, measure))
    if len(runs) == 1:
        headline, sentence = _of_one(runs, target, measure)
    else:
        early = None if target is None else _early(runs, target, measure, to_target, seeds)
        late = _late(runs, measure, at_end, seeds)
        sentence = "; ".join(filter(None, [early, late])) + "."
        if seeds == 1:
            sentence += " With one seed, nothing of this is certain."
        headline = _headline(target, measure, to_target, at_end, seeds)
    return Verdict(
        headline, sentence, _tiles(runs, histories, target, measure, to_target, at_end, seeds)
    )


def _target(runs: Runs, targets: Sequence[float], measure: Measure) -> float | None:
    easiest_last = sorted(targets, reverse=measure.higher_is_better)
    for share in (1.0, 0.0):
        for target in easiest_last:
            if any(0 < reached(own, target) >= share * len(own) for own in runs.values()):
                return target
    return easiest_last[-1] if easiest_last else None


def _times(runs: Runs, target: float) -> dict[str, dict[int, float]]:
    """When each seed came to ``target``; of a run that did not, the end, which is the least it takes."""
    return {
        name: {
            run.seed: time if math.isfinite(time) else float(run.time[-1]) if run.rows else math.inf
            for run, time in zip(own, times_to(own, target), strict=True)
        }
        for name, own in runs.items()
    }


def _missed(runs: Runs, target: float) -> dict[str, int]:
    return {name: len(own) - reached(own, target) for name, own in runs.items()}


def _ends(runs: Runs, measure: Measure) -> dict[str, dict[int, float]]:
    """The final values seed by seed, smaller better; infinite for what diverged."""
    sign = -1.0 if measure.higher_is_better else 1.0
    ends = {}
    for name, own in runs.items():
        good = {run.seed: sign * float(run.values(measure)[-1]) for run in finished(own)}
        ends[name] = {run.seed: good.get(run.seed, math.inf) for run in own}
    return ends


def _rank(
    scores: Mapping[str, Mapping[int, float]], missed: Mapping[str, int] | None = None
) -> _Ranking:
    """Fewest missing first, then by the mean; ``missed`` counts what is not infinite and yet missing."""

    def key(name: str) -> tuple[int, float]:
        finite = [score for score in scores[name].values() if math.isfinite(score)]
        missing = len(scores[name]) - len(finite) + (missed or {}).get(name, 0)
        return missing, sum(finite) / len(finite) if finite else math.inf

    order = sorted(scores, key=key)
    best = scores[order[0]]
    looks = len(order) - 1
    tied = [name for name in order[1:] if not _told(best, scores[name], looks)]
    return _Ranking(tuple(order), (order[0], *tied))


def _told(best: Mapping[int, float], other: Mapping[int, float], looks: int) -> bool:
    """Whether ``other`` is certainly not as good as ``best``, seed by seed.

    Seeds with which only ``other`` failed speak against it, so the rest may decide without them.
    """
    both = [seed for seed in best if seed in other]
    kept = [seed for seed in both if math.isfinite(other[seed])]
    return any(
        told_apart([best[seed] for seed in seeds], [other[seed] for seed in seeds], looks)
        is not None
        for seeds in (both, kept)
    )


def _listed(names: Sequence[str], texts: Sequence[str]) -> tuple[str, str]:
    """Who, and with what numbers, as a sentence has room for."""
    names = [f"“{name}”" if "," in name else name for name in names]
    if len(names) <= MOST_NAMES:
        return words(names), ", ".join(texts)
    return words([*names[:2], f"{len(names) - 2} more"]), ", ".join([*texts[:2], "..."])


def _early(
    runs: Runs, target: float, measure: Measure, ranking: _Ranking | None, seeds: int
) -> str:
    aim = measure.target(target)
    if ranking is None or not reached(runs[ranking.best], target):
        return f"no strategy reached {aim}"
    if reached(runs[ranking.best], target) < len(runs[ranking.best]):
        return (
            f"no strategy reached {aim} with every seed: with {ranking.best} "
            f"{time_text(runs[ranking.best], target)}"
        )
    tied = ranking.tied if seeds > 1 else (ranking.best,)
    who, numbers = _listed(tied, [time_text(runs[name], target) for name in tied])
    if len(tied) > 1:
        return f"{who} tie to {aim} ({numbers})"
    second = ranking.order[1]
    return f"{who} reaches {aim} first ({numbers}; {second}: {time_text(runs[second], target)})"


def _late(runs: Runs, measure: Measure, ranking: _Ranking, seeds: int) -> str:
    if not finished(runs[ranking.best]):
        return "every run diverged"
    tied = ranking.tied if seeds > 1 else (ranking.best,)
    who, numbers = _listed(tied, [final_text(runs[name], measure) for name in tied])
    behind = ranking.behind if seeds > 1 else ranking.order[1]
    rest = "" if behind is None else f", {_apart(runs, measure, ranking.best, behind)}"
    if len(tied) > 1:
        return f"{who} cannot be told apart at the end ({numbers}){rest}"
    return f"{who} ends {_superlative(measure)} ({numbers}){rest}"


def _apart(runs: Runs, measure: Measure, best: str, behind: str) -> str:
    """How far ``behind`` ends behind ``best``, over the seeds that both finished."""
    ends = {
        name: {run.seed: float(run.values(measure)[-1]) for run in finished(runs[name])}
        for name in (best, behind)
    }
    both = [seed for seed in ends[best] if seed in ends[behind]]
    if not both:
        return f"and {behind} diverged"
    sign = 1.0 if measure.higher_is_better else -1.0
    first, second = ([sign * ends[name][seed] for seed in both] for name in (best, behind))
    gap = Estimate.difference(first, second)
    side = "above" if measure.higher_is_better else "below"
    if measure.percent:
        points = Estimate(100 * gap.mean, 100 * gap.standard_error)
        return f"{points:.1f} points {side} {behind}"
    return f"{gap:.2g} {side} {behind}"


def _superlative(measure: Measure) -> str:
    return "highest" if measure.higher_is_better else "lowest"


def _headline(
    target: float | None,
    measure: Measure,
    to_target: _Ranking | None,
    at_end: _Ranking,
    seeds: int,
) -> str:
    alone = seeds == 1
    ending = (
        f"{at_end.best} ends {_superlative(measure)}"
        if alone or len(at_end.tied) == 1
        else f"{_listed(at_end.tied, ())[0]} tie at the end"
    )
    if not alone and len(at_end.tied) == len(at_end.order):
        ties = to_target is None or len(to_target.tied) == len(to_target.order)
        if ties:
            return f"{seeds} seeds do not tell the {len(at_end.order)} strategies apart"
    if target is None or to_target is None:
        return ending + (", with one seed" if alone else "")
    aim = measure.target(target)
    first = (alone or len(to_target.tied) == 1) and to_target.best
    last = (alone or len(at_end.tied) == 1) and at_end.best
    if first and first == last:
        return f"{first} is first to {aim} and ends {_superlative(measure)}" + (
            ", with one seed" if alone else ""
        )
    if set(to_target.tied) == set(at_end.tied) and not first:
        return f"{_listed(at_end.tied, ())[0]} tie, to {aim} and at the end"
    begin = (
        f"{first} is first to {aim}" if first else f"{_listed(to_target.tied, ())[0]} tie to {aim}"
    )
    return f"{ending}; {begin}"


def _of_one(runs: Runs, target: float | None, measure: Measure) -> tuple[str, str]:
    ((name, own),) = runs.items()
    end = f"ends at {final_text(own, measure)} {measure.label}"
    if not finished(own):
        return f"{name} diverged", f"Every run of {name} diverged."
    if target is None:
        return f"{name} {end}", f"{name} {end}."
    when = time_text(own, target)
    aim = measure.target(target)
    if when[0].isdigit() and "seeds" not in when:
        return f"{name} {end}", f"{name} reaches {aim} after {when} and {end}."
    return f"{name} {end}", f"{name} {end}; {aim}: {when}."


def _tiles(
    runs: Runs,
    histories: Sequence[History],
    target: float | None,
    measure: Measure,
    to_target: _Ranking | None,
    at_end: _Ranking,
    seeds: int,
) -> tuple[Tile, ...]:
    tied = len(at_end.tied) > 1 and seeds > 1
    best = at_end.best
    who = Tile(
        _listed(at_end.tied, ())[0] if tied else best,
        "cannot be told apart at the end" if tied else f"ends {_superlative(measure)}",
    )
    if target is None or to_target is None:
        rounds = Estimate.from_samples([float(run.round[-1]) for run in runs[best] if run.rows])
        second = Tile(f"{rounds.mean:,.0f}", f"rounds, {best}")
    else:
        second = Tile(
            time_text(runs[to_target.best], target),
            f"time to {measure.target(target)}, {to_target.best}",
        )
    lost = sum(run.diverged_at is not None for run in histories)
    about = "seeds" if seeds > 1 else "seed"
    if len(runs) > 1 and seeds > 1:
        about += f", each for {len(runs)} strategies"
    return (
        who,
        second,
        Tile(final_text(runs[best], measure), f"final {measure.label}, {best}"),
        Tile(str(seeds), about + (f"; {lost} runs diverged" if lost else "")),
    )

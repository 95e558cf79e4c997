"""Successive halving: who goes on to the next rung, and what that costs. No training here."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

RUNGS = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""The fractions of the horizon at which candidates are compared."""
KEPT = (1 / 6, 1 / 9, 1 / 24)
"""The fraction of all candidates that goes on, after each rung but the last."""
RATES_OF_EACH = (2, 1, 0)
"""How many learning rates of every strategy go on besides, so that none is out for starting slowly."""
BASELINE_RATES = (2, 2, 0)
"""The same for baselines, which must be tuned as well as the rest to be beaten."""
LEAST_FINALISTS = 3
FINAL_SEEDS = 3
"""Pilot seeds of the last rung: near the end luck decides between few."""
LEAST_SEEDS, MOST_SEEDS = 3, 6
"""Fresh seeds on which finalists are compared."""
MOST_RATES_IN_FINAL = 3
"""Learning rates of one strategy at the last rung: neighbours tell little about each other."""
TIE = 0.05
"""Scores that differ by less, in proportion, are not told apart by a few pilots."""
SPREAD_OF_SCORE = 0.15
"""The last fraction of a rung over which a score is averaged."""


@dataclass(frozen=True, order=True)
class Candidate:
    """A strategy, by its number in the experiment, at a learning rate."""

    strategy: int
    learning_rate: float


Scores = Mapping[Candidate, float]
"""Smaller is better; infinite for what diverged."""


def survivors(
    scores: Scores,
    rung: int,
    entered: int,
    baselines: Iterable[int] = (),
    before: Scores | None = None,
) -> list[Candidate]:
    """Who goes on after ``rung`` (from 0), best first, when ``entered`` candidates began the race.

    The best of all, half of them as they stand and half by where they are heading if the scores of the
    rung ``before`` are given; and of every strategy and baseline the best learning rate and the next
    smaller one, which starts more slowly and ends with less noise.

    >>> scores = {Candidate(s, r): s + r for s in range(2) for r in (0.1, 0.2, 0.4, 0.8)}
    >>> survivors(scores, 1, entered=8)
    [Candidate(strategy=0, learning_rate=0.1), Candidate(strategy=1, learning_rate=0.1)]
    """
    ranked = ranking(scores)
    most = max(LEAST_FINALISTS if rung == len(KEPT) - 1 else 1, math.ceil(KEPT[rung] * entered))
    if rung == len(KEPT) - 1:
        ranked = _at_most(ranked, MOST_RATES_IN_FINAL)
    best = set(ranked[: most if before is None else math.ceil(most / 2)])
    if before is not None:
        ahead = ranking({c: heading(scores[c], before[c]) for c in ranked})
        best.update([c for c in ahead if c not in best][: most - len(best)])
    for strategy in {candidate.strategy for candidate in ranked}:
        quota = (BASELINE_RATES if strategy in set(baselines) else RATES_OF_EACH)[rung]
        own = [c for c in ranked if c.strategy == strategy]
        best.update(_slower_next(own)[:quota])
    return [candidate for candidate in ranked if candidate in best]


def heading(score: float, before: float) -> float:
    """The score at twice the time, if it falls as a power of time: s(2t) = s(t)^2/s(t/2).

    >>> heading(0.5, 1.0)
    0.25
    """
    return score * min(1.0, score / before) if math.isfinite(before) and before > 0 else score


def ranking(scores: Scores) -> list[Candidate]:
    """The candidates that did not diverge, best first.

    Of equals, such as runs in which nothing has happened yet, the one in the middle of its
    strategy's learning rates.
    """
    finite = [candidate for candidate, score in scores.items() if math.isfinite(score)]
    logs: dict[int, list[float]] = {}
    for candidate in scores:
        logs.setdefault(candidate.strategy, []).append(math.log(candidate.learning_rate))
    middle = {strategy: statistics.median(own) for strategy, own in logs.items()}

    def order(candidate: Candidate) -> tuple[float, float, Candidate]:
        off = abs(math.log(candidate.learning_rate) - middle[candidate.strategy])
        return scores[candidate], off, candidate

    return sorted(finite, key=order)


def at_edge(scores: Scores, rates: Mapping[int, Sequence[float]]) -> dict[int, str]:
    """The strategies whose best learning rate is the least or the largest that was tried.

    >>> at_edge({Candidate(0, 0.1): 2.0, Candidate(0, 0.2): 1.0}, {0: (0.1, 0.2)})
    {0: 'above'}
    """
    found = {}
    for strategy, tried in rates.items():
        own = {c: s for c, s in scores.items() if c.strategy == strategy}
        ranked = ranking(own)
        if not ranked or ranked[0].learning_rate == min(tried):
            found[strategy] = "below"
        elif ranked[0].learning_rate == max(tried):
            found[strategy] = "above"
    return found


def expected_cost(entered: int, strategies: int, baselines: int, seeds: int = FINAL_SEEDS) -> float:
    """About how many whole runs a race among ``entered`` candidates costs.

    The last rung is run on ``seeds`` pilot seeds.

    >>> round(expected_cost(96, 12, 3) / 96, 2)
    0.35
    """
    cost, before = 0.0, 0.0
    alive = float(entered)
    for rung, fraction in enumerate(RUNGS):
        cost += alive * (fraction - before)
        before = fraction
        if rung < len(KEPT):
            each = (strategies - baselines) * RATES_OF_EACH[rung]
            each += baselines * BASELINE_RATES[rung]
            final = rung == len(KEPT) - 1
            best = max(LEAST_FINALISTS if final else 1, math.ceil(KEPT[rung] * entered))
            alive = min(alive, best + each)
    return cost + (seeds - 1) * alive


def steadiest(scores: Scores) -> Candidate | None:
    """The smallest learning rate of a strategy whose score is the best up to a tie.

    Close to the largest stable step seeds differ most and one step further everything is lost, so of
    two rates that pilots hardly tell apart the smaller one is the safer.

    >>> steadiest({Candidate(0, 0.1): 1.04, Candidate(0, 0.2): 1.0, Candidate(0, 0.05): 1.3})
    Candidate(strategy=0, learning_rate=0.1)
    """
    ranked = ranking(scores)
    near = [c for c in ranked if scores[c] <= (1.0 + TIE) * scores[ranked[0]]]
    return min(near, key=lambda c: c.learning_rate, default=None)


def _slower_next(ranked: list[Candidate]) -> list[Candidate]:
    """Candidates of one strategy: the best, the one at the next smaller rate, then the others."""
    if not ranked:
        return []
    below = [c for c in ranked if c.learning_rate < ranked[0].learning_rate]
    second = [max(below, key=lambda c: c.learning_rate)] if below else []
    return [ranked[0], *second, *(c for c in ranked[1:] if c not in second)]


def _at_most(ranked: list[Candidate], number: int) -> list[Candidate]:
    kept: list[Candidate] = []
    for candidate in ranked:
        if sum(other.strategy == candidate.strategy for other in kept) < number:
            kept.append(candidate)
    return kept

"""Successive halving: who goes on to the next rung, and what that costs. No training here."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

RUNGS = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""The fractions of the horizon at which candidates are compared."""
KEPT = (1 / 6, 1 / 9, 1 / 30)
"""The fraction of all candidates that goes on, after each rung but the last."""
PROGRESS = 0.75
"""A run whose score is within this factor of what it began with has told nothing yet."""
RATES_OF_EACH = (2, 1, 0)
"""How many learning rates of every strategy go on besides, so that none is out for starting slowly."""
BASELINE_RATES = (2, 2, 0)
"""The same for baselines, which must be tuned as well as the rest to be beaten."""
LEAST_FINALISTS = 3
FINAL_SEEDS = 3
"""Pilot seeds of the last rung: near the end luck decides between few."""
LEAST_SEEDS, MOST_SEEDS = 3, 6
"""Fresh seeds on which finalists are compared."""
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
    smaller one, which starts more slowly and ends with less noise. To the last rung go the leading
    strategies, each with its best learning rate and the next smaller one.

    >>> scores = {Candidate(s, r): s + r for s in range(2) for r in (0.1, 0.2, 0.4, 0.8)}
    >>> survivors(scores, 1, entered=8)
    [Candidate(strategy=0, learning_rate=0.1), Candidate(strategy=1, learning_rate=0.1)]
    """
    ranked = ranking(scores)
    final = rung == len(KEPT) - 1
    leaders = _one_of_each(ranked) if final else ranked
    most = max(LEAST_FINALISTS if final else 1, math.ceil(KEPT[rung] * entered))
    best = leaders[: most if before is None else math.ceil(most / 2)]
    if before is not None:
        ahead = ranking({c: heading(scores[c], before[c]) for c in ranked})
        taken = {c.strategy for c in best} if final else set()
        ahead = [c for c in ahead if c not in best and c.strategy not in taken]
        best = best + (_one_of_each(ahead) if final else ahead)[: most - len(best)]
    kept = set(best)
    if final:
        kept.update(c for c in map(partial(_next_smaller, ranked), best) if c is not None)
    for strategy in {candidate.strategy for candidate in ranked}:
        quota = (BASELINE_RATES if strategy in set(baselines) else RATES_OF_EACH)[rung]
        own = [c for c in ranked if c.strategy == strategy]
        slower = _next_smaller(own, own[0])
        kept.update([own[0], *([slower] if slower else own[1:2])][:quota])
    return [candidate for candidate in ranked if candidate in kept]


def heading(score: float, before: float) -> float:
    """The score at twice the time, if it falls as a power of time: s(2t) = s(t)^2/s(t/2).

    >>> heading(0.5, 1.0)
    0.25
    """
    return score * min(1.0, score / before) if math.isfinite(before) and before > 0 else score


def ranking(scores: Scores) -> list[Candidate]:
    """The candidates that did not diverge, best first.

    Of equals, such as runs in which nothing has happened yet, the one in the middle of its
    strategy's learning rates, the smaller of the two in the middle.
    """
    finite = [candidate for candidate, score in scores.items() if math.isfinite(score)]
    logs: dict[int, list[float]] = {}
    for candidate in scores:
        logs.setdefault(candidate.strategy, []).append(math.log(candidate.learning_rate))
    middle = {strategy: statistics.median(own) for strategy, own in logs.items()}

    def order(candidate: Candidate) -> tuple[float, float, Candidate]:
        off = round(abs(math.log(candidate.learning_rate) - middle[candidate.strategy]), 6)
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

    The better half of the finalists is run on ``seeds`` pilot seeds.

    >>> round(expected_cost(96, 12, 3) / 96, 2)
    0.37
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
            alive = min(alive, (2 * best if final else best) + each)
    return cost + (seeds - 1) * math.ceil(alive / 2)


def repeated(scores: Scores) -> list[Candidate]:
    """The better half of the finalists, which run on further pilot seeds."""
    ranked = ranking(scores)
    return ranked[: max(LEAST_FINALISTS, math.ceil(len(ranked) / 2))]


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


def _next_smaller(ranked: Sequence[Candidate], of: Candidate) -> Candidate | None:
    """The same strategy at the largest of the smaller learning rates."""
    below = [c for c in ranked if c.strategy == of.strategy and c.learning_rate < of.learning_rate]
    return max(below, key=lambda c: c.learning_rate, default=None)


def _one_of_each(ranked: Sequence[Candidate]) -> list[Candidate]:
    """The best candidate of every strategy."""
    return list({c.strategy: c for c in reversed(ranked)}.values())[::-1]

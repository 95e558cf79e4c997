"""Successive halving: who goes on to the next rung, and what that costs. No training here."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RUNGS = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""The fractions of the horizon at which candidates are compared."""
KEPT = (1 / 10, 1 / 14, 1 / 40)
"""The fraction of all candidates that goes on, after each rung but the last."""
LEARNT, LOST = 0.9, 5 / 3
"""Between these multiples of the score that it began with, a run has told nothing yet."""
LEAN, MOST_LEANT = 0.2, 2.0
"""How much a score leans on that of either learning rate beside it, in logarithms, and the ratio that counts at most."""
RATES_OF_EACH = (2, 1, 0)
"""Learning rates of every strategy that go on besides, so that none is out for starting slowly."""
BASELINE_RATES = (3, 1, 0)
"""The same for baselines, which must be beaten at their best."""
FEW_RATES = 4
"""Learning rates of a strategy that are all tried at once; of more, every other one first."""
LEAST_FINALISTS = 3
LEADERS = 4
"""Strategies that keep their next smaller learning rate after the first rung."""
REPEATED = (1 / 28, 1 / 34, 1 / 67)
"""The fraction of all candidates that runs on a second, third and fourth pilot seed, two at least."""
LEAST_SEEDS, MOST_SEEDS = 3, 6
"""Fresh seeds on which finalists are compared."""
LOOKED_BELOW = 2
"""Finalists that run with the next smaller learning rate too, and with one more if they end best at that."""
TIE = 0.01
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
Runs = Mapping[Candidate, Sequence[float]]
"""Scores on every pilot seed that a candidate ran on, the seeds in the same order for all."""


def opening(rates: Mapping[int, Sequence[float]]) -> list[Candidate]:
    """Who begins: of every strategy every other learning rate, the largest first; all of a few.

    A score has one valley in the learning rate, so what was left out is tried `beside` the best.

    >>> [c.learning_rate for c in opening({0: (0.1, 0.2, 0.4, 0.8, 1.6)})]
    [0.1, 0.4, 1.6]
    """
    return [
        Candidate(strategy, rate)
        for strategy, own in rates.items()
        for rate in (own if len(own) <= FEW_RATES else sorted(own)[::-2][::-1])
    ]


def beside(scores: Scores, rates: Mapping[int, Sequence[float]]) -> list[Candidate]:
    """The learning rates next to the best of every strategy that have not been tried.

    Where all diverged, the next smaller one.

    >>> beside({Candidate(0, 0.1): 2.0, Candidate(0, 0.4): 1.0}, {0: (0.1, 0.2, 0.4, 0.8, 1.6)})
    [Candidate(strategy=0, learning_rate=0.2), Candidate(strategy=0, learning_rate=0.8)]
    """
    found = []
    for strategy, listed in rates.items():
        own = {c: s for c, s in scores.items() if c.strategy == strategy}
        ranked, all_rates = ranking(own), sorted(listed)
        near = ranked[0].learning_rate if ranked else min(c.learning_rate for c in own)
        place = all_rates.index(near)
        sides = [place - 1, place + 1] if ranked else [place - 1]
        next_to = [Candidate(strategy, all_rates[i]) for i in sides if 0 <= i < len(all_rates)]
        found += [c for c in next_to if c not in own]
    return found


def telling(scores: Scores, idle: float) -> dict[Candidate, float]:
    """The scores, those of runs that have learnt nothing being equal, so that theory decides.

    While slow clients have not been heard, the loss over all clients grows with every step towards
    the others, and the best run seems to be the one that stands still, whose score is ``idle``.

    >>> list(telling({Candidate(0, 0.1): 2.2, Candidate(0, 0.2): 3.0, Candidate(0, 0.4): 1.6}, 2.3).values())
    [2.07, 2.07, 1.6]
    """
    low, high = LEARNT * idle, LOST * idle
    return {c: low if low < s < high else s for c, s in scores.items()}


def leaning(rungs: Sequence[Runs], rates: Mapping[int, Sequence[float]]) -> dict[Candidate, float]:
    r"""The scores of the last rung, leaning on those of the learning rates beside.

    .. math:: s(\eta) \prod_{\pm} (s(\eta_\pm)/s(\eta))^w

    A loss has one valley in the learning rate, and samples and seeds that favour a single rate are
    luck, most of all close to the largest stable step. Ratios are those at the last rung that both
    rates ran to, on the pilot seeds of both; one that diverged counts as ``MOST_LEANT`` times worse.

    >>> runs = {Candidate(0, 0.1): (1.0,), Candidate(0, 0.2): (0.99,), Candidate(0, 0.4): (math.inf,)}
    >>> [round(s, 3) for s in leaning([runs], {0: (0.1, 0.2, 0.4)}).values()]
    [0.998, 1.139, inf]
    """
    return {c: on_average(runs) * _lean(c, rungs, rates) for c, runs in rungs[-1].items()}


def _lean(
    candidate: Candidate, rungs: Sequence[Runs], rates: Mapping[int, Sequence[float]]
) -> float:
    own = sorted(rates[candidate.strategy])
    place = own.index(candidate.learning_rate)
    lean = 1.0
    for i in (place - 1, place + 1):
        if not 0 <= i < len(own):
            continue
        other = Candidate(candidate.strategy, own[i])
        both = next((r for r in reversed(rungs) if candidate in r and other in r), None)
        if both is not None:
            ratio = _ratio(both[other], both[candidate])
            lean *= min(max(ratio, 1.0 / MOST_LEANT), MOST_LEANT) ** LEAN
    return lean


def _ratio(other: Sequence[float], own: Sequence[float]) -> float:
    """How much worse another's runs are, on the seeds that both have; 1 where neither can be told."""
    seeds = min(len(other), len(own))
    score = on_average(own[:seeds])
    return on_average(other[:seeds]) / score if 0.0 < score < math.inf else 1.0


def survivors(
    scores: Scores,
    rung: int,
    entered: int,
    before: Scores | None = None,
    baselines: Sequence[int] = (),
) -> list[Candidate]:
    """Who goes on after ``rung`` (from 0), best first, when ``entered`` candidates began the race.

    The best of all, half of them (to the last rung one) by where they are heading if the scores of the
    rung ``before`` are given, the others as they stand; and of every strategy the best learning rate and the next smaller, which
    starts more slowly and ends with less noise, of ``baselines`` the best of all. To the last rung go
    the leading strategies, the first two each with its best learning rate and the next smaller.

    >>> scores = {Candidate(s, r): s - r for s in range(2) for r in (0.1, 0.2, 0.4)}
    >>> [(c.strategy, c.learning_rate) for c in survivors(scores, 1, entered=6)]
    [(0, 0.4), (0, 0.2), (1, 0.4), (1, 0.2)]
    """
    ranked = ranking(scores)
    final = rung == len(KEPT) - 1
    leaders = _one_of_each(ranked) if final else ranked
    most = max(LEAST_FINALISTS + 1 if final else 1, math.ceil(KEPT[rung] * entered))
    ahead_of_time = 1 if final else most // 2
    best = leaders[: most if before is None else most - ahead_of_time]
    if before is not None:
        ahead = ranking({c: heading(scores[c], before[c]) for c in ranked})
        taken = {c.strategy for c in best} if final else set()
        ahead = [c for c in ahead if c not in best and c.strategy not in taken]
        best = best + (_one_of_each(ahead) if final else ahead)[: most - len(best)]
    kept = set(best)
    for leader in best[:LOOKED_BELOW] if final else _one_of_each(ranked)[:LEADERS]:
        own = [c for c in ranked if c.strategy == leader.strategy]
        kept.update(_downwards([leader, *own])[:2])
    for strategy in {candidate.strategy for candidate in ranked}:
        own = [c for c in ranked if c.strategy == strategy]
        if strategy in baselines:
            kept.update(own[: BASELINE_RATES[rung]])
        else:
            kept.update(_downwards(own)[: RATES_OF_EACH[rung]])
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
    """The strategies whose best learning rate is the least or the largest of their ``rates``.

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


def below(scores: Scores, rates: Mapping[int, Sequence[float]]) -> list[Candidate]:
    """The next smaller learning rates of the leading strategies that end best at their smallest.

    The longer a run, the smaller its best step, so that a rate may have been dropped too soon. ``scores``
    are those of the last rung, ``rates`` all that were tried.

    >>> below({Candidate(0, 0.2): 1.0, Candidate(0, 0.4): 1.1}, {0: (0.1, 0.2, 0.4)})
    [Candidate(strategy=0, learning_rate=0.1)]
    """
    found = []
    for leader in _one_of_each(ranking(scores))[:LOOKED_BELOW]:
        ran = [c.learning_rate for c in scores if c.strategy == leader.strategy]
        smaller = [rate for rate in rates[leader.strategy] if rate < leader.learning_rate]
        if leader.learning_rate == min(ran) and smaller:
            found.append(Candidate(leader.strategy, max(smaller)))
    return found


def repeated(entered: int) -> tuple[int, ...]:
    """How many finalists run on a second, third and fourth pilot seed: luck decides between few.

    >>> repeated(132), repeated(24)
    ((5, 4, 2), (2, 2, 2))
    """
    return tuple(max(2, math.ceil(part * entered)) for part in REPEATED)


def expected_runs(entered: int, strategies: int) -> tuple[float, ...]:
    """About how many of ``entered`` candidates run to each rung, on the first pilot seed.

    Half of them open, two more of each strategy are tried beside its best; half of the leaders are
    taken to be among the rates that every strategy keeps.

    >>> [round(number) for number in expected_runs(96, 12)]
    [72, 29, 16, 6]
    """
    few = entered <= FEW_RATES * strategies
    alive = [float(entered) if few else entered / 2 + 2.0 * strategies]
    for rung, kept in enumerate(KEPT):
        final = rung == len(KEPT) - 1
        best = max(LEAST_FINALISTS + 1 if final else 1, math.ceil(kept * entered))
        each = strategies * RATES_OF_EACH[rung]
        alive.append(min(alive[-1], best + LOOKED_BELOW if final else best / 2 + each))
    return tuple(alive)


def expected_cost(entered: int, strategies: int) -> float:
    """About how many whole runs a race among ``entered`` candidates costs.

    >>> round(expected_cost(96, 12) / 96, 2)
    0.32
    """
    steps = (after - before for before, after in zip((0.0, *RUNGS), RUNGS, strict=False))
    runs = expected_runs(entered, strategies)
    whole = sum(repeated(entered)) + LOOKED_BELOW
    return sum(alive * step for alive, step in zip(runs, steps, strict=True)) + whole


def on_average(scores: Sequence[float]) -> float:
    """The mean over pilot seeds; infinite if one diverged.

    Seeds differ by more than finalists do, but finalists share them. A standard error of a few seeds is
    mostly about what they share, so that none is added.

    >>> on_average([0.5, 1.0]), on_average([1.0, math.inf])
    (0.75, inf)
    """
    return statistics.fmean(scores)


def steadiest(scores: Scores) -> Candidate | None:
    """The smallest learning rate of a strategy whose score is the best up to a tie.

    Close to the largest stable step seeds differ most and one step further everything is lost, so of
    two rates that pilots hardly tell apart the smaller one is the safer.

    >>> steadiest({Candidate(0, 0.1): 1.01, Candidate(0, 0.2): 1.0, Candidate(0, 0.05): 1.3})
    Candidate(strategy=0, learning_rate=0.1)
    """
    ranked = ranking(scores)
    near = [c for c in ranked if scores[c] <= (1.0 + TIE) * scores[ranked[0]]]
    return min(near, key=lambda c: c.learning_rate, default=None)


def _downwards(ranked: Sequence[Candidate]) -> list[Candidate]:
    """Candidates of one strategy: the first, then the next smaller learning rates, then the rest."""
    first = ranked[0]
    below = {c for c in ranked if c.learning_rate < first.learning_rate}
    slower = sorted(below, key=lambda c: -c.learning_rate)
    return [first, *slower, *(c for c in ranked if c != first and c not in below)]


def _one_of_each(ranked: Sequence[Candidate]) -> list[Candidate]:
    """The best candidate of every strategy, in their order."""
    found: dict[int, Candidate] = {}
    for candidate in ranked:
        found.setdefault(candidate.strategy, candidate)
    return list(found.values())

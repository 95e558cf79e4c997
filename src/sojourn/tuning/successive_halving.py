"""Successive halving: which candidates go on to the next rung, and what that costs. No training here.

Four rules keep the best candidate from being dropped. Nothing is decided about a strategy before its best
learning rate has learnt something, and at the first rung at which it has. A best rate at the edge of those
that were run is followed outwards. Those beside the leading strategy, which differ from it in one factor, are
tried, until none of them leads. And a strategy goes on if either its current or its extrapolated score is
among the best.
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sojourn.tuning.learning_rates import next_rate

RUNGS = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""The fractions of the horizon at which candidates are compared: each rung doubles what has been run."""
STRATEGIES_KEPT = (1.0, 1 / 2, 1 / 3)
"""The fraction of strategies that goes on after each rung but the last; baselines go on besides."""
RATES_KEPT = (3, 3, 2)
"""Learning rates of each strategy that go on after each rung but the last: the best of three is seldom at an edge."""
FINALISTS = 4
"""The least number of strategies that run to the end."""
LEADERS = 2
"""Strategies whose edges are followed at the last rung, where every run is a whole one."""
FURTHER_SEEDS = 9
"""Pilot seeds besides the first, at most, on which ever fewer candidates run to the end: see `plausible`."""
AGAIN, AGAIN_FOR_TIMES = 1 / 3, 2 / 3
"""The gradients that runs on further pilot seeds may take, relative to those of all rungs on the first one.

Times to a target vary more from seed to seed, and once a target has been reached by half of the horizon, runs end
so soon that twice the share costs less than whole runs would.
"""
EACH_SEED = 0.4
"""The part of what is left of them that one seed may take."""
LIKELY = 2.0
"""Standard errors by which a candidate may be behind the leader and still be the better one."""
FEWEST_REPEATED = 2
"""Candidates on a further pilot seed, at least: one alone is compared with nothing."""
RATES_REPEATED = 2
"""Learning rates of each baseline that run on the second pilot seed."""
LEARNT = 0.98
"""A run has learnt something once its score is below this multiple of the score it began with."""
LEAN, MOST_LEANT = 0.2, 2.0
"""The weight of a neighbouring learning rate's score on one seed, in logarithms, and the largest ratio that counts."""
MOST_STEPS_OUTWARD = 10
"""How far an edge of the learning rates is followed at one rung: a factor of a thousand."""
TIE = 0.01
"""Scores within this fraction of each other count as equal: the smaller learning rate is taken."""


@dataclass(frozen=True, order=True)
class Candidate:
    """A strategy, by its number in the experiment, at a learning rate."""

    strategy: int
    learning_rate: float


Scores = Mapping[Candidate, float]
"""Smaller is better; infinite for a run that diverged."""
Runs = Mapping[Candidate, Sequence[float]]
"""The scores of each candidate on every pilot seed that it ran on, in the same order of seeds for all."""
Rates = Mapping[int, Sequence[float]]
"""Learning rates by strategy."""


@dataclass
class Rung:
    """The candidates that were run to a fraction of the horizon, with their scores on every pilot seed.

    ``gradients`` were computed since the rung before; ``idle`` is the score of an untrained model;
    ``without_update`` are the strategies whose server has made no update so far.
    """

    fraction: float
    runs: dict[Candidate, tuple[float, ...]] = field(default_factory=dict)
    gradients: int = 0
    idle: float = 0.0
    without_update: set[int] = field(default_factory=set)

    @property
    def scores(self) -> dict[Candidate, float]:
        """The mean score of every candidate over its pilot seeds."""
        return {c: on_average(runs) for c, runs in self.runs.items()}

    @property
    def repeated(self) -> tuple[Candidate, ...]:
        """The candidates that were judged on the most pilot seeds."""
        most = max(map(len, self.runs.values()), default=0)
        return tuple(c for c, runs in self.runs.items() if len(runs) == most)

    @property
    def undecided(self) -> set[int]:
        """The strategies of which no learning rate has learnt anything yet."""
        strategies = {candidate.strategy for candidate in self.runs}
        return strategies - learnt(self.scores, self.idle) | self.without_update

    def add(self, other: "Rung") -> None:
        """Add candidates that were run to the same fraction, or the same on a further seed."""
        for candidate, runs in other.runs.items():
            self.runs[candidate] = self.runs.get(candidate, ()) + runs
        self.gradients += other.gradients
        self.idle = other.idle or self.idle
        self.without_update |= other.without_update


RunTo = Callable[[float, Sequence[Candidate], int], Rung]
"""Runs candidates to a fraction of the horizon, on the first pilot seed (0) or a further one."""


@dataclass
class Halving:
    """All rungs so far, every learning rate that was tried of each strategy, and the strategies' names.

    ``stopped`` says that time ran out before the last rung was complete.
    """

    rungs: list[Rung]
    rates: dict[int, tuple[float, ...]]
    names: tuple[str, ...] = ()
    baselines: Collection[int] = ()
    stopped: bool = False

    @property
    def gradients(self) -> int:
        """The gradients that all rungs computed."""
        return sum(rung.gradients for rung in self.rungs)

    @property
    def compared(self) -> int:
        """The number of candidates that were run, to some rung."""
        return len({candidate for rung in self.rungs for candidate in rung.runs})

    def standing(self, rung: int) -> dict[Candidate, float]:
        """The scores by which candidates are ranked at a rung; see `leaning`."""
        return leaning([r.runs for r in self.rungs[: rung + 1]], self.rates)

    def podium(self) -> list[Candidate]:
        """The best candidate of every strategy, those that ran furthest and on most seeds first, then by score."""
        found: dict[int, Candidate] = {}
        for place in reversed(range(len(self.rungs))):
            standing, runs = self.standing(place), self.rungs[place].runs
            best = []
            for strategy, scores in _by_strategy(standing).items():
                most = max(len(runs[c]) for c in scores)
                steady = steadiest({c: s for c, s in scores.items() if len(runs[c]) == most})
                if strategy not in found and steady is not None:
                    best.append(steady)
            best.sort(key=lambda c: (-len(runs[c]), standing[c]))
            found |= {c.strategy: c for c in best}
        return list(found.values())

    def going_on(self, extrapolate: bool = True) -> list[Candidate]:
        """The candidates of the next rung."""
        if not self.rungs:
            return opening(self.rates)
        done = len(self.rungs) - 1
        if done == len(RUNGS) - 1:
            return []
        before = self.standing(done - 1) if done and extrapolate else None
        return survivors(
            self.standing(done),
            done,
            before,
            baselines=self.baselines,
            undecided=self.rungs[done].undecided,
            beginners=self._beginners(),
        )

    def _beginners(self) -> set[int]:
        """The strategies that had not learnt anything at the rung before the latest."""
        return self.rungs[-2].undecided if len(self.rungs) > 1 else set()

    def advance(
        self,
        run: RunTo,
        *,
        extrapolate: bool = True,
        stop: Callable[[], bool] = lambda: False,
        enter: Callable[[int], Rates] = lambda strategy: {},
        again: float = AGAIN,
    ) -> None:
        """Run the next rung with ``run``: the candidates that go on, and the rates beyond their edges.

        Before the last rung the strategies that ``enter`` returns for the leading one, with their learning
        rates, are run besides. At the last rung the best candidates are repeated on further pilot seeds. Once ``stop``
        is true, nothing is added, and a rung of which less than half was run is left out, unless it is the
        first: candidates run best first, so that half of a rung still compares the best.
        """
        fraction, candidates = RUNGS[len(self.rungs)], self.going_on(extrapolate)
        rung = run(fraction, candidates, 0)
        self.stopped = not set(candidates) <= set(rung.runs)
        if self.stopped and self.rungs and 2 * len(rung.runs) < len(candidates):
            return
        self.rungs.append(rung)
        self._follow_edges(run, stop)
        if fraction < RUNGS[-1]:
            self._try_beside(run, extrapolate, stop, enter)
        else:
            self._repeat(run, stop, again)
        self.stopped = self.stopped or (stop() and fraction < RUNGS[-1])

    def _repeat(self, run: RunTo, stop: Callable[[], bool], again: float) -> None:
        """Run the best candidates of the last rung on further pilot seeds, until one leads or all is spent.

        A single seed does not order strategies that are nearly as good, and a time to a target least of all. Every seed may
        take a part (``EACH_SEED``) of what is left of the share ``again``, best candidates first, and those that are
        `plausible` no longer are left out: the cheaper the runs, the more of them. On the second seed the baselines run,
        too, since their learning rates are as uncertain, whatever is left.
        """
        rung = self.rungs[-1]
        left, each = again * self.gradients, self._whole_run()
        for repetition in range(1, FURTHER_SEEDS + 1):
            ranked = ranking(self.standing(len(self.rungs) - 1))
            best = [c for c in ranked if c in rung.repeated]
            own: list[Candidate] = []
            if repetition == 1:
                best = [c for c in best if c.strategy not in self.baselines or c == best[0]]
                for baseline in self.baselines:
                    own += [c for c in ranked if c.strategy == baseline][:RATES_REPEATED]
            else:
                best = plausible(rung.runs, best)
            if len(best) < 2 or left < FEWEST_REPEATED * each or stop():
                return
            number = max(FEWEST_REPEATED, round(EACH_SEED * left / max(each, 1e-9)))
            chosen = list(dict.fromkeys([*best[:number], *own]))
            further = run(rung.fraction, chosen, repetition)
            if not set(chosen) <= set(further.runs):
                rung.gradients += further.gradients  # a seed that only some had is no comparison
                return
            rung.add(further)
            each = further.gradients / len(chosen)
            left -= each * len(best[:number])

    def _whole_run(self) -> float:
        """About how many gradients a whole run takes, by those that went on to each rung."""
        return sum(rung.gradients / max(1, len(rung.runs)) for rung in self.rungs)

    def _try_beside(
        self,
        run: RunTo,
        extrapolate: bool,
        stop: Callable[[], bool],
        enter: Callable[[int], Rates],
    ) -> None:
        """Add the strategies beside the leading one, until no new one leads.

        They go through the rungs so far among themselves, so that only the better ones cost a long run.
        """
        while not stop():
            ranked = ranking(self.standing(len(self.rungs) - 1))
            near = enter(ranked[0].strategy) if ranked else {}
            entering = {i: tuple(rates) for i, rates in near.items() if i not in self.rates}
            if not entering:
                return
            late = Halving([], entering)
            while len(late.rungs) < len(self.rungs) and not late.stopped:
                late.advance(run, extrapolate=extrapolate, stop=stop)
            self.rates |= late.rates
            for rung, newcomers in zip(self.rungs, late.rungs, strict=False):
                rung.add(newcomers)

    def _follow_edges(self, run: RunTo, stop: Callable[[], bool]) -> None:
        """Add learning rates to the latest rung until none at an edge is the best."""
        rung = self.rungs[-1]
        for _ in range(MOST_STEPS_OUTWARD):
            added = [] if stop() else self._beyond()
            if not added:
                return
            for candidate in added:
                rates = {*self.rates[candidate.strategy], candidate.learning_rate}
                self.rates[candidate.strategy] = tuple(sorted(rates))
            rung.add(run(rung.fraction, added, 0))

    def _beyond(self) -> list[Candidate]:
        """Learning rates to add to the latest rung: beside the best of each strategy, or beyond an edge.

        At the first rung that decides about a strategy both neighbours of its best, later only those beyond
        the edge at which the best lies, and at the last rung for the leaders and the baselines alone.
        """
        rung = self.rungs[-1]
        if len(self.rungs) == 1:
            return neighbours(rung.scores, self.rates, rung.undecided)
        beginners = self._beginners()
        if rung.fraction < RUNGS[-1]:
            new = {c: s for c, s in rung.scores.items() if c.strategy in beginners}
            added = neighbours(new, self.rates, rung.undecided)
            if added:
                return added
        strategies = _strategies_of(ranking(self.standing(len(self.rungs) - 1)))
        followed: Collection[int] = strategies
        if rung.fraction == RUNGS[-1]:
            followed = {*strategies[:LEADERS], *self.baselines}
        return outward([r.runs for r in self.rungs], self.rates, followed, rung.undecided)


def opening(rates: Rates) -> list[Candidate]:
    """The candidates of the first rung: every other learning rate of a strategy, or all of up to four.

    A score has one valley in the learning rate, so the rates left out are tried where the valley is.

    >>> [c.learning_rate for c in opening({0: (0.1, 0.2, 0.4, 0.8, 1.6)})]
    [0.1, 0.4, 1.6]
    """
    found = []
    for strategy, all_rates in rates.items():
        ordered = sorted(all_rates)
        first = (len(ordered) - 1) % 2
        chosen = ordered if len(ordered) <= 4 else ordered[first::2]
        found += [Candidate(strategy, rate) for rate in chosen]
    return found


def learnt(scores: Scores, idle: float) -> set[int]:
    """The strategies of which some learning rate is better than the ``idle`` score of an untrained model.

    Of the others nothing can be said yet: no update was made, or only fast clients were heard, towards
    whose data every step makes the loss over all clients worse, so that the smallest rate seems best.

    >>> learnt({Candidate(0, 0.1): 2.2, Candidate(0, 0.2): 3.0, Candidate(1, 0.4): 2.4}, idle=2.3)
    {0}
    """
    limit = LEARNT * idle if idle > 0.0 else idle
    return {candidate.strategy for candidate, score in scores.items() if score < limit}


def neighbours(scores: Scores, rates: Rates, undecided: Collection[int] = ()) -> list[Candidate]:
    """The learning rates on either side of the best of each strategy that have no score yet.

    Within ``rates`` the next one there; beyond their edge, twice or half the last one. Where all diverged,
    the next smaller one. Nothing for ``undecided`` strategies, whose order means nothing.

    >>> neighbours({Candidate(0, 0.1): 2.0, Candidate(0, 0.4): 1.0}, {0: (0.1, 0.2, 0.4)})
    [Candidate(strategy=0, learning_rate=0.2), Candidate(strategy=0, learning_rate=0.8)]
    """
    found = []
    for strategy, own in _by_strategy(scores).items():
        if strategy in undecided and any(math.isfinite(score) for score in own.values()):
            continue
        ranked = ranking(own)
        centre = ranked[0] if ranked else min(own)
        for up in (False, True) if ranked else (False,):
            other = Candidate(strategy, next_rate(rates[strategy], centre.learning_rate, up=up))
            if other not in own:
                found.append(other)
    return found


def outward(
    rungs: Sequence[Runs], rates: Rates, strategies: Collection[int], undecided: Collection[int]
) -> list[Candidate]:
    """The next learning rate beyond each best one that is the smallest or largest at the last rung.

    The longer a run, the smaller its best step, and a rule that starts late shows its valley late: a rate
    may have been dropped too soon. Rates that diverged are left out.
    """
    now = leaning(rungs, rates)
    diverged = {c for runs in rungs for c, scores in runs.items() if math.isinf(on_average(scores))}
    found = []
    for strategy, own in _by_strategy(now).items():
        ranked = ranking(own)
        if strategy not in strategies or strategy in undecided or not ranked:
            continue
        best = ranked[0]
        for up, edge in ((False, min(own)), (True, max(own))):
            other = Candidate(strategy, next_rate(rates[strategy], best.learning_rate, up=up))
            if best == edge and other not in now and other not in diverged:
                found.append(other)
    return found


def leaning(rungs: Sequence[Runs], rates: Rates) -> dict[Candidate, float]:
    r"""The scores of the last rung, smoothed with those of the neighbouring learning rates.

    .. math:: s(\eta) \prod_{\pm} (s(\eta_\pm)/s(\eta))^w

    A loss has one valley in the learning rate, and seeds that favour a single rate are luck, most of all
    close to the largest stable step. Ratios are those at the last rung that both rates ran to, on the
    pilot seeds of both; a rate that diverged counts as ``MOST_LEANT`` times worse. The mean over k seeds has a
    k-th of the variance of one, so neighbours count a k-th: ``LEAN``/k.

    >>> runs = {Candidate(0, 0.1): (1.0,), Candidate(0, 0.2): (0.99,), Candidate(0, 0.4): (math.inf,)}
    >>> [round(s, 3) for s in leaning([runs], {0: (0.1, 0.2, 0.4)}).values()]
    [0.998, 1.139, inf]
    """
    smoothed = {}
    for candidate, scores in rungs[-1].items():
        weight = 1.0
        for up in (False, True):
            rate = next_rate(rates[candidate.strategy], candidate.learning_rate, up=up)
            other = Candidate(candidate.strategy, rate)
            both = next(
                (runs for runs in reversed(rungs) if candidate in runs and other in runs), None
            )
            if both is not None:
                seeds = min(len(both[other]), len(both[candidate]))
                ratio = _ratio(on_average(both[other][:seeds]), on_average(both[candidate][:seeds]))
                limited = min(max(ratio, 1.0 / MOST_LEANT), MOST_LEANT)
                weight *= limited ** (LEAN / len(scores))
        score = on_average(scores)
        smoothed[candidate] = score * weight if score > 0.0 else score
    return smoothed


def survivors(
    scores: Scores,
    rung: int,
    before: Scores | None = None,
    *,
    baselines: Collection[int] = (),
    undecided: Collection[int] = (),
    beginners: Collection[int] = (),
) -> list[Candidate]:
    """The candidates that go on after ``rung`` (from 0), best first.

    1. Of the strategies ``STRATEGIES_KEPT``, ranked alternately by their current score and, if scores of
       the rung ``before`` are given, by their extrapolated one. All ``baselines``, and all ``beginners``,
       which have only now learnt something, go on besides.
    2. Of each of them ``RATES_KEPT`` learning rates: the best, the next smaller (which starts more slowly
       and ends with less noise), then by score.
    3. Until half of the horizon, all learning rates of ``undecided`` strategies (see `learnt`).

    >>> scores = {Candidate(s, r): s + 1 - r for s in range(2) for r in (0.1, 0.2, 0.4)}
    >>> [(c.strategy, c.learning_rate) for c in survivors(scores, 2)]
    [(0, 0.4), (0, 0.2), (1, 0.4), (1, 0.2)]
    """
    final = rung == len(RATES_KEPT) - 1
    order = ranking(scores)
    own = {s: [c for c in order if c.strategy == s] for s in _strategies_of(order)}
    future = {strategy: scores[best[0]] for strategy, best in own.items()}
    if before is not None:
        earlier = _best_of_each(before)
        for strategy, score in future.items():
            future[strategy] = extrapolated(score, earlier.get(strategy, math.inf), RUNGS[rung])
    ahead = sorted(own, key=lambda strategy: future[strategy])
    number = max(FINALISTS, math.ceil(STRATEGIES_KEPT[rung] * len(_by_strategy(scores))))
    leaders = _alternating(list(own), ahead)[:number]
    kept: set[Candidate] = set()
    for strategy, rates in own.items():
        if strategy in undecided and (not final or strategy in baselines):
            kept.update(rates)
        elif strategy in leaders or strategy in baselines or strategy in beginners:
            smaller = [c for c in rates if c.learning_rate < rates[0].learning_rate]
            preferred = dict.fromkeys([rates[0], *sorted(smaller, reverse=True)[:1], *rates])
            kept.update(list(preferred)[: RATES_KEPT[rung]])
    return [candidate for candidate in order if candidate in kept]


def extrapolated(score: float, before: float, fraction: float = 0.5) -> float:
    r"""The score at the end of the horizon if it falls as a power of time from ``before`` at half the time.

    .. math:: s(1) = s(t) (s(t)/s(t/2))^{-\log_2 t}

    >>> extrapolated(0.5, 1.0), extrapolated(0.5, 1.0, fraction=0.25)
    (0.25, 0.125)
    """
    if score <= 0.0:
        return score
    return score * math.pow(min(1.0, _ratio(score, before)), -math.log2(fraction))


def ranking(scores: Scores) -> list[Candidate]:
    """The candidates that did not diverge, best first; of equal ones the middle learning rate first."""
    middle = {
        strategy: statistics.median(math.log(c.learning_rate) for c in own)
        for strategy, own in _by_strategy(scores).items()
    }

    def order(candidate: Candidate) -> tuple[float, float, Candidate]:
        off = abs(math.log(candidate.learning_rate) - middle[candidate.strategy])
        return scores[candidate], round(off, 6), candidate

    return sorted((c for c, score in scores.items() if math.isfinite(score)), key=order)


def steadiest(scores: Scores) -> Candidate | None:
    """The smallest learning rate of a strategy whose score is the best up to a tie.

    Close to the largest stable step seeds differ most and one step further everything is lost.

    >>> steadiest({Candidate(0, 0.1): 1.01, Candidate(0, 0.2): 1.0, Candidate(0, 0.05): 1.3})
    Candidate(strategy=0, learning_rate=0.1)
    """
    ranked = ranking(scores)
    equal = [c for c in ranked if scores[c] <= scores[ranked[0]] + TIE * abs(scores[ranked[0]])]
    return min(equal, key=lambda c: c.learning_rate, default=None)


def on_average(scores: Sequence[float]) -> float:
    """The mean over pilot seeds; infinite if one diverged.

    >>> on_average([0.5, 1.0]), on_average([1.0, math.inf])
    (0.75, inf)
    """
    return statistics.fmean(scores)


def plausible(runs: Runs, ranked: Sequence[Candidate]) -> list[Candidate]:
    """Those of ``ranked`` that could still be better than its first, by paired differences over pilot seeds.

    A difference is relative to the leader's mean. Its standard error is the same for all, as two or three seeds of
    one pair say little: differences to the leader vary alike.

    >>> runs = {Candidate(0, 0.1): (1.0, 1.2), Candidate(1, 0.1): (1.1, 1.1), Candidate(2, 0.1): (3.0, 3.2)}
    >>> [c.strategy for c in plausible(runs, list(runs))]
    [0, 1]
    """
    if not ranked or len(runs[ranked[0]]) < 2:
        return list(ranked)
    leader, *others = ranked
    scale = abs(on_average(runs[leader])) or 1.0
    gaps = {
        other: [(a - b) / scale for a, b in zip(runs[other], runs[leader], strict=True)]
        for other in others
    }
    seeds = len(runs[leader])
    variances = [statistics.variance(own) for own in gaps.values()]
    error = math.sqrt(statistics.median(variances) / seeds) if variances else 0.0
    near = [other for other in others if statistics.fmean(gaps[other]) <= LIKELY * error]
    return [leader, *near]


def expected_runs(rates: Rates, baselines: Collection[int] = ()) -> tuple[float, ...]:
    """About how many candidates run to each rung, on the first pilot seed.

    Two more of each strategy than open are taken to be tried beside the best, and one beyond an edge for
    every fourth strategy at later rungs.

    >>> [round(number) for number in expected_runs(dict.fromkeys(range(12), range(8)))]
    [72, 39, 20, 9]
    """
    strategies = len(rates)
    opened = len(opening({i: sorted(own) for i, own in rates.items()}))
    beside = 0 if opened == sum(map(len, rates.values())) else 2 * strategies
    found = [float(opened + beside)]
    left = strategies
    for share, each in zip(STRATEGIES_KEPT, RATES_KEPT, strict=True):
        left = min(left, max(FINALISTS, math.ceil(share * left)))
        others = len(baselines) * (1.0 - left / strategies)
        found.append(min(found[-1], (left + others) * (each + 0.25)))
    return tuple(found)


def expected_cost(rates: Rates, baselines: Collection[int] = (), again: float = AGAIN) -> float:
    """About how many whole runs successive halving costs, repetitions included.

    >>> round(expected_cost(dict.fromkeys(range(16), range(8))) / 128, 2)
    0.31
    """
    steps = (after - before for before, after in zip((0.0, *RUNGS), RUNGS, strict=False))
    runs = expected_runs(rates, baselines)
    once = sum(alive * step for alive, step in zip(runs, steps, strict=True))
    return (1.0 + again) * once


def _ratio(score: float, other: float) -> float:
    """How many times worse a score is than another; 1 where a ratio says nothing."""
    return score / other if 0.0 < other < math.inf and score > 0.0 else 1.0


def _by_strategy(scores: Scores) -> dict[int, dict[Candidate, float]]:
    found: dict[int, dict[Candidate, float]] = {}
    for candidate, score in scores.items():
        found.setdefault(candidate.strategy, {})[candidate] = score
    return found


def _best_of_each(scores: Scores) -> dict[int, float]:
    """The best score of every strategy."""
    return {strategy: min(own.values()) for strategy, own in _by_strategy(scores).items()}


def _strategies_of(ranked: Iterable[Candidate]) -> list[int]:
    """The strategies in the order of their best candidates."""
    return list(dict.fromkeys(candidate.strategy for candidate in ranked))


def _alternating(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """The entries of two orders of the same things, taken from either in turn."""
    return list(dict.fromkeys(item for pair in zip(first, second, strict=True) for item in pair))

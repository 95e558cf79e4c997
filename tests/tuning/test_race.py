"""Who goes on: rankings, quotas, edges and costs, without any training."""

import math

import numpy as np
import pytest

from sojourn.comparison import Looks, told_apart
from sojourn.history import History
from sojourn.tuning.criteria import Criterion, crossing
from sojourn.tuning.heats import Race, Rung
from sojourn.tuning.learning_rates import extended
from sojourn.tuning.race import (
    LEAN,
    RUNGS,
    Candidate,
    at_edge,
    below,
    beside,
    expected_cost,
    leaning,
    opening,
    ranking,
    survivors,
    telling,
)


def history(loss, accuracy, *, end=8.0, diverged=None):
    time = np.linspace(0.0, end, len(loss))
    whole = np.arange(len(loss))
    return History(
        strategy="s",
        seed=0,
        learning_rate=0.1,
        clock="virtual",
        round=whole,
        time=time,
        test_loss=loss,
        test_accuracy=accuracy,
        train_loss=loss,
        staleness=loss,
        gradients=whole,
        updates=whole,
        diverged_at=diverged,
    )


def test_what_diverged_leaves_and_every_strategy_keeps_its_best_rates():
    scores = {Candidate(s, r): s + r for s in range(4) for r in (0.1, 0.2, 0.4, 0.8)}
    scores[Candidate(0, 0.1)] = math.inf
    left = survivors(scores, 0, entered=16)
    assert Candidate(0, 0.1) not in left
    assert left == sorted(left, key=lambda c: scores[c])
    for strategy in range(4):
        assert sum(c.strategy == strategy for c in left) >= 2
    assert len([c for c in left if c.strategy == 3]) == 2


def test_a_slow_starter_is_still_there_at_a_quarter():
    """The last of all strategies at 1/8 goes on to 1/4 with two learning rates."""
    scores = {Candidate(s, 0.1 * (r + 1)): float(s) for s in range(20) for r in range(8)}
    left = survivors(scores, 0, entered=160)
    assert sum(c.strategy == 19 for c in left) == 2
    assert RUNGS[1] == 0.25


def test_the_next_smaller_rate_goes_on_beside_the_best():
    """It starts more slowly and ends with less noise; the larger one is ahead only for now."""
    early = {0.1: 3.0, 0.2: 2.0, 0.4: 1.0, 0.8: 1.5}
    scores = {Candidate(s, r): s + score for s in range(9) for r, score in early.items()}
    left = survivors(scores, 0, entered=36)
    assert [c.learning_rate for c in left if c.strategy == 8] == [0.4, 0.2]


def test_baselines_keep_more_rates_so_that_they_are_tuned_as_well():
    scores = {Candidate(s, 0.1 * (r + 1)): s + r for s in range(9) for r in range(8)}
    left = survivors(scores, 0, entered=72, baselines=(8,))
    assert [c.learning_rate for c in left if c.strategy == 8] == [0.1 * (r + 1) for r in range(3)]
    assert sum(c.strategy == 7 for c in left) == 2


def test_of_rates_that_tie_the_smallest_is_picked():
    runs = {Candidate(0, 0.1): (1.008,), Candidate(0, 0.2): (1.0,), Candidate(1, 0.1): (1.005,)}
    race = Race([Rung(1.0, runs)], {0: (0.1, 0.2), 1: (0.1,)})
    assert race.podium() == [Candidate(1, 0.1), Candidate(0, 0.1)]
    runs[Candidate(0, 0.1)] = (1.02,)
    assert race.podium()[0] == Candidate(0, 0.2)


def test_of_runs_in_which_nothing_happened_the_middle_rate_is_kept():
    scores = {Candidate(0, r): 2.3 for r in (0.01, 0.1, 1.0)}
    assert ranking(scores)[0] == Candidate(0, 0.1)
    assert at_edge(scores, {0: (0.01, 0.1, 1.0)}) == {}


def test_leading_strategies_go_to_the_final_with_the_next_smaller_rate():
    scores = {Candidate(s, r): s + r for s in range(5) for r in (0.1, 0.2, 0.4)}
    for strategy in range(5):
        scores[Candidate(strategy, 0.1)] += 0.5
    left = survivors(scores, 2, entered=64)
    late = [Candidate(2, 0.2), Candidate(3, 0.2)]
    assert left == [*(Candidate(s, r) for s in range(2) for r in (0.2, 0.1)), *late]


def test_a_strategy_is_judged_by_its_best_rate_not_by_its_worst():
    scores = {Candidate(s, 0.1): 1.0 + s for s in range(5)}
    scores[Candidate(0, 0.2)] = 9.0
    left = survivors(scores, 2, entered=32)
    assert {c.strategy for c in left} == {0, 1, 2, 3}


def test_finalists_that_end_best_at_their_smallest_rate_get_the_next_smaller():
    rates = dict.fromkeys(range(4), (0.1, 0.2, 0.4))
    scores = {Candidate(s, r): s + r for s in range(4) for r in (0.2, 0.4)}
    assert below(scores, rates) == [Candidate(0, 0.1), Candidate(1, 0.1)]
    scores[Candidate(0, 0.4)] = -1.0
    scores[Candidate(1, 0.1)] = 0.5
    assert below(scores, rates) == []


def test_those_judged_on_all_pilot_seeds_rank_first():
    runs = {Candidate(s, 0.1): (1.0 + s,) * (2 if s in (1, 2) else 1) for s in range(4)}
    race = Race([Rung(1.0, runs)], dict.fromkeys(range(4), (0.1,)))
    assert [c.strategy for c in race.podium()] == [1, 2, 0, 3]


def test_before_anything_is_learnt_theory_decides_between_rates():
    """The loss over all clients grows while only the fast ones are heard: standing still wins."""
    early = {0.1: 2.4, 0.2: 2.5, 0.4: 2.6, 0.8: 2.7}
    scores = {Candidate(s, r): score for s in range(9) for r, score in early.items()}
    scores[Candidate(0, 0.8)] = 1.0
    told = telling(scores, idle=2.3)
    left = survivors(told, 0, entered=36)
    assert [c.learning_rate for c in left if c.strategy == 8] == [0.2, 0.1]
    assert at_edge(told, {s: tuple(early) for s in range(9)}) == {0: "above"}


def test_what_has_learnt_something_is_ranked_as_it_stands():
    """A leader at seven tenths of the first loss is not put back among those that stand still."""
    scores = {Candidate(s, r): 2.2 for s in range(9) for r in (0.1, 0.2, 0.4)}
    scores[Candidate(3, 0.4)] = 1.65
    left = survivors(telling(scores, idle=2.3), 0, entered=27)
    assert left[0] == Candidate(3, 0.4)


def test_a_lucky_rate_at_the_edge_of_stability_does_not_pass_one_in_a_valley():
    rates = {0: (0.1, 0.2, 0.4), 1: (0.1, 0.2, 0.4)}
    before = {Candidate(s, r): (1.0,) for s in range(2) for r in (0.1, 0.2)}
    before |= {Candidate(0, 0.4): (math.inf,), Candidate(1, 0.4): (1.0,)}
    last = {Candidate(0, 0.2): (0.95,), Candidate(1, 0.2): (1.0,)}
    race = Race([Rung(0.5, before), Rung(1.0, last)], rates)
    assert race.podium()[0] == Candidate(1, 0.2)
    assert race.rungs[-1].scores[Candidate(0, 0.2)] == 0.95, "what is shown is what was seen"


def test_scores_lean_on_the_seeds_that_both_rates_ran_on():
    rates = {0: (0.1, 0.2)}
    runs = {Candidate(0, 0.1): (1.0, 5.0), Candidate(0, 0.2): (1.1,)}
    leant = leaning([runs], rates)
    assert leant[Candidate(0, 0.1)] == pytest.approx(3.0 * 1.1**LEAN)
    assert leant[Candidate(0, 0.2)] == pytest.approx(1.1 * (1 / 1.1) ** LEAN)


def test_half_of_the_places_go_to_those_that_are_heading_for_the_best():
    """A small step is behind at half-time and falls faster: extrapolated, it is ahead."""
    before = {Candidate(k, 0.1): 1.0 for k in range(8)}
    scores = {c: 0.5 + 0.01 * i for i, c in enumerate(before)}
    late = Candidate(8, 0.01)
    before[late], scores[late] = 2.0, 0.7
    assert late not in survivors(scores, 2, entered=64)
    assert late in survivors(scores, 2, entered=64, before=before)


def test_rates_are_extended_beyond_the_edge_where_the_best_lies():
    scores = {Candidate(0, 0.1): 1.0, Candidate(0, 0.2): 2.0, Candidate(1, 0.1): math.inf}
    assert at_edge(scores, {0: (0.1, 0.2), 1: (0.1,)}) == {0: "below", 1: "below"}
    assert extended((0.1, 0.2), "below") == (0.05, 0.1, 0.2)


def test_every_other_rate_opens_and_those_beside_the_best_follow():
    """The valley is found where it lies: at both ends, in the middle, and below what diverged."""
    rates = {0: tuple(0.1 * 2**k for k in range(8))}
    for best in range(8):
        scores = {}
        added = opening(rates)
        while added:
            scores |= {c: abs(math.log2(c.learning_rate / rates[0][best])) for c in added}
            added = beside(scores, rates)
        assert ranking(scores)[0].learning_rate == rates[0][best]
        assert len(scores) <= 6
    diverged = dict.fromkeys(opening(rates), math.inf)
    assert beside(diverged, rates) == [Candidate(0, 0.1)]
    few = {0: (0.1, 0.2, 0.4)}
    assert [c.learning_rate for c in opening(few)] == [0.1, 0.2, 0.4]


@pytest.mark.parametrize("strategies", [13, 16])
def test_a_race_is_planned_for_less_than_a_third_of_the_grid(strategies):
    entered = 8 * strategies
    assert expected_cost(entered, strategies) <= 0.33 * entered


def test_a_final_loss_is_averaged_over_the_end_in_logarithms():
    run = history([4.0, 2.0, 1.0, 1.0, 0.1], [0, 0.2, 0.4, 0.6, 0.8])
    assert Criterion("final").score(run, 8.0, 0.3) == pytest.approx(math.sqrt(1.0 * 0.1))
    assert Criterion("final").score(run, 4.0, 0.3) == pytest.approx(1.0)
    assert Criterion("final").score(history([1, 2], [0, 0], diverged=3), 8.0, 0.1) == math.inf


def test_time_to_a_target_lies_between_rows_and_what_lacks_it_ranks_behind():
    run = history([1, 1, 1, 1, 1], [0, 0.2, 0.4, 0.6, 0.8])
    assert crossing(run, 0.5) == pytest.approx(5.0)
    criterion = Criterion("target", 0.5)
    assert criterion.score(run, 8.0, 0.1) == pytest.approx(5.0)
    near = criterion.score(history([1, 1], [0.0, 0.45]), 8.0, 0.1)
    far = criterion.score(history([1, 1], [0.0, 0.1]), 8.0, 0.1)
    assert 8.0 < near < far


@pytest.mark.parametrize("looks", [4, Looks((3, 4, 5, 6))])
def test_equal_candidates_are_told_apart_in_at_most_five_percent_of_trials(looks):
    random = np.random.default_rng(5)
    wrong, trials = 0, 1000
    for _ in range(trials):
        a, b = random.normal(0, 1, (2, 6))
        common = random.normal(0, 3, 6)
        wrong += any(
            told_apart(a[:n] + common[:n], b[:n] + common[:n], looks) is not None
            for n in range(3, 7)
        )
    assert wrong <= 0.05 * trials


def test_planned_looks_tell_what_as_many_tests_at_a_share_do_not():
    better, worse = [1.0] * 5, [1.12, 1.6, 1.24, 1.504, 1.336]
    assert told_apart(better, worse, 4) is None
    assert told_apart(better, worse, Looks((3, 4, 5, 6))) == pytest.approx(-0.36)


def test_a_run_that_never_gets_there_counts_against_it():
    assert told_apart([1.0, 2.0, 1.0], [math.inf, math.inf, 3.0]) == -math.inf
    assert told_apart([math.inf, 2.0], [1.0, math.inf]) is None

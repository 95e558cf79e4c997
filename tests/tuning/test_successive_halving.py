"""Which candidates go on: rankings, quotas, edges and costs, without any training."""

import math

import numpy as np
import pytest

from sojourn.fleet import Fleet
from sojourn.runs.history import History
from sojourn.runs.measure import ACCURACY, LOSS, Measure
from sojourn.tuning.criteria import Criterion
from sojourn.tuning.pilots import LAST_POINTS, evaluated_parts
from sojourn.tuning.portfolio import beside, portfolio
from sojourn.tuning.successive_halving import (
    AGAIN,
    LEAN,
    RUNGS,
    Candidate,
    Halving,
    Rung,
    expected_cost,
    leaning,
    learnt,
    neighbours,
    opening,
    outward,
    ranking,
    survivors,
)


def history(loss, accuracy, *, end=8.0, diverged=None, **changes):
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
        **changes,
    )


def test_what_diverged_leaves_and_every_strategy_keeps_its_best_rates():
    scores = {Candidate(s, r): 1 + s + r for s in range(4) for r in (0.1, 0.2, 0.4, 0.8)}
    scores[Candidate(0, 0.1)] = math.inf
    left = survivors(scores, 0)
    assert Candidate(0, 0.1) not in left
    assert left == sorted(left, key=lambda c: scores[c])
    for strategy in range(4):
        assert sum(c.strategy == strategy for c in left) == 3


def test_a_slow_starter_is_still_there_at_a_quarter():
    """The last of all strategies at 1/8 goes on to 1/4 with three learning rates."""
    scores = {Candidate(s, 0.1 * (r + 1)): 1.0 + s for s in range(20) for r in range(8)}
    left = survivors(scores, 0)
    assert sum(c.strategy == 19 for c in left) == 3
    assert RUNGS[1] == 0.25


def test_the_next_smaller_rate_goes_on_beside_the_best():
    """It starts more slowly and ends with less noise; the larger one is ahead only for now."""
    early = {0.1: 3.0, 0.2: 2.0, 0.4: 1.0, 0.8: 1.5}
    scores = {Candidate(s, r): s + score for s in range(4) for r, score in early.items()}
    assert {c.learning_rate for c in survivors(scores, 1) if c.strategy == 3} == {0.2, 0.4, 0.8}
    assert [c.learning_rate for c in survivors(scores, 2) if c.strategy == 3] == [0.4, 0.2]


def test_baselines_run_to_the_end_as_the_leaders_do():
    scores = {Candidate(s, 0.1 * (r + 1)): 1.0 + s + r for s in range(9) for r in range(8)}
    left = survivors(scores, 2, baselines=(8,))
    assert sum(c.strategy == 8 for c in left) == sum(c.strategy == 0 for c in left) == 2
    assert {c.strategy for c in left} == {0, 1, 2, 3, 8}


def test_of_rates_that_tie_the_smallest_is_picked():
    runs = {Candidate(0, 0.1): (1.008,), Candidate(0, 0.2): (1.0,), Candidate(1, 0.1): (1.005,)}
    halving = Halving([Rung(1.0, runs)], {0: (0.1, 0.2), 1: (0.1,)})
    assert halving.podium() == [Candidate(1, 0.1), Candidate(0, 0.1)]
    runs[Candidate(0, 0.1)] = (1.02,)
    assert halving.podium()[0] == Candidate(0, 0.2)


def test_while_no_update_was_made_all_rates_go_on_and_no_edge_is_followed():
    rung = Rung(0.125, {Candidate(0, r): (2.3,) for r in (0.01, 0.1, 1.0)}, idle=2.3)
    rung.without_update.add(0)
    assert rung.undecided == {0}
    assert neighbours(rung.scores, {0: (0.01, 0.1, 1.0)}, rung.undecided) == []
    assert len(survivors(rung.scores, 0, undecided=rung.undecided)) == 3


def test_before_anything_is_learnt_nothing_is_decided_about_a_strategy():
    """The loss over all clients grows while only the fast ones are heard: standing still seems best."""
    early = {0.1: 2.4, 0.2: 2.5, 0.4: 2.6, 0.8: 2.7}
    scores = {Candidate(s, r): score for s in range(9) for r, score in early.items()}
    scores[Candidate(0, 0.8)] = 1.0
    assert learnt(scores, idle=2.3) == {0}
    left = survivors(scores, 1, undecided=set(range(1, 9)))
    assert [c.learning_rate for c in left if c.strategy == 8] == [0.1, 0.2, 0.4, 0.8]
    assert left[0] == Candidate(0, 0.8)


def test_small_gains_order_the_rates_of_a_strategy():
    """2.255 against 2.36 at the start is enough to see which learning rates are better."""
    scores = {Candidate(0, r): s for r, s in ((0.046, 2.34), (0.18, 2.30), (0.73, 2.255))}
    assert learnt(scores, idle=2.36) == {0}
    assert survivors(scores, 1)[0] == Candidate(0, 0.73)
    assert Candidate(0, 1.5) in neighbours(scores, {0: (0.046, 0.18, 0.73)})


def test_leading_strategies_go_to_the_final_with_the_next_smaller_rate():
    scores = {Candidate(s, r): 1 + s + r for s in range(5) for r in (0.1, 0.2, 0.4)}
    for strategy in range(5):
        scores[Candidate(strategy, 0.1)] += 0.5
    left = survivors(scores, 2)
    assert left == [Candidate(s, r) for s in range(4) for r in (0.2, 0.1)]


def test_a_strategy_is_judged_by_its_best_rate_not_by_its_worst():
    scores = {Candidate(s, 0.1): 1.0 + s for s in range(5)}
    scores[Candidate(0, 0.2)] = 9.0
    assert {c.strategy for c in survivors(scores, 2)} == {0, 1, 2, 3}


def test_a_best_rate_at_the_edge_of_those_that_ran_is_followed_outwards():
    rates = {0: (0.1, 0.2, 0.4), 1: (0.1, 0.2, 0.4)}
    early = {Candidate(s, r): (2.0,) for s in range(2) for r in rates[0]}
    early[Candidate(1, 0.4)] = (math.inf,)
    late = {Candidate(0, 0.2): (1.0,), Candidate(0, 0.4): (1.1,), Candidate(1, 0.2): (1.0,)}
    found = outward([early, late], rates, {0, 1}, ())
    assert found == [Candidate(0, 0.1), Candidate(1, 0.1)], (
        "a rate that diverged is not tried again"
    )
    assert outward([early, late], rates, {1}, ()) == [Candidate(1, 0.1)]
    assert outward([early, late], rates, {0, 1}, {0, 1}) == []


def test_those_judged_on_all_pilot_seeds_rank_first():
    runs = {Candidate(s, 0.1): (1.0 + s,) * (2 if s in (1, 2) else 1) for s in range(4)}
    halving = Halving([Rung(1.0, runs)], dict.fromkeys(range(4), (0.1,)))
    assert [c.strategy for c in halving.podium()] == [1, 2, 0, 3]


def test_a_lucky_rate_at_the_edge_of_stability_does_not_pass_one_in_a_valley():
    rates = {0: (0.1, 0.2, 0.4), 1: (0.1, 0.2, 0.4)}
    before = {Candidate(s, r): (1.0,) for s in range(2) for r in (0.1, 0.2)}
    before |= {Candidate(0, 0.4): (math.inf,), Candidate(1, 0.4): (1.0,)}
    last = {Candidate(0, 0.2): (0.95,), Candidate(1, 0.2): (1.0,)}
    halving = Halving([Rung(0.5, before), Rung(1.0, last)], rates)
    assert halving.podium()[0] == Candidate(1, 0.2)
    assert halving.rungs[-1].scores[Candidate(0, 0.2)] == 0.95, "what is shown is what was seen"


def test_scores_lean_on_the_seeds_that_both_rates_ran_on():
    rates = {0: (0.1, 0.2)}
    runs = {Candidate(0, 0.1): (1.0, 5.0), Candidate(0, 0.2): (1.1,)}
    leant = leaning([runs], rates)
    assert leant[Candidate(0, 0.1)] == pytest.approx(3.0 * 1.1 ** (LEAN / 2))  # two seeds
    assert leant[Candidate(0, 0.2)] == pytest.approx(1.1 * (1 / 1.1) ** LEAN)


def test_every_second_place_goes_to_the_best_extrapolated_score():
    """A small step is behind at half of the horizon and falls faster: extrapolated, it is ahead."""
    before = {Candidate(k, 0.1): 1.0 for k in range(8)}
    scores = {c: 0.5 + 0.01 * i for i, c in enumerate(before)}
    late = Candidate(8, 0.01)
    before[late], scores[late] = 2.0, 0.7
    assert late not in survivors(scores, 2)
    assert late in survivors(scores, 2, before=before)


def test_every_other_rate_opens_and_those_beside_the_best_follow():
    """The valley is found where it lies: at both ends, beyond them, and below what diverged."""
    rates = {0: tuple(0.1 * 2**k for k in range(8))}
    for best in range(-3, 11):
        scores = {}
        added = opening(rates)
        while added:
            scores |= {c: 1 + abs(math.log2(c.learning_rate / 0.1) - best) for c in added}
            rates = {0: tuple({*rates[0], *(c.learning_rate for c in added)})}
            added = neighbours(scores, rates)
        assert ranking(scores)[0].learning_rate == pytest.approx(0.1 * 2**best, rel=0.1)
        assert len(scores) <= 10
    diverged = dict.fromkeys(opening(rates), math.inf)
    assert len(neighbours(diverged, rates)) == 1
    few = {0: (0.1, 0.2, 0.4)}
    assert [c.learning_rate for c in opening(few)] == [0.1, 0.2, 0.4]


@pytest.mark.parametrize("strategies", [13, 16, 40])
def test_successive_halving_is_planned_for_less_than_a_third_of_the_grid(strategies):
    rates = dict.fromkeys(range(strategies), range(8))
    assert expected_cost(rates) <= 0.35 * 8 * strategies


@pytest.mark.parametrize("links", [None, [2.0, 2.0, 2.0]], ids=["no links", "links"])
def test_the_portfolio_is_planned_for_less_than_a_third_of_the_factorial_grid(links):
    """Baselines, which run to the end and on a second seed, and what enters beside the leader included."""
    fleet = Fleet([0.5, 2.0, 8.0], [4] * 3, uplink=links)
    proposals = portfolio(fleet, np.zeros(10, dtype=np.float32))
    levels = {i: p.levels for i, p in enumerate(proposals)}
    begun = {i for i, p in enumerate(proposals) if p.opens} | {*beside(levels, 0)}
    baselines = [i for i, p in enumerate(proposals) if p.baseline]
    cost = expected_cost(dict.fromkeys(begun, range(8)), baselines)
    assert cost <= 0.35 * 8 * len(proposals)


def test_a_pilots_final_value_is_averaged_over_the_end_in_logarithms():
    run = history([4.0, 2.0, 1.0, 0.4, 0.1], [0, 0.2, 0.4, 0.6, 0.8], end=1.0)
    assert Criterion().score(run, 0.8) == pytest.approx(0.4)
    assert Criterion().score(history([4.0] + [1.0] * 9 + [0.1] * 2, [0.0] * 12), 8.0) < 1.0
    assert Criterion().score(history([1, 2], [0, 0], diverged=3), 8.0) == math.inf


def test_a_final_value_is_averaged_over_the_last_quarter_of_the_time_so_far():
    """Single evaluations are so noisy that of equal runs the luckiest would win."""
    run = history([9, 9, 9, 9, 9, 9, 1, 2, 4], [0.0] * 9)
    assert Criterion().score(run, 8.0) == pytest.approx(2.0)
    rng = np.random.default_rng(0)
    noise = np.exp(rng.normal(0.0, 0.2, (400, 41)))
    scores = [Criterion().score(history(own, own), 8.0) for own in noise]
    assert np.std(np.log(scores)) == pytest.approx(0.2 / math.sqrt(11), rel=0.15)
    assert evaluated_parts(Criterion())[-LAST_POINTS:].min() == pytest.approx(0.75)


def test_the_value_that_is_shown_is_that_of_the_history():
    run = history([4.0, 2.0, 1.0, 0.4, 0.1], [0, 0.2, 0.4, 0.6, 0.8])
    assert Criterion().value(run) == run.test_loss[-1]
    assert Criterion("area").value(run) == run.average("loss")
    assert Criterion("target", 0.5, ACCURACY).value(run) == run.time_to(0.5) == 6.0
    assert Criterion("target", 0.9, ACCURACY).value(run) == math.inf


def test_a_run_that_has_not_reached_its_target_ranks_behind_by_what_it_lacks():
    criterion = Criterion("target", 0.5, ACCURACY)
    near = criterion.score(history([1, 1], [0.0, 0.45]), 8.0)
    far = criterion.score(history([1, 1], [0.0, 0.1]), 8.0)
    idle = criterion.idle(history([1, 1], [0.0, 0.1]), 8.0)
    assert 8.0 < near < far < idle


def test_a_criterion_goes_by_the_problems_own_measure():
    r2 = Measure("r2")
    run = history([4.0, 2.0, 1.0], [math.nan] * 3, metrics={"r2": [-3.0, 0.5, 0.95]}, primary=r2)
    final, target = Criterion.of(r2), Criterion.of(r2, "target", 0.9)
    assert (final.describe(), target.describe()) == ("final r2", "time to r2 0.9")
    assert final.value(run) == 0.95
    assert final.score(run, 8.0) == pytest.approx(0.05)
    assert target.value(run) == run.time_to(0.9) == 8.0
    # Runs are ranked by when a line between the evaluations (.5 at 4, .95 at 8) crosses the target.
    assert target.score(run, 8.0) == pytest.approx(run.time[1] + (8.0 - run.time[1]) * 0.4 / 0.45)
    assert Criterion.of(ACCURACY).measure == LOSS
    assert Criterion.of(ACCURACY, "target", 0.9).measure == ACCURACY


def alike(noise: float, answers: int = 10**9):
    """Twelve strategies that differ by a per cent each, and a hundred at other rates; so many further seeds answer."""
    rng = np.random.default_rng(3)
    asked = []

    def truth(c):
        return 1.0 + 0.01 * c.strategy + abs(math.log2(c.learning_rate / 0.1))

    def run(fraction, candidates, repetition):
        asked.append((repetition, len(candidates)))
        if repetition and len([1 for seed, _ in asked if seed]) > answers:
            candidates = candidates[:1]
        scores = {c: (truth(c) * math.exp(rng.normal(0.0, noise)),) for c in candidates}
        return Rung(fraction, scores, gradients=1000 * len(candidates), idle=9.9)

    halving = Halving([], dict.fromkeys(range(12), (0.1,)), baselines=(11,))
    while len(halving.rungs) < len(RUNGS):
        halving.advance(run)
    return halving, asked


def test_the_leaders_run_on_further_seeds_for_a_share_of_what_was_spent():
    """More seeds for ever fewer, the pick among those with the most; the baseline on the second seed, too."""
    halving, asked = alike(noise=0.1)
    once = 1000 * sum(number for seed, number in asked if not seed)
    again = [number for seed, number in asked if seed]
    assert len(again) >= 4 and again == sorted(again, reverse=True)
    assert 1000 * (sum(again) - 1) <= 1.1 * AGAIN * once
    last = halving.rungs[-1].runs
    assert len(last[halving.podium()[0]]) == len(again) + 1
    assert any(len(scores) == 2 for c, scores in last.items() if c.strategy == 11)


def test_no_more_seeds_are_run_once_one_leads():
    halving, asked = alike(noise=1e-6)
    assert [seed for seed, _ in asked if seed] == [1]
    assert halving.podium()[0] == Candidate(0, 0.1)


def test_a_seed_that_only_some_ran_on_does_not_count():
    halving, _ = alike(noise=0.1, answers=1)
    last = halving.rungs[-1].runs
    assert {len(scores) for scores in last.values()} == {1, 2}

"""Paired tests, single and sequential: false-positive rate, power, runs that failed."""

import math

import numpy as np
import pytest

from reproduction.intervals import SequentialIntervals
from sojourn.errors import InvalidInput
from sojourn.runs.comparison import LEVEL, SPENT, SequentialTest, significant_difference

STANDARD, QUICK, ONCE = (
    SequentialIntervals((6, 12, 24, 48)),
    SequentialIntervals((4, 6)),
    SequentialIntervals((10,)),
)
LATER, SOONER = SequentialIntervals((6, 12, 24)), SequentialIntervals((4, 12, 24))
TRIALS = 2000


def significant(tests: SequentialIntervals, differences: np.ndarray) -> bool:
    return any(tests.of_difference(differences[:n]).side(of=0.0) for n in tests.pairs)


@pytest.mark.parametrize("tests", [STANDARD, QUICK, LATER, SOONER, ONCE])
def test_the_false_positive_rate_over_all_interim_analyses_is_what_the_level_spends(
    tests: SequentialIntervals,
) -> None:
    rng = np.random.default_rng(11)
    drawn = rng.normal(0.0, 3.0, (TRIALS, tests.pairs[-1]))
    share = np.mean([significant(tests, row) for row in drawn])
    spent = SPENT * LEVEL
    assert share == pytest.approx(spent, abs=4 * math.sqrt(spent * (1 - spent) / TRIALS))
    assert share <= LEVEL


@pytest.mark.parametrize("tests", [STANDARD, LATER, SOONER])
def test_one_deviation_is_significant_within_twelve_pairs_in_four_of_five_trials(
    tests: SequentialIntervals,
) -> None:
    rng = np.random.default_rng(12)
    drawn = rng.normal(1.0, 1.0, (TRIALS, 12))
    soon = [
        any(tests.of_difference(row[:n]).side(of=0.0) for n in tests.pairs if n <= 12)
        for row in drawn
    ]
    assert np.mean(soon) >= 0.8


def test_intervals_of_all_interim_analyses_hold_together() -> None:
    rng = np.random.default_rng(14)
    missed = 0
    for row in rng.normal(2.0, 1.0, (TRIALS, STANDARD.pairs[-1])):
        seen = [STANDARD.of_difference(row[:n]) for n in STANDARD.pairs]
        missed += any(interval.side(of=2.0) for interval in seen)
    assert missed / TRIALS <= LEVEL


def test_nothing_is_significant_between_planned_analyses() -> None:
    assert QUICK.of_difference([1.0, 1.0, 1.1]).side(of=0.0) == 0
    assert QUICK.of_difference([1.0, 1.0, 1.1, 1.0, 1.0]).side(of=0.0) == 0
    assert QUICK.of_difference([]).pairs == 0
    assert QUICK.of_difference([1.0, math.nan, 1.0, 1.0]).side(of=0.0) == 0


def test_pairs_that_all_agree_are_significant() -> None:
    assert QUICK.of_difference([0.5] * 4).side(of=0.0) == 1
    assert QUICK.of_difference([0.0] * 4).side(of=0.0) == 0


def test_the_pairs_that_would_be_needed_suffice() -> None:
    for gap in (0.5, 1.0, 2.0):
        pairs = int(STANDARD.needed(gap, 1.0))
        rng = np.random.default_rng(15)
        single = SequentialIntervals((pairs,))
        found = [single.of_difference(row).side(of=0.0) for row in rng.normal(gap, 1, (400, pairs))]
        assert np.mean(found) > 0.45
    assert math.isinf(STANDARD.needed(1e-6, 1.0))


@pytest.mark.parametrize("pairs", [(), (1, 4), (4, 4), (6, 4)])
def test_analyses_are_at_rising_numbers_of_pairs(pairs: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="rising numbers of pairs"):
        SequentialTest(pairs)


@pytest.mark.parametrize("tests", [4, SequentialTest((3, 4, 5, 6))])
def test_equal_strategies_differ_significantly_in_at_most_five_percent_of_trials(
    tests: int | SequentialTest,
) -> None:
    random = np.random.default_rng(5)
    wrong, trials = 0, 1000
    for _ in range(trials):
        a, b = random.normal(0, 1, (2, 6))
        common = random.normal(0, 3, 6)
        wrong += any(
            significant_difference(a[:n] + common[:n], b[:n] + common[:n], tests) is not None
            for n in range(3, 7)
        )
    assert wrong <= 0.05 * trials


def test_a_sequential_test_has_more_power_than_bonferroni() -> None:
    better, worse = [1.0] * 5, [1.12, 1.6, 1.24, 1.504, 1.336]
    assert significant_difference(better, worse, 4) is None
    assert significant_difference(better, worse, SequentialTest((3, 4, 5, 6))) == pytest.approx(
        -0.36
    )


def test_runs_that_failed_on_one_side_decide_if_there_are_two() -> None:
    assert significant_difference([1.0, 2.0, 1.0], [math.inf, math.inf, 3.0]) == -math.inf
    assert significant_difference([math.inf, 2.0], [1.0, math.inf]) is None


@pytest.mark.parametrize("seeds", [2, 4])
def test_one_divergence_decides_nothing(seeds: int) -> None:
    """A single failed run may be bad luck: neither side is called better because of it."""
    fine, once = [1.0] * seeds, [math.inf, *[1.0] * (seeds - 1)]
    assert significant_difference(fine, once) is None
    assert significant_difference(once, fine) is None
    assert significant_difference([1.0] * 3, [math.inf, math.inf, 1.0]) == -math.inf

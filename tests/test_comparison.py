"""Sequential looks at pairs: no more errors than were asked for, and differences that are told."""

import math

import numpy as np
import pytest

from sojourn.comparison import LEVEL, SPENT, Looks
from sojourn.errors import InvalidInput

STANDARD, QUICK, ONCE = Looks((6, 12, 24, 48)), Looks((4, 6)), Looks((10,))
LATER, SOONER = Looks((6, 12, 24)), Looks((4, 12, 24))
TRIALS = 2000


def told(looks: Looks, differences: np.ndarray) -> bool:
    return any(looks.of_difference(differences[:n]).side(of=0.0) for n in looks.pairs)


@pytest.mark.parametrize("looks", [STANDARD, QUICK, LATER, SOONER, ONCE])
def test_pairs_without_a_difference_are_told_as_often_as_the_level_spends_all_looks_included(
    looks: Looks,
) -> None:
    rng = np.random.default_rng(11)
    drawn = rng.normal(0.0, 3.0, (TRIALS, looks.pairs[-1]))
    share = np.mean([told(looks, row) for row in drawn])
    spent = SPENT * LEVEL
    assert share == pytest.approx(spent, abs=4 * math.sqrt(spent * (1 - spent) / TRIALS))
    assert share <= LEVEL


@pytest.mark.parametrize("looks", [STANDARD, LATER, SOONER])
def test_one_deviation_is_told_within_twelve_pairs_in_four_of_five_trials(looks: Looks) -> None:
    rng = np.random.default_rng(12)
    drawn = rng.normal(1.0, 1.0, (TRIALS, 12))
    soon = [
        any(looks.of_difference(row[:n]).side(of=0.0) for n in looks.pairs if n <= 12)
        for row in drawn
    ]
    assert np.mean(soon) >= 0.8


def test_intervals_of_all_looks_hold_together() -> None:
    rng = np.random.default_rng(14)
    missed = 0
    for row in rng.normal(2.0, 1.0, (TRIALS, STANDARD.pairs[-1])):
        seen = [STANDARD.of_difference(row[:n]) for n in STANDARD.pairs]
        missed += any(interval.side(of=2.0) for interval in seen)
    assert missed / TRIALS <= LEVEL


def test_between_looks_nothing_is_told() -> None:
    assert QUICK.of_difference([1.0, 1.0, 1.1]).side(of=0.0) == 0
    assert QUICK.of_difference([1.0, 1.0, 1.1, 1.0, 1.0]).side(of=0.0) == 0
    assert QUICK.of_difference([]).pairs == 0
    assert QUICK.of_difference([1.0, math.nan, 1.0, 1.0]).side(of=0.0) == 0


def test_pairs_that_all_agree_are_told() -> None:
    assert QUICK.of_difference([0.5] * 4).side(of=0.0) == 1
    assert QUICK.of_difference([0.0] * 4).side(of=0.0) == 0


def test_the_pairs_that_would_be_needed_suffice() -> None:
    for gap in (0.5, 1.0, 2.0):
        pairs = int(STANDARD.needed(gap, 1.0))
        rng = np.random.default_rng(15)
        single = Looks((pairs,))
        found = [single.of_difference(row).side(of=0.0) for row in rng.normal(gap, 1, (400, pairs))]
        assert np.mean(found) > 0.45
    assert math.isinf(STANDARD.needed(1e-6, 1.0))


@pytest.mark.parametrize("pairs", [(), (1, 4), (4, 4), (6, 4)])
def test_looks_rise(pairs: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="rising numbers of pairs"):
        Looks(pairs)

"""Sequential looks at pairs: no more errors than were asked for, and differences that are told."""

import math

import numpy as np
import pytest

from sojourn.comparison import LEVEL, Looks
from sojourn.errors import InvalidInput

STANDARD, QUICK, ONCE = Looks((4, 6, 8, 12)), Looks((4, 6)), Looks((10,))
LATER = Looks((5, 8))
TRIALS = 2000


def told(looks: Looks, differences: np.ndarray) -> bool:
    return any(looks.of_difference(differences[:n]).side(of=0.0) for n in looks.pairs)


@pytest.mark.parametrize("looks", [STANDARD, QUICK, LATER, ONCE])
def test_pairs_without_a_difference_are_told_in_five_percent_of_trials_all_looks_included(
    looks: Looks,
) -> None:
    rng = np.random.default_rng(11)
    drawn = rng.normal(0.0, 3.0, (TRIALS, looks.pairs[-1]))
    share = np.mean([told(looks, row) for row in drawn])
    assert share == pytest.approx(LEVEL, abs=4 * math.sqrt(LEVEL * (1 - LEVEL) / TRIALS))


def test_one_deviation_is_told_within_twelve_pairs_in_four_of_five_trials() -> None:
    rng = np.random.default_rng(12)
    drawn = rng.normal(1.0, 1.0, (TRIALS, 12))
    assert np.mean([told(STANDARD, row) for row in drawn]) >= 0.8


@pytest.mark.parametrize("looks", [STANDARD, QUICK, LATER, ONCE])
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_equal_deviations_are_told_in_at_most_five_percent_of_trials(
    looks: Looks, correlation: float
) -> None:
    rng = np.random.default_rng(13)
    common, a, b = rng.standard_normal((3, TRIALS, looks.pairs[-1]))
    own = math.sqrt(correlation) * common + math.sqrt(1 - correlation) * a
    rival = math.sqrt(correlation) * common + math.sqrt(1 - correlation) * b
    wrong = 0
    for x, y in zip(own, rival, strict=True):
        seen = (
            looks.of_deviations(x[:n].var(ddof=1), y[:n].var(ddof=1), n).side(of=1.0)
            for n in looks.pairs
        )
        wrong += any(seen)
    error = 4 * math.sqrt(LEVEL * (1 - LEVEL) / TRIALS)
    assert wrong / TRIALS <= LEVEL + error
    assert correlation or wrong / TRIALS >= LEVEL - error


def test_intervals_of_all_looks_hold_together() -> None:
    rng = np.random.default_rng(14)
    missed = 0
    for row in rng.normal(2.0, 1.0, (TRIALS, 12)):
        seen = [STANDARD.of_difference(row[:n]) for n in STANDARD.pairs]
        missed += any(interval.side(of=2.0) for interval in seen)
    assert missed / TRIALS <= LEVEL + 4 * math.sqrt(LEVEL / TRIALS)


def test_between_looks_nothing_is_told() -> None:
    assert QUICK.of_difference([1.0, 1.0, 1.1]).side(of=0.0) == 0
    assert QUICK.of_difference([1.0, 1.0, 1.1, 1.0, 1.0]).side(of=0.0) == 0
    assert QUICK.of_difference([]).pairs == 0
    assert QUICK.of_difference([1.0, math.nan, 1.0, 1.0]).side(of=0.0) == 0
    assert QUICK.of_deviations(math.inf, 1.0, 4).side(of=1.0) == 0


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
    assert STANDARD.needed_for_ratio(3.0) == STANDARD.needed_for_ratio(1 / 3.0) < 20
    assert math.isinf(STANDARD.needed_for_ratio(1.0))


@pytest.mark.parametrize("pairs", [(), (1, 4), (4, 4), (6, 4)])
def test_looks_rise(pairs: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="rising numbers of pairs"):
        Looks(pairs)

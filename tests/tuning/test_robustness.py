"""The pick and its rivals under other conditions: what the sentence says."""

import math

from sojourn.tuning.robustness import Condition, Robustness
from sojourn.tuning.successive_halving import Candidate

PICK, RIVAL = Candidate(0, 0.1), Candidate(1, 0.2)
NAMES = {PICK: "pick", RIVAL: "rival"}


def robustness(*others: tuple[str, float, float]) -> Robustness:
    rows = [("conditions are as assumed", 1.0, 1.2), *others]
    conditions = tuple(Condition(name, {PICK: (a, a), RIVAL: (b, b)}) for name, a, b in rows)
    return Robustness(conditions, NAMES)


def test_a_pick_that_is_ahead_everywhere_holds():
    found = robustness(
        ("speeds are 20 % off", 1.1, 1.3), ("link times are deterministic", 1.2, 1.2)
    )
    assert found.sentence(PICK) == (
        "Holds under 2 other conditions (speeds are 20 % off: 10 % worse; link times are deterministic: "
        "20 % worse)."
    )
    assert found.best() == PICK


def test_a_condition_under_which_a_rival_wins_is_named():
    found = robustness(
        ("link times are deterministic", 3.6, 1.2), ("speeds are 20 % off", 1.0, 1.2)
    )
    assert found.sentence(PICK) == (
        "Holds under 1 of 2 other conditions (speeds are 20 % off: the same); not if link times are "
        "deterministic: rival is 3.0 times better."
    )
    assert found.best() == RIVAL, "its worst case is 1.2 times the best, the pick's 3 times"


def test_a_pick_that_suffers_and_stays_ahead_is_called_so():
    found = robustness(("the slowest class is gone", 2.0, math.inf))
    assert "if the slowest class is gone, it is 2.0 times worse" in found.sentence(PICK)


def test_seeds_that_favour_a_rival_everywhere_say_nothing_about_a_condition():
    assumed = Condition("conditions are as assumed", {PICK: (1.3, 1.3), RIVAL: (1.0, 1.0)})
    other = Condition("speeds are 20 % off", {PICK: (1.3, 1.3), RIVAL: (1.0, 1.0)})
    mixed = Condition("link times are deterministic", {PICK: (3.0, 1.0), RIVAL: (1.0, 1.1)})
    found = Robustness((assumed, other, mixed), NAMES)
    assert "not if" not in found.sentence(PICK)

"""Rules with a table of clients, worked by hand on two of them: eta = .5."""

from fractions import Fraction

import numpy as np
import pytest

from sojourn.errors import InvalidInput
from sojourn.rules import (
    ACE,
    ACED,
    AREA,
    CA2FL,
    RULES,
    Adam,
    AsyncSGD,
    Malenia,
    Momentum,
    Ringleader,
    RoutedSAGA,
)
from sojourn.rules.state import check_memory
from tests.rules.by_hand import run, uses, versions, weights


def arrivals(*given):
    """Of (client, update) and maybe a staleness."""
    return [dict(zip(("client", "update", "staleness"), entry, strict=False)) for entry in given]


def test_ace_steps_along_the_mean_of_last_gradients():
    # means 3 (all heard), 1, 3, 1
    given = arrivals((0, 2.0), (0, 4.0), (1, 2.0), (0, 0.0), (1, 6.0), (1, 2.0))
    seen, state = run(ACE(), [8.0], given, clients=2)
    assert weights(seen) == [[8.0], [8.0], [6.5], [6.0], [4.5], [4.0]]
    assert versions(seen) == [0, 0, 1, 2, 3, 4]
    assert all(uses(seen))
    assert state.arrays["table"].tolist() == [[0.0], [2.0]]


def test_ace_may_begin_at_once():
    # means 1, 2, 0, 2, 0
    given = arrivals((0, 2.0), (1, 2.0), (1, -2.0), (0, 6.0), (0, 2.0))
    seen, _ = run(ACE(warm_up=False), [8.0], given, clients=2)
    assert weights(seen) == [[7.5], [6.5], [6.5], [5.5], [5.5]]


def test_aced_leaves_out_what_is_too_old():
    # active: 0; both; 0 alone; both; nobody; 0 alone
    given = arrivals((0, 2.0, 0), (1, 4.0, 1), (0, 2.0, 0), (1, 6.0, 1), (1, 2.0, 3), (0, 1.0, 1))
    seen, _ = run(ACED(max_staleness=1, warm_up=False), [8.0], given, clients=2)
    assert weights(seen) == [[7.0], [5.5], [4.5], [2.5], [2.5], [2.0]]
    assert versions(seen) == [1, 2, 3, 4, 4, 5]
    assert all(uses(seen))


def test_aced_fills_its_table_at_the_first_weights_before_it_steps():
    # 0 twice and 1 at the first weights; means (4, 6): 5, then (4, 2): 3
    given = arrivals((0, 2.0, 0), (0, 4.0, 0), (1, 6.0, 0), (1, 2.0, 0))
    seen, _ = run(ACED(max_staleness=1), [8.0], given, clients=2)
    assert weights(seen) == [[8.0], [8.0], [5.5], [4.0]]
    assert versions(seen) == [0, 0, 1, 2]


def test_saga_is_worked_by_hand():
    # n p is .5 and 1.5; directions 4, 1 + 2, 2.5 + 4, 3.5 - 2, 2 + 0
    divisors = [0.5, 1.5]
    given = arrivals((0, 2.0), (1, 3.0), (0, 4.0), (1, 0.0), (0, 4.0))
    given = [{**entry, "divisor": divisors[entry["client"]]} for entry in given]
    seen, state = run(RoutedSAGA(), [8.0], given, clients=2)
    assert weights(seen) == [[6.0], [4.5], [1.25], [0.5], [-0.5]]
    assert state.arrays["mean"].tolist() == [2.0]


def test_saga_is_unbiased_whatever_the_routing_and_the_table():
    p, gradients, rule = np.array([0.2, 0.3, 0.5]), np.array([1.0, -2.0, 7.0]), RoutedSAGA()
    divisors = rule.weighting.divisors(p)
    steps = []
    for client in range(3):
        before = arrivals((0, 3.0), (1, -1.0), (2, 2.0), (0, 5.0))
        now = {"client": client, "update": gradients[client], "divisor": divisors[client]}
        seen, _ = run(rule, [0.0], [*before, now], clients=3)
        steps.append(weights(seen)[-1][0] - weights(seen)[-2][0])
    assert p @ steps == pytest.approx(-0.5 * gradients.mean())


def test_ca2fl_calibrates_by_the_cache():
    # v = 0 + 6/2; then 3 + (2 - 2)/2, the second against 4; then 3 + (-4 + 6)/2
    given = arrivals((0, 2.0), (1, 4.0), (0, 4.0), (0, 2.0), (1, 0.0), (0, 8.0))
    seen, state = run(CA2FL(buffer_size=2), [0.0], given, clients=2)
    assert weights(seen) == [[0.0], [3.0], [3.0], [6.0], [6.0], [10.0]]
    assert state.arrays["mean"].tolist() == [4.0]
    assert state.arrays["table"].tolist() == [[8.0], [0.0]]


def test_area_is_the_mean_of_trained_models():
    # trained: 3 and 5; 5 then 2; 3 then 4: means 4, (2 + 5)/2, (2 + 4)/2
    given = [(0, 1.0, 2.0), (1, 1.0, 4.0), (0, 4.0, 1.0), (0, 1.0, 1.0)]
    given += [(1, 4.0, -1.0), (1, 3.5, 0.5)]
    given = [{"client": c, "sent": sent, "update": update} for c, sent, update in given]
    seen, state = run(AREA(buffer_size=2), [1.0], given, clients=2)
    assert weights(seen) == [[1.0], [4.0], [4.0], [3.5], [3.5], [3.0]]
    assert state.weights == state.arrays["table"].mean(axis=0)


def test_malenia_waits_for_everybody_at_the_present_weights():
    # S/n = 1: one of each is a tie and goes on. Means (3, 1): 2; then (4, 2, twice): 3.5
    given = arrivals((0, 2.0), (0, 4.0), (1, 1.0), (1, 99.0, 1), (1, 2.0), (0, 4.0), (1, 4.0))
    seen, _ = run(Malenia(), [8.0], given, clients=2)
    assert weights(seen) == [[8.0], [8.0], [7.0], [7.0], [7.0], [7.0], [5.25]]
    assert uses(seen) == [True, True, True, False, True, True, True]


def test_malenia_waits_for_a_harmonic_mean():
    # S/n = 2; harmonic means 1, 4/3, 3/2, 12/5; then means (4, 3)
    given = arrivals((0, 2.0), (1, 2.0), (0, 4.0), (0, 6.0), (1, 4.0))
    seen, state = run(Malenia(batch_size=4), [8.0], given, clients=2)
    assert weights(seen) == [[8.0], [8.0], [8.0], [8.0], [6.25]]
    assert state.arrays["heard"].tolist() == [0, 0]


def test_malenia_goes_on_at_a_tie_whatever_the_rounding():
    # 49 of each of three clients: the harmonic mean is S/n = 49 exactly, and 3 (1/49) rounds.
    given = arrivals(*[(client, 1.0) for _ in range(49) for client in range(3)], (1, 1.0))
    seen, _ = run(Malenia(batch_size=147), [8.0], given, clients=3)
    assert versions(seen) == [0] * 147 + [1]


@pytest.mark.parametrize("seed", range(10))
def test_malenia_steps_where_its_definition_does(seed):
    """Collect while the harmonic mean is at most S/n, in exact arithmetic."""
    random, n, size = np.random.default_rng(seed), 3, int(6 + 3 * seed)
    clients = random.choice(n, size=400, p=[0.2, 0.3, 0.5]).tolist()
    seen, _ = run(
        Malenia(batch_size=size), [0.0], arrivals(*[(c, 1.0) for c in clients]), clients=n
    )
    heard, version, expected = [0] * n, 0, []
    for client in clients:
        heard[client] += 1
        if all(heard) and n / sum(Fraction(1, b) for b in heard) > Fraction(size, n):
            version, heard = version + 1, [0] * n
        expected.append(version)
    assert versions(seen) == expected


def test_ringleader_makes_rounds_of_n_updates():
    # gathered (3, 1): 2; kept for later: 6; (5, 1): 3. Next round (2, 6): 4; (2, 4): 3; waits.
    given = arrivals((0, 2.0), (0, 4.0), (1, 1.0), (1, 5.0), (1, 7.0), (0, 9.0))
    given += arrivals((0, 2.0), (1, 0.0), (0, 4.0))
    seen, state = run(Ringleader(), [8.0], given, clients=2)
    found = [[8.0], [8.0], [7.0], [7.0], [7.0], [5.5], [3.5], [2.0], [2.0]]
    assert weights(seen) == found
    assert versions(seen) == [0, 0, 1, 1, 1, 2, 3, 4, 4]
    assert state.arrays["heard"].tolist() == [1, 0]


@pytest.mark.parametrize("name", RULES)
def test_memory_is_what_a_state_holds(name):
    rule = RULES[name]()
    state = rule.begin(np.zeros(7), 5)
    assert rule.memory(5, 7) == sum(array.size for array in state.arrays.values())


def test_what_cannot_fit_is_refused_before_it_is_made():
    assert AsyncSGD(server=Momentum()).memory(10**9, 1000) == 1000
    assert AsyncSGD(server=Adam(amsgrad=True)).memory(10**9, 1000) == 3000
    check_memory(AsyncSGD(), 10**12, np.zeros(1000))
    check_memory(ACE(), 10, np.zeros(1000))
    with pytest.raises(InvalidInput, match=r"'ace' keeps 1,001,000,001,000 numbers.*8,008\.0 GB"):
        check_memory(ACE(), 10**9, np.zeros(1000))

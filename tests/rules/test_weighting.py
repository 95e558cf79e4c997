"""Weights of updates from the shares of their clients."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sojourn.errors import InvalidInput
from sojourn.rules import Weighting

sizes = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12)


def shares_of(sizes):
    return np.array(sizes) / np.sum(sizes)


@given(sizes, st.floats(0.0, 1.0))
def test_the_mean_weight_of_an_update_is_one(sizes, debias):
    shares = shares_of(sizes)
    assert shares @ (1 / Weighting(debias).divisors(shares)) == pytest.approx(1.0, rel=1e-12)


@given(sizes)
def test_the_ends_are_exact(sizes):
    shares = shares_of(sizes)
    assert Weighting(0.0).divisors(shares).tolist() == [1.0] * len(sizes)
    undone = [len(sizes) * share for share in shares.tolist()]
    assert Weighting(1.0).divisors(shares).tolist() == undone
    assert [Weighting(1.0).divisor(s, len(sizes), 1.0) for s in shares.tolist()] == undone


def test_half_way_and_the_cap_by_hand():
    # n s = (.2, 1.8), to the power of -.5:
    # 2.2360680 and .7453560; their mean .1*2.236 + .9*.7453 = .8944272: weights 2.5 and 5/6.
    shares = np.array([0.1, 0.9])
    np.testing.assert_allclose(1 / Weighting(0.5).divisors(shares), [2.5, 5 / 6], rtol=1e-12)
    capped = Weighting(0.5, cap=2.0)
    np.testing.assert_allclose(1 / capped.divisors(shares), [2.0, 5 / 6], rtol=1e-12)
    one = capped.divisor(0.1, 2, capped.mean(shares))
    assert one == capped.divisors(shares)[0]


@pytest.mark.parametrize("knobs", [{"debias": -0.1}, {"debias": 1.1}, {"cap": 0.0}])
def test_wrong_knobs_are_refused(knobs):
    with pytest.raises(InvalidInput, match=next(iter(knobs))):
        Weighting(**knobs)


@pytest.mark.parametrize("debias", [0.0, 0.2, 0.7, 1.0])
@pytest.mark.parametrize("cap", [None, 1.5])
def test_realised_divisors_are_those_of_the_shares_estimated_so_far(debias, cap):
    clients, weighting = 4, Weighting(debias, cap)
    senders = np.random.default_rng(3).integers(0, clients, 50) ** 2 % clients
    shares, divisors = weighting.realised(senders, clients)
    counts = np.ones(clients)
    for k, sender in enumerate(senders):
        estimated = counts / counts.sum()
        assert shares[k] == pytest.approx(estimated[sender], rel=1e-12)
        assert divisors[k] == pytest.approx(weighting.divisors(estimated)[sender], rel=1e-12)
        counts[sender] += 1.0

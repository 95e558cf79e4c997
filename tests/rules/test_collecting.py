"""Gradient rules that pick, collect or correct, worked by hand: eta = .5, starting at 8."""

import math

import pytest

from sojourn.errors import InvalidInput
from sojourn.rules import DCASGD, MSynchronousSGD, PickySGD, Rennala
from tests.rules.by_hand import run, uses, versions, weights


def test_rennala_takes_a_batch_at_the_present_weights_only():
    # means 3 and 2
    stale = {"update": 99.0, "staleness": 1}
    arrivals = [{"update": 2.0}, {"update": 4.0}, stale, {"update": 3.0}, {"update": 1.0}]
    seen, _ = run(Rennala(batch_size=2), [8.0], arrivals)
    assert weights(seen) == [[8.0], [6.5], [6.5], [6.5], [5.5]]
    assert versions(seen) == [0, 1, 1, 1, 2]
    assert uses(seen) == [True, True, False, True, True]


def test_rennala_weighs_what_it_collects():
    # 2/.5 + 4/2 = 6, halved
    arrivals = [{"update": 2.0, "divisor": 0.5}, {"update": 4.0, "divisor": 2.0}]
    seen, _ = run(Rennala(batch_size=2, debias=1.0), [8.0], arrivals)
    assert weights(seen)[-1] == [6.5]


def test_m_synchronous_counts_each_client_once_per_version():
    arrivals = [
        {"update": 2.0, "client": 0},
        {"update": 99.0, "client": 0},
        {"update": 4.0, "client": 1},
        {"update": 99.0, "client": 2, "staleness": 1},
        {"update": 3.0, "client": 2},
        {"update": 1.0, "client": 0},
    ]
    seen, _ = run(MSynchronousSGD(first=2), [8.0], arrivals, clients=3)
    assert weights(seen) == [[8.0], [8.0], [6.5], [6.5], [6.5], [5.5]]
    assert uses(seen) == [True, False, True, False, True, True]
    with pytest.raises(InvalidInput, match="waits for 5 clients, but there are 3"):
        run(MSynchronousSGD(first=5), [8.0], [], clients=3)


def test_picky_measures_staleness_in_distance():
    # distances 0, 1, 1.5 (dropped), .5, 1, 2 (dropped)
    given = [(2.0, 8.0), (1.0, 8.0), (9.0, 8.0), (1.0, 7.0), (2.0, 7.0), (9.0, 7.0)]
    arrivals = [{"update": g, "sent": sent} for g, sent in given]
    seen, _ = run(PickySGD(threshold=1.0), [8.0], arrivals)
    assert weights(seen) == [[7.0], [6.5], [6.5], [6.0], [5.0], [5.0]]
    assert uses(seen) == [True, True, False, True, True, False]


GIVEN = [(2.0, 8.0), (2.0, 8.0), (1.0, 8.0), (-2.0, 6.75), (1.0, 6.75)]


def test_dc_asgd_corrects_to_first_order():
    # 2; 2 - .5*4*1 = 0; 1 - .5*1*1 = .5; -2; 1 + .5*1*1 = 1.5
    arrivals = [{"update": g, "sent": sent} for g, sent in GIVEN]
    seen, _ = run(DCASGD(compensation=0.5), [8.0], arrivals)
    assert weights(seen) == [[7.0], [7.0], [6.75], [7.75], [7.0]]


def test_dc_asgd_adapts_its_correction():
    arrivals = [{"update": g, "sent": sent} for g, sent in GIVEN]
    seen, _ = run(DCASGD(compensation=2.0, decay=0.75), [8.0], arrivals)
    w, q, expected = 8.0, 0.0, []
    for g, sent in GIVEN:
        q = 0.75 * q + 0.25 * g * g
        w -= 0.5 * (g + 2.0 / math.sqrt(q + 1e-7) * g * g * (w - sent))
        expected.append([w])
    # the second: q = .25*4*.75 + 1 = 1.75, so 2 - 2*4/sqrt(1.75) * 1
    assert expected[1][0] == pytest.approx(7.0 - 0.5 * (2.0 - 8.0 / math.sqrt(1.75)), rel=1e-6)
    assert weights(seen) == [pytest.approx(w) for w in expected]

"""FADAS and FedFa, worked by hand."""

import pytest

from sojourn.rules import FADAS, FedFa
from tests.rules.by_hand import run, versions, weights


def test_fadas_adapts_and_shortens_steps_for_stale_buffers():
    # mean differences 2, 4, 0 give a = 1, 2.5, 1.25 and largest squares 4, 16, 16; the second
    # buffer holds a difference 4 versions old, so its step is 1/4 instead of 1/2.
    given = [(1.0, 0), (3.0, 1), (4.0, 4), (4.0, 0), (5.0, 0), (-5.0, 0)]
    arrivals = [{"update": update, "staleness": tau} for update, tau in given]
    knobs = {"buffer_size": 2, "server_learning_rate": 0.5, "beta1": 0.5, "beta2": 0.0}
    seen, _ = run(FADAS(epsilon=1e-15, **knobs), [0.0], arrivals)
    expected = [0.0, 0.25, 0.25, 0.40625, 0.40625, 0.5625]
    assert [w[0] for w in weights(seen)] == pytest.approx(expected)
    assert versions(seen) == [0, 1, 1, 2, 2, 3]


def test_fadas_never_lengthens_a_step():
    arrivals = [{"update": 1.0, "staleness": 4}]
    knobs = {"buffer_size": 1, "beta1": 0.0, "beta2": 0.0, "epsilon": 1e-15}
    seen, _ = run(FADAS(server_learning_rate=0.1, **knobs), [0.0], arrivals)
    assert weights(seen)[0] == pytest.approx([0.1])


def test_fedfa_is_the_mean_of_the_last_models():
    # trained models 2, 4, 0, 6, 1, two of them at a time
    given = [(0.0, 2.0), (1.0, 3.0), (2.0, -2.0), (2.0, 4.0), (0.0, 1.0)]
    arrivals = [{"sent": sent, "update": update} for sent, update in given]
    seen, _ = run(FedFa(queue_size=2), [0.0], arrivals)
    assert weights(seen) == [[2.0], [3.0], [2.0], [3.0], [3.5]]
    assert versions(seen) == [1, 2, 3, 4, 5]

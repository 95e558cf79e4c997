"""FADAS and FedFa, and the options of FedBuff and FedAsync, worked by hand."""

import pytest

from sojourn.errors import InvalidInput
from sojourn.rules import FADAS, FedAsync, FedBuff, FedFa
from sojourn.rules.server import Adam, Momentum
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


def test_differences_are_weighted_by_their_clients_share():
    # divisors 2 and 1/2: FedBuff takes the mean of 4/2 and 3/(1/2), FedAsync mixes in 3/10 of 4 and
    # then, 12/10 being more than everything, all of the second model.
    arrivals = [{"update": 4.0, "divisor": 2.0}, {"update": 3.0, "divisor": 0.5}]
    seen, _ = run(FedBuff(buffer_size=2, debias=1.0), [0.0], arrivals)
    assert weights(seen)[-1] == pytest.approx([4.0])
    seen, _ = run(FedAsync(mixing=0.6, debias=1.0), [0.0], arrivals)
    assert [w[0] for w in weights(seen)] == pytest.approx([1.2, 3.0])
    assert FedBuff(debias=1.0, cap=5.0).weighting.cap == 5.0


@pytest.mark.parametrize("server", [None, Momentum(beta=0.5), Adam(beta1=0.0, beta2=0.5)])
@pytest.mark.parametrize("kind", [FedBuff, FedAsync])
def test_the_learning_rate_of_the_run_may_be_the_servers(kind, server):
    options = {} if server is None else {"server": server}
    options |= {"buffer_size": 1} if kind is FedBuff else {}
    arrivals = [{"update": update} for update in (1.0, -2.0, 0.5)]
    given, _ = run(kind(server_learning_rate=0.3, **options), [1.0], arrivals, learning_rate=9.0)
    tuned = kind(server_learning_rate="run", local_learning_rate=9.0, **options)
    found, _ = run(tuned, [1.0], arrivals, learning_rate=0.3)
    assert found == given
    assert tuned.learning_rate_scale(123.0) == tuned.server.learning_rate_scale(1.0)


def test_a_rate_of_the_run_for_the_server_leaves_none_for_the_clients():
    with pytest.raises(InvalidInput, match="give the clients one"):
        FedBuff(server_learning_rate="run")

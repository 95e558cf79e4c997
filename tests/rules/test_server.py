"""The server's optimisers, each worked by hand on one weight: eta = .5, starting at 1."""

import math

import numpy as np
import pytest

from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.rules import (
    Adam,
    AsyncSGD,
    Cosine,
    FedAsync,
    FedBuff,
    InverseSquareRoot,
    Momentum,
    Plain,
    Steps,
    rule_from_table,
    rule_to_table,
)
from tests.rules.by_hand import run, weights


def path(server, *updates, rule=AsyncSGD, start=1.0, **fields):
    arrivals = [{"update": u, "round": k, **fields} for k, u in enumerate(updates)]
    seen, state = run(rule(server=server), [start], arrivals)
    return [w[0] for w in weights(seen)], state


def test_momentum_keeps_going():
    # z: -1, -.5 - 1 = -1.5, -.75, -.375 - .5, -.4375
    found, state = path(Momentum(beta=0.5), 2.0, 2.0, 0.0, 1.0, 0.0)
    assert found == [0.0, -1.5, -2.25, -3.125, -3.5625]
    assert state.arrays["velocity"].tolist() == [-0.4375]


def test_nesterov_looks_ahead():
    # z as above; each move is .5 z + push: -1.5, -.75 - 1, -.375, -.4375 - .5, -.21875
    found, _ = path(Momentum(beta=0.5, nesterov=True), 2.0, 2.0, 0.0, 1.0, 0.0)
    assert found == [-0.5, -2.25, -2.625, -3.5625, -3.78125]


def test_momentum_spreads_a_heavy_update():
    # a divisor of .25 is a weight of 4: pushes of -4 and -.5
    arrivals = [{"update": 2.0, "divisor": 0.25}, {"update": 1.0}]
    seen, _ = run(AsyncSGD(server=Momentum(beta=0.5)), [1.0], arrivals)
    assert weights(seen) == [[-3.0], [-5.5]]


def by_hand_adam(updates, *, beta1, beta2, epsilon, amsgrad, rate=0.5, w=1.0):
    a = q = largest = 0.0
    found = []
    for k, g in enumerate(updates, start=1):
        a = beta1 * a + (1 - beta1) * g
        q = beta2 * q + (1 - beta2) * g * g
        largest = max(largest, q)
        root = math.sqrt((largest if amsgrad else q) / (1 - beta2**k))
        w -= rate * a / (1 - beta1**k) / (root + epsilon)
        found.append(w)
    return found


@pytest.mark.parametrize("amsgrad", [False, True])
def test_adam(amsgrad):
    knobs = {"beta1": 0.5, "beta2": 0.75, "epsilon": 1e-3, "amsgrad": amsgrad}
    updates = [4.0, -1.0, 0.5, 0.0, 2.0, 2.0]
    found, state = path(Adam(**knobs), *updates)
    assert found[0] == pytest.approx(1.0 - 0.5 * 4.0 / 4.001)
    assert found == pytest.approx(by_hand_adam(updates, **knobs), rel=1e-12)
    assert state.numbers == {"moves": 6}
    assert ("largest" in state.arrays) is amsgrad


def test_adam_does_not_see_the_scale_of_a_difference():
    knobs = {"server": Adam(epsilon=1e-12)}
    small, _ = run(FedBuff(buffer_size=1, **knobs), [1.0], [{"update": 1e-3}] * 5)
    large, _ = run(FedBuff(buffer_size=1, **knobs), [1.0], [{"update": 1e3}] * 5)
    np.testing.assert_allclose(weights(small), weights(large), rtol=1e-6)


def test_long_updates_are_clipped_to_a_norm():
    # the norm of (3, 4) is 5, of twice that (a divisor of .5) 10: scaled to 2.5; (.6, .8) is left
    arrivals = [{"update": [3.0, 4.0]}, {"update": [3.0, 4.0], "divisor": 0.5}]
    arrivals += [{"update": [0.6, 0.8]}]
    seen, _ = run(AsyncSGD(server=Plain(clip=2.5)), [0.0, 0.0], arrivals)
    assert weights(seen)[0] == pytest.approx([-0.75, -1.0])
    assert weights(seen)[1] == pytest.approx([-1.5, -2.0])
    assert weights(seen)[2] == pytest.approx([-1.8, -2.4])


def test_weights_decay_before_they_move():
    # factor 1 - .5 * .2 = .9 each: .9 - .5, .36 - .5, ...
    found, _ = path(Plain(weight_decay=0.2), 1.0, 1.0, 0.0, 0.0, 2.0)
    assert found == pytest.approx([0.4, -0.14, -0.126, -0.1134, -1.10206])


@pytest.mark.parametrize(
    ("schedule", "at", "factor"),
    [
        (Cosine(), {"progress": 0.0}, 1.0),
        (Cosine(), {"progress": 0.5}, 0.5),
        (Cosine(final=0.2), {"progress": 1.0}, 0.2),
        (Cosine(final=0.2), {"progress": 0.5}, 0.6),
        (InverseSquareRoot(rounds=10), {"round": 30}, 0.5),
        (InverseSquareRoot(), {"round": 8}, 1 / 3),
        (Steps(), {"progress": 0.49}, 1.0),
        (Steps(), {"progress": 0.5}, 0.1),
        (Steps(at=(0.2, 0.4, 0.6), by=0.5), {"progress": 0.7}, 0.125),
    ],
    ids=repr,
)
def test_schedules_multiply_the_learning_rate(schedule, at, factor):
    for server in (Plain(schedule=schedule), Momentum(schedule=schedule)):
        seen, _ = run(AsyncSGD(server=server), [1.0], [{"update": 2.0, **at}])
        assert weights(seen)[0] == pytest.approx([1.0 - factor])


def test_fedasync_through_an_optimiser_is_the_same_mixture():
    arrivals = [{"update": 1.0, "sent": 3.0, "staleness": tau} for tau in (0, 3, 1, 0, 2)]
    plain, _ = run(FedAsync(), [1.0], arrivals)
    still, _ = run(FedAsync(server=Momentum(beta=0.0)), [1.0], arrivals)
    np.testing.assert_allclose(weights(still), weights(plain), rtol=1e-14)


def test_the_model_is_an_average_of_versions():
    # versions 0, 2, 2, -1; f = .5: shares 1, 1 (of 1/(.5 k)), 2/3, 1/2
    arrivals = [{"update": u} for u in (2.0, -4.0, 0.0, 6.0)]
    rule, state = AsyncSGD(server=Plain(average=0.5)), None
    models = []
    for number in range(len(arrivals) + 1):
        _, state = run(rule, [1.0], arrivals[:number])
        models.append(state.model.tolist()[0])
    assert state.weights.tolist() == [-1.0], "tasks go out with the weights themselves"
    assert models == pytest.approx([1.0, 0.0, 2.0, 2.0, 0.5])


def test_all_versions_alike_are_their_mean():
    found, state = path(Momentum(beta=0.5, average=1.0), 2.0, 2.0, 0.0, 1.0, 0.0)
    assert state.model.tolist() == pytest.approx([np.mean(found)])
    assert state.arrays["velocity"].tolist() == [-0.4375], "and the optimiser is as it was"


def test_an_average_is_single_precision_where_the_weights_are():
    rule = AsyncSGD(server=Adam(average=0.1))
    state = rule.begin(np.ones(3, dtype=np.float32), 2)
    assert state.model is state.weights
    assert state.arrays["averaged_weights"].dtype == np.float32
    assert rule.memory(2, 3) == 9


def test_a_model_is_not_changed_by_what_follows():
    _, state = path(Plain(average=0.2), 2.0, 2.0)
    model = state.model
    state.arrays["averaged_weights"][:] = 7.0
    assert model.tolist() != [7.0]


TABLE = {
    "name": "async-sgd",
    "debias": 0.5,
    "cap": 5,
    "server": {
        "name": "momentum",
        "beta": 0.9,
        "clip": 10.0,
        "weight-decay": 1e-4,
        "schedule": {"name": "steps", "at": [0.5, 0.9]},
    },
}


def test_optimisers_are_read_from_tables_and_written_back():
    rule = rule_from_table(TABLE)
    server = Momentum(clip=10.0, weight_decay=1e-4, schedule=Steps(at=(0.5, 0.9)))
    assert rule == AsyncSGD(debias=0.5, cap=5.0, server=server)
    assert rule_from_table(rule_to_table(rule)) == rule
    assert rule_from_table({"name": "fedbuff", "server": "adam"}) == FedBuff(server=Adam())
    nesterov = {"name": "fedavg", "server": {"name": "momentum", "nesterov": True}}
    assert rule_from_table(rule_to_table(rule_from_table(nesterov))).server.nesterov is True


@pytest.mark.parametrize(
    ("server", "error", "words"),
    [
        ({"name": "momentun"}, UnknownName, "did you mean 'momentum'"),
        ({"name": "adam", "beta": 0.5}, InvalidFile, "rule: server: unknown key 'beta'"),
        ({"name": "momentum", "beta": 1.0}, InvalidInput, "beta must be"),
        ({"name": "plain", "clip": 0.0}, InvalidInput, "clip must be above 0"),
        ({"name": "plain", "average": 1.5}, InvalidInput, "average must be"),
        ({"name": "plain", "average": 0}, InvalidInput, "average must be above 0"),
        ({"name": "plain", "schedule": "cosin"}, UnknownName, "did you mean 'cosine'"),
        ({"name": "plain", "schedule": {"name": "steps", "at": [2]}}, InvalidInput, "at must be"),
        ({"name": "plain", "schedule": {"name": "steps", "at": 2}}, InvalidFile, "must be a list"),
    ],
)
def test_wrong_optimisers_are_refused(server, error, words):
    with pytest.raises(error, match=words):
        rule_from_table({"name": "async-sgd", "server": server})


def test_a_name_is_no_optimiser_and_no_schedule():
    with pytest.raises(InvalidInput, match=r"server must be an optimiser.*it is 'adam'"):
        FedBuff(server="adam")
    with pytest.raises(InvalidInput, match=r"schedule must be one.*it is 'cosine'"):
        Plain(schedule="cosine")

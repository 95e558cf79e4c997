"""Each rule against a few updates worked out by hand, for NumPy arrays and torch tensors."""

import dataclasses
import math

import numpy as np
import pytest

from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.rules import (
    RULES,
    Arrival,
    AsyncSGD,
    DelayAdaptive,
    FedAsync,
    FedAvg,
    FedBuff,
    GeneralizedAsyncSGD,
    MinibatchSGD,
    Ringmaster,
    ServerState,
    ShuffledAsyncSGD,
    check_rule,
    local_learning_rate,
    rule_from_table,
    rule_to_table,
)


def numpy_vector(*values):
    return np.array(values)


def torch_vector(*values):
    return pytest.importorskip("torch").tensor(values, dtype=pytest.importorskip("torch").float64)


vectors = pytest.mark.parametrize("vector", [numpy_vector, torch_vector])


def run(rule, start, updates, vector, *, sent=None, learning_rate=0.5, concurrency=2):
    """Apply ``updates``, each (update, probability, staleness), and return every state."""
    states = [ServerState(vector(*start))]
    for update, probability, staleness in updates:
        arrival = Arrival(
            vector(*update), vector(*(sent or start)), probability, staleness, client=0
        )
        states.append(
            rule.apply(
                states[-1],
                arrival,
                learning_rate=learning_rate,
                clients=4,
                concurrency=concurrency,
            )
        )
    return states


def values(states):
    return [state.weights.tolist() for state in states]


def versions(states):
    return [state.version for state in states]


@vectors
def test_generalized_divides_by_n_times_p_at_dispatch(vector):
    # eta/(n p): .5/(4*.125) = 1, then .5/(4*.5) = .25.
    states = run(
        GeneralizedAsyncSGD(), [1.0, 2.0], [([1.0, -1.0], 0.125, 3), ([4.0, 8.0], 0.5, 0)], vector
    )
    assert values(states) == [[1.0, 2.0], [0.0, 3.0], [-1.0, 1.0]]
    assert versions(states) == [0, 1, 2]


@vectors
@pytest.mark.parametrize("rule", [AsyncSGD(), ShuffledAsyncSGD()])
def test_async_sgd_ignores_the_routing(rule, vector):
    states = run(rule, [1.0], [([1.0], 0.125, 3), ([2.0], 0.5, 0)], vector)
    assert values(states) == [[1.0], [0.5], [-0.5]]


@vectors
def test_delay_adaptive_shortens_only_beyond_the_concurrency(vector):
    # m = 2: tau 0 counts as 1, tau 2 is a full step, tau 8 a quarter.
    states = run(
        DelayAdaptive(), [4.0], [([2.0], 0.1, 0), ([2.0], 0.1, 2), ([2.0], 0.1, 8)], vector
    )
    assert values(states) == [[4.0], [3.0], [2.0], [1.75]]


@vectors
def test_ringmaster_drops_what_is_too_stale(vector):
    states = run(Ringmaster(max_staleness=3), [4.0], [([2.0], 0.1, 2), ([2.0], 0.1, 3)], vector)
    assert values(states) == [[4.0], [3.0], [3.0]]
    assert versions(states) == [0, 1, 1]


@vectors
def test_minibatch_sgd_waits_for_the_cohort(vector):
    # mean of 2 and 6 is 4, times eta .5.
    states = run(MinibatchSGD(), [1.0], [([2.0], 0.1, 0), ([6.0], 0.1, 0), ([2.0], 0.1, 0)], vector)
    assert values(states) == [[1.0], [1.0], [-1.0], [-1.0]]
    assert versions(states) == [0, 0, 1, 1]
    assert [state.buffered for state in states] == [0, 1, 0, 1]


@vectors
def test_fedavg_averages_the_trained_models(vector):
    # trained models 1 + 2 and 1 + 6: their mean is 5, whatever the learning rate.
    states = run(FedAvg(), [1.0], [([2.0], 0.1, 0), ([6.0], 0.1, 0)], vector)
    assert values(states) == [[1.0], [1.0], [5.0]]


@vectors
def test_fedasync_mixes_in_the_trained_model(vector):
    # x = 3 + 1 = 4 at both; alpha .6 at tau 0, .6/sqrt(4) = .3 at tau 3.
    states = run(FedAsync(), [1.0], [([1.0], 0.1, 0), ([1.0], 0.1, 3)], vector, sent=[3.0])
    assert values(states)[1] == pytest.approx([0.4 * 1.0 + 0.6 * 4.0])
    assert values(states)[2] == pytest.approx([0.7 * 2.8 + 0.3 * 4.0])
    assert versions(states) == [0, 1, 2]


def test_fedasync_discounts():
    assert [FedAsync(decay="constant").discount(t) for t in (0, 9)] == [1.0, 1.0]
    assert [FedAsync(decay="polynomial").discount(t) for t in (0, 3)] == [1.0, 0.5]
    assert FedAsync(decay="polynomial", a=1.0).discount(3) == 0.25
    hinge = FedAsync(decay="hinge")
    assert [hinge.discount(t) for t in (0, 4, 5, 6)] == [1.0, 1.0, 1 / 11, 1 / 21]
    assert FedAsync(decay="hinge", a=2.0, b=1.0).discount(2) == pytest.approx(1 / 3)


@vectors
def test_fedbuff_makes_a_version_only_when_the_buffer_is_full(vector):
    # 4/sqrt(1) + 6/sqrt(4) = 7; eta_g 2 times 7/2.
    rule = FedBuff(buffer_size=2, server_learning_rate=2.0)
    states = run(rule, [1.0], [([4.0], 0.1, 0), ([6.0], 0.1, 3), ([4.0], 0.1, 1)], vector)
    assert values(states) == [[1.0], [1.0], [8.0], [8.0]]
    assert versions(states) == [0, 0, 1, 1]
    assert states[3].buffer.tolist() == pytest.approx([4.0 / math.sqrt(2.0)])


@pytest.mark.parametrize("name", RULES)
def test_no_vector_is_changed_in_place_and_single_precision_stays(name):
    knobs = {"fedasync": "mixing", "fedbuff": "server_learning_rate"}
    rule = RULES[name](**({knobs[name]: np.float64(0.5)} if name in knobs else {}))
    weights, update = np.ones(3, dtype=np.float32), np.ones(3, dtype=np.float32)
    state = ServerState(weights)
    for _ in range(12):
        arrival = Arrival(update, weights, np.float64(0.3), np.int64(1), 0)
        state = rule.apply(state, arrival, learning_rate=np.float64(0.1), clients=3, concurrency=2)
        assert state.weights.dtype == np.float32
        assert state.buffer is None or state.buffer.dtype == np.float32
    assert state.version >= 1
    assert weights.tolist() == update.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", RULES)
def test_rules_go_through_a_table_and_back(name):
    rule = RULES[name]()
    assert rule_from_table(rule_to_table(rule)) == rule == rule_from_table(name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.policy = "routed"


def test_knobs_are_read_from_a_table():
    table = {"name": "fedasync", "decay": "hinge", "a": 2, "local-steps": 5, "proximal": 0.01}
    assert rule_from_table(table) == FedAsync(decay="hinge", a=2.0, local_steps=5, proximal=0.01)


def test_the_local_learning_rate_is_the_runs_unless_set():
    assert local_learning_rate(FedBuff(), 0.3) == 0.3
    assert local_learning_rate(FedBuff(local_learning_rate=0.1), 0.3) == 0.1
    own = local_learning_rate(FedBuff(local_learning_rate=np.float64(0.1)), np.float64(0.3))
    assert type(own) is float


class OwnRule:
    """What someone writes who has read the protocol and no more."""

    name, sends, policy = "own", "gradient", "routed"
    local_steps, local_learning_rate, proximal = 1, None, 0.0

    def apply(self, state, arrival, *, learning_rate, clients, concurrency):
        return state.updated(state.weights - learning_rate * arrival.update)


def test_a_rule_of_ones_own_is_written_down_by_its_name():
    assert rule_to_table(OwnRule()) == {"name": "own"}


def test_what_is_no_rule_and_what_divides_by_probabilities_nobody_used_is_refused():
    for rule in RULES.values():
        check_rule(rule(), rule.policy)
    check_rule(OwnRule(), "idle")
    for given in ("async-sgd", AsyncSGD, None):
        with pytest.raises(InvalidInput, match=r"rule must be a rule, such as AsyncSGD\(\)"):
            check_rule(given, "routed")
    with pytest.raises(InvalidInput, match="with policy 'idle' clients are not chosen by them"):
        check_rule(GeneralizedAsyncSGD(), "idle")


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"buffer_size": 0}, "buffer_size must be a whole number of at least 1; it is 0"),
        ({"buffer_size": 2.5}, "it is 2.5"),
        ({"server_learning_rate": 0.0}, "server_learning_rate must be above 0; it is 0"),
        ({"local_steps": True}, "it is True"),
        ({"local_learning_rate": math.nan}, "must be a finite number; it is nan"),
        ({"proximal": -1.0}, "proximal must be at least 0; it is -1"),
    ],
)
def test_wrong_knobs_are_refused(knobs, words):
    with pytest.raises(InvalidInput, match=words):
        FedBuff(**knobs)


def test_wrong_tables_are_refused():
    with pytest.raises(UnknownName, match="did you mean 'fedbuff'"):
        rule_from_table("fedbuf")
    with pytest.raises(InvalidFile, match="did you mean 'buffer-size'"):
        rule_from_table({"name": "fedbuff", "buffer-siz": 3})
    with pytest.raises(InvalidFile, match="'buffer-size' must be a whole number"):
        rule_from_table({"name": "fedbuff", "buffer-size": "ten"})
    with pytest.raises(UnknownName, match="did you mean 'hinge'"):
        rule_from_table({"name": "fedasync", "decay": "hinges"})
    with pytest.raises(InvalidInput, match=r"mixing must be above 0 and at most 1; it is 1\.5"):
        rule_from_table({"name": "fedasync", "mixing": 1.5})

"""Each rule against a few updates worked out by hand."""

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
    Momentum,
    Ringmaster,
    ServerState,
    ShuffledAsyncSGD,
    check_rule,
    local_learning_rate,
    rule_from_table,
    rule_to_table,
)
from tests.rules.by_hand import run, versions, weights


def of(*updates, **fields):
    """One arrival per update, each (update, staleness) or an update alone."""
    pairs = [u if isinstance(u, tuple) else (u, 0) for u in updates]
    return [{"update": u, "staleness": tau, **fields} for u, tau in pairs]


def test_generalized_divides_by_n_times_p_at_dispatch():
    # eta/(n p): .5/(4*.125) = 1, then .5/(4*.5) = .25.
    rule = GeneralizedAsyncSGD()
    divisors = rule.weighting.divisors(np.array([0.125, 0.5, 0.25, 0.125])).tolist()
    arrivals = [
        {"update": [1.0, -1.0], "client": 0, "staleness": 3, "divisor": divisors[0]},
        {"update": [4.0, 8.0], "client": 1, "divisor": divisors[1]},
    ]
    seen, _ = run(rule, [1.0, 2.0], arrivals)
    assert weights(seen) == [[0.0, 3.0], [-1.0, 1.0]]
    assert versions(seen) == [1, 2]


@pytest.mark.parametrize("rule", [AsyncSGD(), ShuffledAsyncSGD()])
def test_async_sgd_ignores_the_routing(rule):
    assert rule.weighting.divisors(np.array([0.1, 0.9])).tolist() == [1.0, 1.0]
    seen, _ = run(rule, [1.0], of((1.0, 3), 2.0))
    assert weights(seen) == [[0.5], [-0.5]]


def test_delay_adaptive_shortens_only_beyond_the_concurrency():
    # m = 2: tau 0 counts as 1, tau 2 is a full step, tau 8 a quarter.
    seen, _ = run(DelayAdaptive(), [4.0], of((2.0, 0), (2.0, 2), (2.0, 8)))
    assert weights(seen) == [[3.0], [2.0], [1.75]]


def test_ringmaster_drops_what_is_too_stale():
    seen, _ = run(Ringmaster(max_staleness=3), [4.0], of((2.0, 2), (2.0, 3)))
    assert seen == [([3.0], 1, True), ([3.0], 1, False)]


def test_minibatch_sgd_waits_for_the_cohort():
    # mean of 2 and 6 is 4, times eta .5.
    seen, last = run(MinibatchSGD(), [1.0], of(2.0, 6.0, 2.0))
    assert seen == [([1.0], 0, True), ([-1.0], 1, True), ([-1.0], 1, True)]
    assert last.numbers == {"buffered": 1, "cut": 0}


def test_fedavg_averages_the_trained_models():
    # trained models 1 + 2 and 1 + 6: their mean is 5, whatever the learning rate.
    seen, _ = run(FedAvg(), [1.0], of(2.0, 6.0))
    assert weights(seen) == [[1.0], [5.0]]


def test_fedasync_mixes_in_the_trained_model():
    # x = 3 + 1 = 4 at both; alpha .6 at tau 0, .6/sqrt(4) = .3 at tau 3.
    seen, _ = run(FedAsync(), [1.0], of((1.0, 0), (1.0, 3), sent=3.0))
    assert weights(seen)[0] == pytest.approx([0.4 * 1.0 + 0.6 * 4.0])
    assert weights(seen)[1] == pytest.approx([0.7 * 2.8 + 0.3 * 4.0])
    assert versions(seen) == [1, 2]


def test_fedasync_discounts():
    assert [FedAsync(decay="constant").discount(t) for t in (0, 9)] == [1.0, 1.0]
    assert [FedAsync(decay="polynomial").discount(t) for t in (0, 3)] == [1.0, 0.5]
    assert FedAsync(decay="polynomial", a=1.0).discount(3) == 0.25
    hinge = FedAsync(decay="hinge")
    assert [hinge.discount(t) for t in (0, 4, 5, 6)] == [1.0, 1.0, 1 / 11, 1 / 21]
    assert FedAsync(decay="hinge", a=2.0, b=1.0).discount(2) == pytest.approx(1 / 3)


def test_fedbuff_makes_a_version_only_when_the_buffer_is_full():
    # 4/sqrt(1) + 6/sqrt(4) = 7; eta_g 2 times 7/2.
    rule = FedBuff(buffer_size=2, server_learning_rate=2.0)
    seen, last = run(rule, [1.0], of((4.0, 0), (6.0, 3), (4.0, 1)))
    assert weights(seen) == [[1.0], [8.0], [8.0]]
    assert versions(seen) == [0, 1, 1]
    assert last.arrays["buffer"].tolist() == pytest.approx([4.0 / math.sqrt(2.0)])


@pytest.mark.parametrize("name", RULES)
def test_no_vector_is_changed_in_place_and_single_precision_stays(name):
    knobs = {"fedasync": "mixing", "fedbuff": "server_learning_rate"}
    rule = RULES[name](**({knobs[name]: np.float64(0.5)} if name in knobs else {}))
    start, update = np.ones(3, dtype=np.float32), np.ones(3, dtype=np.float32)
    state, older = rule.begin(start, 3), []
    for k in range(24):
        arrival = Arrival(
            update,
            start,
            client=k % 3,
            staleness=np.int64(0),
            share=np.float64(0.3),
            divisor=np.float64(0.9),
            round=k,
        )
        older.append((state.weights, state.weights.copy()))
        state, used = rule.apply(
            state, arrival, learning_rate=np.float64(0.1), clients=3, concurrency=2
        )
        assert type(used) is bool
        assert state.weights.dtype == np.float32
    assert state.version >= 1
    assert start.tolist() == update.tolist() == [1.0, 1.0, 1.0]
    assert all(np.array_equal(kept, copy) for kept, copy in older)


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

    def begin(self, weights, clients):
        return ServerState(weights)

    def apply(self, state, arrival, *, learning_rate, clients, concurrency):
        return state.updated(state.weights - learning_rate * arrival.update), True


def test_a_rule_of_ones_own_is_written_down_by_where_it_is_and_read_back():
    table = rule_to_table(OwnRule())
    assert table == {"name": f"{__name__}:OwnRule"}
    assert type(rule_from_table(table)) is OwnRule

    class Nowhere(OwnRule):
        pass

    assert rule_to_table(Nowhere()) == {"name": "own"}


def test_a_rule_of_ones_own_is_found_beside_the_experiment(tmp_path):
    (tmp_path / "beside_the_experiment.py").write_text(
        "from dataclasses import dataclass\n"
        "from sojourn.rules import AsyncSGD\n"
        "@dataclass(frozen=True, kw_only=True, repr=False)\n"
        "class Halved(AsyncSGD):\n"
        "    name = 'halved'\n"
        "    half: float = 0.5\n"
        "thing = 3\n"
    )
    name = "beside_the_experiment:Halved"
    table = {"name": name, "half": 0.25, "server": {"name": "momentum"}}
    rule = rule_from_table(table, folder=tmp_path)
    assert (rule.half, rule.server) == (0.25, Momentum())
    assert rule_from_table(rule_to_table(rule), folder=tmp_path) == rule
    with pytest.raises(InvalidInput, match="did you mean 'half'"):
        rule_from_table({"name": name, "halv": 1}, folder=tmp_path)
    with pytest.raises(InvalidInput, match="rule must be a rule"):
        rule_from_table("beside_the_experiment:thing", folder=tmp_path)
    with pytest.raises(InvalidInput, match="cannot be imported"):
        rule_from_table("nowhere_to_be_found:Rule", folder=tmp_path)


def test_what_is_no_rule_is_refused():
    check_rule(OwnRule())
    for given in ("async-sgd", None):
        with pytest.raises(InvalidInput, match=r"rule must be a rule, such as AsyncSGD\(\)"):
            check_rule(given)
    with pytest.raises(InvalidInput, match=r"not its class: write AsyncSGD\(\)"):
        check_rule(AsyncSGD)


@pytest.mark.parametrize("name", ["memory", "sent", "weighting", "privacy"])
def test_a_parameter_with_the_name_of_a_method_is_said(name):
    rule = OwnRule()
    setattr(rule, name, 0.9)
    with pytest.raises(InvalidInput, match=f"has a field '{name}'.*another name"):
        check_rule(rule)


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


@pytest.mark.parametrize("knob", ["local_learning_rate", "proximal"])
def test_what_has_no_effect_on_one_gradient_is_refused(knob):
    with pytest.raises(InvalidInput, match=f"{knob} is 0.1, but has no effect.*local_steps of 2"):
        AsyncSGD(**{knob: 0.1})
    table = {"name": "async-sgd", "local-steps": 2, knob.replace("_", "-"): 0.1}
    assert rule_to_table(rule_from_table(table)) == table


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

"""Rules with a momentum of their own, worked by hand, and their learning rates."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from sojourn.errors import InvalidInput
from sojourn.rules import (
    FADAS,
    RULES,
    Adam,
    Arrival,
    AsyncSGD,
    DelayedNesterov,
    FedBuff,
    HeLoCo,
    MomentumLookAhead,
    OrMo,
    RingmasterLMO,
    begin_state,
    dynamic_local_steps,
    learning_rate_scale,
)
from sojourn.rules.local_work import orthogonal
from sojourn.tuning.learning_rates import grid

from .by_hand import run, uses, versions, weights


def updates(*values):
    return [{"update": value} for value in values]


def test_delayed_nesterov_adds_its_momentum_every_period():
    # eps = beta = 1/2, N = 2. w + u/4 each; z = 3/2, then 3/4 + 2: w + z/4 at the second and fourth
    rule = DelayedNesterov(server_learning_rate=0.5, momentum=0.5, period=2)
    seen, state = run(rule, [0.0], updates(1.0, 2.0, 4.0, 0.0))
    assert weights(seen) == [[0.25], [1.125], [2.125], [2.8125]]
    assert state.arrays["velocity"].tolist() == [2.75]
    assert state.arrays["buffer"].tolist() == [0.0]


def test_delayed_nesterov_has_a_period_of_all_clients_by_default():
    rule = DelayedNesterov(server_learning_rate=1.0, momentum=0.0)
    seen, state = run(rule, [0.0], updates(*[3.0] * 5), clients=3)
    assert weights(seen)[-1] == [5.0] and state.numbers["buffered"] == 2


def test_look_ahead_sends_where_the_momentum_leads():
    # gamma = eta = 1/2: z = 2, 3; w = 0 + (1 + 4)/2, 2.5 + (1.5 + 4)/2; sent w + z/4
    rule = MomentumLookAhead(server_learning_rate=0.5, momentum=0.5)
    seen, state = run(rule, [0.0], updates(4.0, 4.0))
    assert weights(seen) == [[3.0], [6.0]]
    assert state.model.tolist() == [5.25]


def test_look_ahead_without_momentum_is_buffered_averaging_of_one():
    given = updates([1.0, -2.0], [3.0, 0.5], [-1.0, 1.0])
    plain, _ = run(FedBuff(buffer_size=1, server_learning_rate=0.25), [1.0, 2.0], given)
    rule = MomentumLookAhead(momentum=0.0, server_learning_rate=0.25)
    assert weights(run(rule, [1.0, 2.0], given)[0]) == weights(plain)


def test_heloco_turns_what_opposes_the_momentum():
    rule = HeLoCo(server_learning_rate=1.0, momentum=0.5)
    velocity = np.array([2.0, 0.0])
    state = rule.begin(np.zeros(2), 3)
    state.arrays["velocity"][:] = velocity
    alike = np.array([1.0, 1.0])
    assert rule.corrected(state, alike).tolist() == [1.0, 1.0]
    # cos = -1, |d| = 6, conf = 6/12: b = .25, and d - b c |d| z = -6 + 1.5
    against = rule.corrected(state, np.array([-6.0, 0.0]))
    assert against.tolist() == [-4.5, 0.0]
    # cos = 0, |d| = 2, conf = 2/8: l = .25 * .2/.4 = 1/8, norm kept
    across = rule.corrected(state, np.array([0.0, 2.0]))
    assert np.linalg.norm(across) == pytest.approx(2.0)
    assert across[0] / across[1] == pytest.approx((1 / 8) / (7 / 8))


def test_heloco_corrects_every_tensor_by_itself():
    rule = HeLoCo()
    layout = (("a", (1,)), ("b", (1, 2)))
    state = begin_state(rule, np.zeros(3), 2, layout)
    state.arrays["velocity"][:] = [2.0, 2.0, 0.0]
    assert rule.corrected(state, np.array([1.0, -6.0, 0.0])).tolist() == [1.0, -4.5, 0.0]
    with pytest.raises(InvalidInput, match="the layout has 2 numbers"):
        begin_state(rule, np.zeros(3), 2, layout[1:])


def ordered_momentum(gradients, *, block, beta, rate):
    """SGD with momentum over whole blocks: w -= beta u at a block's start, u *= beta."""
    w = u = 0.0
    for k, gradient in enumerate(gradients):
        if k and k % block == 0:
            w, u = w - beta * u, beta * u
        u, w = u + rate * gradient, w - rate * gradient
    return w


def test_ormo_without_delay_is_momentum_by_blocks():
    gradients = [1.0, -2.0, 3.0, 0.5, 4.0]
    seen, _ = run(OrMo(momentum=0.5, block=2), [0.0], updates(*gradients), learning_rate=0.25)
    expected = [
        [ordered_momentum(gradients[: k + 1], block=2, beta=0.5, rate=0.25)] for k in range(5)
    ]
    assert weights(seen) == expected


def test_ormo_ends_where_it_would_if_everything_came_in_turn():
    """A gradient a blocks late has moved the weights as far as one that was there in time."""
    rule, rate = OrMo(momentum=0.5, block=1), 0.25
    timely, _ = run(rule, [0.0], updates(8.0, 0.0, 0.0), learning_rate=rate)
    late = [{"update": 0.0}, {"update": 0.0}, {"update": 8.0, "staleness": 2}]
    delayed, _ = run(rule, [0.0], late, learning_rate=rate)
    assert weights(timely)[-1] == weights(delayed)[-1] == [-3.5]


def test_ringmaster_lmo_steps_by_length_and_drops_what_is_stale():
    given = updates([3.0, 4.0], [0.0, 0.0])
    given += [{"update": [1.0, 1.0], "staleness": 1}]
    seen, _ = run(RingmasterLMO(), [0.0, 0.0], given, learning_rate=1.0)
    first = -np.array([0.6, 0.8]) * 2**-0.75
    np.testing.assert_allclose(weights(seen)[0], first, rtol=1e-12)
    np.testing.assert_allclose(
        weights(seen)[1], first - np.array([0.6, 0.8]) * 3**-0.75, rtol=1e-12
    )
    assert uses(seen) == [True, True, False] and versions(seen) == [1, 2, 2]


def test_muon_makes_matrices_orthogonal_and_others_unit():
    random = np.random.default_rng(1)
    matrix = random.normal(size=(4, 3))
    values = np.linalg.svd(orthogonal(matrix), compute_uv=False)
    assert np.all((values > 0.6) & (values < 1.3))
    u, _, v = np.linalg.svd(matrix, full_matrices=False)
    assert np.sum(orthogonal(matrix) * (u @ v)) > 0.8 * 3
    rule = RingmasterLMO(norm="muon")
    layout = (("weight", (4, 3)), ("bias", (2,)))
    state = begin_state(rule, np.zeros(14), 2, layout)
    gradient = np.append(matrix.ravel(), [3.0, 4.0])
    arrival = Arrival(gradient, np.zeros(14), client=0, staleness=0, share=0.5)
    after, _ = rule.apply(state, arrival, learning_rate=2**0.75, clients=2, concurrency=2)
    np.testing.assert_allclose(after.weights[:12], -orthogonal(matrix).ravel(), rtol=1e-12)
    np.testing.assert_allclose(after.weights[12:], [-0.6, -0.8], rtol=1e-12)


def test_dynamic_local_steps_follow_speed_within_limits():
    steps = dynamic_local_steps(np.array([0.01, 0.5, 1.0, 1.0, 1.0, 9.0]), 8)
    assert steps[0] == 1 and steps[-1] == 8 and sorted(steps) == list(steps)


def test_every_rule_states_a_scale():
    for kind in RULES.values():
        assert 0.0 < learning_rate_scale(kind(), 0.3) < math.inf
    assert learning_rate_scale(FADAS(), 0.3) == learning_rate_scale(AsyncSGD(server=Adam()), 7.0)


@dataclass(frozen=True)
class Scaled(AsyncSGD):
    """A rule from outside whose steps are a hundred times as long."""

    name = "scaled"

    def learning_rate_scale(self, stable_step):
        return stable_step / 100.0


def test_tuning_takes_the_scale_from_a_rule_that_it_does_not_know():
    rates = [
        grid(rule, 2.0, tasks=4, weight_square=1.0, number=3) for rule in (AsyncSGD(), Scaled())
    ]
    np.testing.assert_allclose(np.array(rates[0]) / 100.0, rates[1], rtol=0.05)
    with pytest.raises(InvalidInput, match="learning_rate_scale of the rule"):
        learning_rate_scale(Scaled(), -1.0)

"""G, H, the largest learning rate and the horizons, against reference values and differences."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

import sojourn as sj
from sojourn.theory.bounds import penalties, scheduled_rounds_to_accuracy


def constants_of(exact):
    """B is given as one number: put it all into sigma."""
    return sj.LearningConstants(
        initial_gap=exact["initial_gap_per_round"],
        smoothness=exact["smoothness"],
        gradient_noise=math.sqrt(exact["noise"]),
        heterogeneity=0.0,
    )


def test_reference_values(exact):
    network = sj.Network(sj.Fleet(exact["service_rates"]), exact["routing"], exact["concurrency"])
    constants, eta = constants_of(exact), exact["learning_rate"]
    for bound, value, gradient in (
        (sj.per_round_bound, "per_round_bound", "grad_per_round"),
        (sj.per_time_bound, "per_time_bound", "grad_per_time"),
    ):
        result = bound(network, constants, learning_rate=eta, rounds=0)
        np.testing.assert_allclose(result.value, exact[value], rtol=1e-10)
        scale = np.abs(exact[gradient]).max()
        np.testing.assert_allclose(result.gradient, exact[gradient], atol=1e-8 * scale, rtol=0)
        np.testing.assert_allclose(sum(result.terms.values()), result.value, rtol=1e-14)
    np.testing.assert_allclose(
        sj.max_learning_rate(network, constants), exact["max_learning_rate"], rtol=1e-10
    )


CONSTANTS = sj.LearningConstants(
    initial_gap=15.0, smoothness=1.5, gradient_noise=3.0, heterogeneity=10.0
)
CASES = {
    "penalty 1": lambda network: (penalties(network).routing, penalties(network).routing_gradient),
    "penalty 2": lambda network: (
        penalties(network).staleness,
        penalties(network).staleness_gradient,
    ),
    "log throughput": lambda network: (
        math.log(penalties(network).throughput),
        penalties(network).log_throughput_gradient,
    ),
    "G": lambda network: _pair(
        sj.per_round_bound(network, CONSTANTS, learning_rate=0.01, rounds=100)
    ),
    "H": lambda network: _pair(
        sj.per_time_bound(network, CONSTANTS, learning_rate=0.01, rounds=100)
    ),
    "rounds": lambda network: _pair(
        sj.rounds_to_accuracy(network, CONSTANTS, squared_gradient_norm=0.5)
    ),
    "time": lambda network: _pair(
        sj.time_to_accuracy(network, CONSTANTS, squared_gradient_norm=0.5)
    ),
    "guaranteed time": lambda network: _pair(
        sj.time_to_accuracy(network, CONSTANTS, squared_gradient_norm=300.0, guaranteed=True)
    ),
}


def _pair(result):
    return result.value, result.gradient


class Unconstrained(sj.Network):
    """A network whose routing need not sum to one, to move one client's probability alone."""

    def __init__(self, fleet, routing, concurrency):
        object.__setattr__(self, "fleet", fleet)
        object.__setattr__(self, "routing", np.asarray(routing))
        object.__setattr__(self, "concurrency", concurrency)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("m", [1, 2, 7, 30, 300])
def test_gradients_equal_central_differences(case, m):
    value_and_gradient = CASES[case]
    fleet = sj.Fleet([0.3, 1.0, 2.0, 2.5, 7.0])
    p = np.array([0.1, 0.3, 0.15, 0.25, 0.2])
    _, gradient = value_and_gradient(sj.Network(fleet, p, m))
    step = np.finfo(float).eps ** (1 / 3)
    numeric = np.empty(p.size)
    for j in range(p.size):
        up, down = p.copy(), p.copy()
        up[j] += step * p[j]
        down[j] -= step * p[j]
        high, _ = value_and_gradient(Unconstrained(fleet, up, m))
        low, _ = value_and_gradient(Unconstrained(fleet, down, m))
        numeric[j] = (high - low) / (2 * step * p[j])
    np.testing.assert_allclose(gradient, numeric, atol=1e-6 * np.abs(numeric).max(), rtol=0)


def test_guaranteed_horizon_is_capped_both_ways():
    """The two branches of max_learning_rate, each with its gradient used, and the uncapped case."""
    fleet = sj.Fleet([0.3, 1.0])
    network = sj.Network(fleet, [0.4, 0.6], 3)
    easy = sj.time_to_accuracy(network, CONSTANTS, squared_gradient_norm=1e6, guaranteed=True)
    assert easy.learning_rate == sj.max_learning_rate(network, CONSTANTS)
    hard = sj.time_to_accuracy(network, CONSTANTS, squared_gradient_norm=0.01, guaranteed=True)
    assert hard.learning_rate < sj.max_learning_rate(network, CONSTANTS)
    assert hard.value == sj.time_to_accuracy(network, CONSTANTS, squared_gradient_norm=0.01).value


@given(
    st.lists(st.floats(0.01, 100.0), min_size=1, max_size=10),
    st.integers(1, 300),
    st.floats(1e-4, 1.0),
)
def test_closed_forms_of_uniform_and_balanced_routing(mu, m, eta):
    """The paper's section 3.2, "simple routing strategies"."""
    fleet = sj.Fleet(mu)
    n, mu, total = fleet.size, fleet.service_rates, fleet.total_rate
    a, smooth, b = CONSTANTS.initial_gap, CONSTANTS.smoothness, CONSTANTS.noise
    g = sj.per_round_bound(
        sj.Network(fleet, sj.uniform_routing(fleet), m), CONSTANTS, learning_rate=eta, rounds=9
    )
    uniform = a / (eta * 10) + eta * smooth * b + eta**2 * smooth**2 * b * m * (m - 1)
    np.testing.assert_allclose(g.value, uniform, rtol=1e-9)
    g = sj.per_round_bound(
        sj.Network(fleet, sj.balanced_routing(fleet), m), CONSTANTS, learning_rate=eta, rounds=9
    )
    inner = 1 / mu * (1 + eta * smooth * m * (m - 1) * total / (n * mu))
    balanced = a / (eta * 10) + eta * smooth * b * total / n**2 * inner.sum()
    np.testing.assert_allclose(g.value, balanced, rtol=1e-9)


def test_classes_give_the_gradient_of_one_client():
    fleet = sj.Fleet([0.1, 1.0], counts=[3, 2])
    routing = np.array([0.1, 0.35])
    one_by_one = sj.Network(sj.Fleet(fleet.expand(fleet.service_rates)), fleet.expand(routing), 12)
    a = sj.per_time_bound(sj.Network(fleet, routing, 12), CONSTANTS, learning_rate=0.1, rounds=5)
    b = sj.per_time_bound(one_by_one, CONSTANTS, learning_rate=0.1, rounds=5)
    np.testing.assert_allclose(a.value, b.value, rtol=1e-13)
    np.testing.assert_allclose(fleet.expand(a.gradient), b.gradient, rtol=1e-10)


def test_best_learning_rate_is_best():
    network = sj.Network(sj.Fleet([0.3, 1.0]), [0.4, 0.6], 9)
    best = sj.rounds_to_accuracy(network, CONSTANTS, squared_gradient_norm=0.5)
    s = penalties(network)
    b = CONSTANTS.smoothness * CONSTANTS.noise / 4 * s.routing
    c = CONSTANTS.smoothness**2 * CONSTANTS.noise * 9 / 4 * s.staleness
    eta = best.learning_rate * np.linspace(0.5, 1.5, 2001)
    left = 0.5 / 8 - eta * b - eta**2 * c
    rounds = np.where(left > 0, CONSTANTS.initial_gap / (eta * left), np.inf)
    assert best.value <= rounds.min()
    assert rounds.min() <= best.value * (1 + 1e-6)


def test_uniform_routing_has_the_least_noise_and_one_task_no_staleness():
    random = np.random.default_rng(2)
    given = {"learning_rate": 0.01, "rounds": 0}
    for _ in range(50):
        fleet = sj.Fleet(np.exp(random.normal(0.0, 1.0, 5)))
        uniform = sj.Network(fleet, sj.uniform_routing(fleet), 4)
        other = sj.Network(fleet, random.dirichlet(np.ones(5)), 1)
        bounds = [sj.per_round_bound(network, CONSTANTS, **given) for network in (uniform, other)]
        assert bounds[0].terms["noise"] < bounds[1].terms["noise"]
        assert bounds[1].terms["staleness"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("exponent", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 5.0])
def test_proposition_4_2_reaches_the_accuracy_and_the_best_fixed_rate_is_no_slower(scale, exponent):
    fleet = sj.Fleet([0.3, 1.0, 4.0], counts=[2, 5, 3])
    network = sj.Network(fleet, sj.square_root_routing(fleet), 9)
    constants, target = sj.LearningConstants(15.0, 1.0, 3.0, 10.0), 0.5
    found = scheduled_rounds_to_accuracy(
        network, constants, squared_gradient_norm=target, scale=scale, exponent=exponent
    )
    assert found.learning_rate == pytest.approx(scale / found.rounds**exponent, rel=1e-12)
    assert found.learning_rate <= sj.max_learning_rate(network, constants) * (1 + 1e-12)
    for rounds in (found.rounds, 3.0 * found.rounds):  # whenever T >= T_eps, not only there
        bound = sj.per_round_bound(
            network, constants, learning_rate=scale / rounds**exponent, rounds=rounds
        )
        assert 8.0 * max(bound.terms.values()) <= target / 3.0 * (1 + 1e-12)
    fixed = sj.rounds_to_accuracy(network, constants, squared_gradient_norm=target, guaranteed=True)
    assert fixed.value <= found.rounds
    assert found.time == pytest.approx(found.rounds / sj.analyze(network).throughput, rel=1e-12)


def test_proposition_4_2_names_what_limits_it():
    fleet = sj.Fleet([1.0, 2.0], uplink=[1.0, 1.0])
    network = sj.Network(fleet, sj.uniform_routing(fleet), 3)
    asked = {"squared_gradient_norm": 0.5, "scale": 1.0}
    found = scheduled_rounds_to_accuracy(network, CONSTANTS, exponent=0.5, **asked)
    assert found.terms["proof"] == found.rounds == math.inf
    with pytest.raises(sj.InvalidInput, match="between 0 and 1"):
        scheduled_rounds_to_accuracy(network, CONSTANTS, exponent=1.0, **asked)


def test_without_noise_only_the_first_term_is_left():
    quiet = sj.LearningConstants(1.0, 1.0, 0.0, 0.0)
    network = sj.Network(sj.Fleet([1.0, 2.0]), [0.5, 0.5], 3)
    bound = sj.per_round_bound(network, quiet, learning_rate=0.5, rounds=0)
    assert bound.value == 2.0
    with pytest.raises(sj.Unreachable, match="guaranteed=True"):
        sj.rounds_to_accuracy(network, quiet, squared_gradient_norm=0.1)
    horizon = sj.rounds_to_accuracy(network, quiet, squared_gradient_norm=0.1, guaranteed=True)
    assert horizon.learning_rate == sj.max_learning_rate(network, quiet)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"learning_rate": 0.0, "rounds": 1}, "learning_rate must be positive"),
        ({"learning_rate": math.nan, "rounds": 1}, "learning_rate must be positive"),
        ({"learning_rate": "fast", "rounds": 1}, "learning_rate must be positive"),
        ({"learning_rate": 0.1, "rounds": -1}, "rounds must be zero or positive"),
    ],
)
def test_bad_arguments_get_a_sentence(arguments, message):
    network = sj.Network(sj.Fleet([1.0]), [1.0], 2)
    with pytest.raises(sj.InvalidInput, match=message):
        sj.per_round_bound(network, CONSTANTS, **arguments)


@pytest.mark.parametrize(
    "values", [(0.0, 1, 1, 1), (1, -1, 1, 1), (1, 1, -1, 1), (1, 1, 1, math.inf)]
)
def test_bad_constants_get_a_sentence(values):
    with pytest.raises(sj.InvalidInput, match="must be"):
        sj.LearningConstants(*values)

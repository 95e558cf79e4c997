"""Every rule and server optimiser on other arrays than NumPy's, on a device that refuses to mix."""

import array_api_strict as strict
import numpy as np
import pytest
import torch

from sojourn.rules import RULES, Arrival, begin_state
from sojourn.rules.server import SERVERS, Adam, Momentum, Plain

CLIENTS, ARRIVALS = 3, 24
LAYOUT = [("matrix", (2, 3)), ("bias", (2,))]
DIMENSION = 8
DEVICE = strict.Device("device1")
OPTIMISERS = [
    Plain(clip=0.5, weight_decay=0.1, average=0.5),
    Momentum(nesterov=True),
    Adam(),
    Adam(amsgrad=True),
]
OTHERS = [
    RULES["dc-asgd"](decay=0.9),
    RULES["ringmaster-lmo"](norm="muon"),
    RULES["shadowheart"](coordinates=2, messages=2),
    *(RULES["async-sgd"](server=server) for server in OPTIMISERS),
]
EVERY = [*(kind() for kind in RULES.values()), *OTHERS]


def on_strict(values):
    return strict.asarray(values, device=DEVICE)


def from_strict(array):
    return np.asarray(array.to_device(strict.Device("CPU_DEVICE")))


KINDS = {"array-api-strict": (on_strict, from_strict), "torch": (torch.asarray, np.asarray)}


def after_arrivals(rule, make):
    """The last state, and which arrivals were used."""
    random = np.random.default_rng(3)
    state = begin_state(rule, make(np.linspace(-1.0, 1.0, DIMENSION)), CLIENTS, LAYOUT)
    used = []
    for k in range(ARRIVALS):
        arrival = Arrival(
            make(random.normal(size=DIMENSION)),
            make(np.linspace(-1.0, 1.0, DIMENSION) - 0.01 * k),
            client=k % CLIENTS,
            staleness=(0, 0, 0, 1)[k % 4],
            share=0.25,
            divisor=0.75,
            round=k,
            progress=k / ARRIVALS,
            cut=False,
        )
        state, taken = rule.apply(
            state, arrival, learning_rate=0.05, clients=CLIENTS, concurrency=CLIENTS
        )
        used.append(taken)
    return state, used


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", EVERY, ids=repr)
def test_rules_do_the_same_with_any_arrays(rule, kind):
    make, back = KINDS[kind]
    expected, used = after_arrivals(rule, np.asarray)
    found, taken = after_arrivals(rule, make)
    assert taken == used
    assert found.version == expected.version
    assert dict(found.numbers) == pytest.approx(dict(expected.numbers))
    assert type(found.weights) is type(make(np.zeros(1)))
    pairs = [(found.weights, expected.weights), (found.model, expected.model)]
    pairs += [(found.arrays[name], array) for name, array in expected.arrays.items()]
    for other, array in pairs:
        host = other if isinstance(other, np.ndarray) else back(other)
        np.testing.assert_allclose(host, array, rtol=1e-9, atol=1e-12)


def test_every_server_optimiser_is_among_them():
    assert {type(server) for server in OPTIMISERS} == set(SERVERS.values())
    assert any(used for used in after_arrivals(OTHERS[0], np.asarray)[1])

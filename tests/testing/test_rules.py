"""Every rule conforms, and the suite finds what does not."""

import numpy as np
import pytest

from sojourn.errors import InvalidInput
from sojourn.rules import (
    ACE,
    RULES,
    Adam,
    AsyncSGD,
    Cosine,
    FedAsync,
    FedBuff,
    InverseSquareRoot,
    Momentum,
    Plain,
    RoutedSAGA,
    ServerState,
    Steps,
)
from sojourn.testing import check_rule_conforms
from sojourn.testing.rules import check_states

SERVERS = [
    Momentum(nesterov=True, schedule=Cosine(), average=0.3),
    Adam(amsgrad=True, clip=0.5),
    Plain(weight_decay=0.1, schedule=Steps()),
]
KNOBS = [
    *(AsyncSGD(server=server) for server in SERVERS),
    ACE(server=Momentum()),
    AsyncSGD(debias=0.5, cap=1.2),
    FedBuff(buffer_size=3, local_steps=2, proximal=0.1),
    AsyncSGD(local_steps=3, local_learning_rate=0.1),
    RoutedSAGA(local_steps=2, proximal=0.1, server=Momentum()),
    FedAsync(server=Adam(schedule=InverseSquareRoot(rounds=5))),
]


@pytest.mark.parametrize("rule", [*(kind() for kind in RULES.values()), *KNOBS], ids=repr)
def test_every_rule_conforms(rule):
    check_rule_conforms(rule)


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
@pytest.mark.parametrize("name", RULES)
def test_states_conform_with_every_optimiser(name, server):
    check_states(RULES[name](server=server), np.float32)


class Own(AsyncSGD):
    """A rule that goes wrong where a test says so."""

    def apply(self, state, arrival, **run):
        after, used = super().apply(state, arrival, **run)
        return self.spoilt(after, used, arrival)


class InPlace(AsyncSGD):
    def apply(self, state, arrival, *, learning_rate, clients, concurrency):
        state.weights[:] -= learning_rate * arrival.update
        return state.updated(state.weights), True


class OldFashioned(AsyncSGD):
    def apply(self, state, arrival, **run):
        return super().apply(state, arrival, **run)[0]


class Sharing(AsyncSGD):
    TABLE = np.zeros(3)

    def begin(self, weights, clients):
        return ServerState(weights, 0, {"table": self.TABLE})


class Unknown(AsyncSGD):
    def begin(self, weights, clients):
        return ServerState(weights, arrays={"losses": np.full(clients, np.nan)})


class Widening(Own):
    def spoilt(self, state, used, arrival):
        return state._replace(weights=state.weights.astype(np.float64)), used


class Erratic(Own):
    COUNT = iter(range(10**6))

    def spoilt(self, state, used, arrival):
        return state.remembering(count=next(self.COUNT)), used


class Wordy(Own):
    def spoilt(self, state, used, arrival):
        return state.remembering(last="a word"), used


class Denying(Own):
    def spoilt(self, state, used, arrival):
        return state, False


class Remembering(Own):
    """Keeps outside of its state what it depends on."""

    def begin(self, weights, clients):
        self.__dict__["seen"] = 0
        return super().begin(weights, clients)

    def spoilt(self, state, used, arrival):
        self.__dict__["seen"] += 1
        weights = state.weights * np.float32(1 + 1e-3 * (self.seen // 2 % 5))
        return state._replace(weights=weights), used


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (InPlace(), "must not change weights in place"),
        (OldFashioned(), "must return a ServerState and whether"),
        (Sharing(), "'table' of its own"),
        (Unknown(), "arrays must be finite.* 'losses' is not"),
        (Widening(), "must stay float32"),
        (Erratic(), "must make the same state"),
        (Wordy(), "'last' is 'a word'"),
        (Denying(), "a dropped arrival must make no version"),
        (Remembering(), "must make the same state"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, AsyncSGD) else "",
)
def test_what_does_not_conform_is_found(rule, words):
    with pytest.raises(AssertionError, match=words):
        check_rule_conforms(rule)


def test_a_class_is_no_rule():
    with pytest.raises(InvalidInput, match=r"not its class: write AsyncSGD\(\)"):
        check_rule_conforms(AsyncSGD)

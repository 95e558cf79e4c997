"""Clipping and noise of a rule in virtual time, and the privacy that a run has spent."""

import math
from pathlib import Path

import numpy as np
import pytest

from sojourn.errors import InvalidInput
from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.rules import AsyncSGD, FedBuff, Rule, rule_from_table, rule_to_table
from sojourn.rules.privacy import Privacy
from sojourn.runs.history import History
from sojourn.simulation.simulate import simulate
from sojourn.training.replay.replay import replay
from tests.commands import Commands
from tests.deployment.test_server import problem

CLIENTS, ROUNDS = 3, 40
FLEET = Fleet([1.0, 2.0, 4.0])
SCHEDULE = simulate(Network(FLEET, uniform_routing(FLEET), 3), rounds=ROUNDS, seed=0)
RULES = [
    AsyncSGD(privacy_clip=0.5, privacy_noise=1.0),
    FedBuff(buffer_size=4, privacy_clip=0.5, privacy_noise=1.0),
]


def trained(rule: Rule, seed: int = 0, batched: bool | None = False) -> History:
    given = {"learning_rate": 0.05, "seed": seed, "evaluate_every": 10, "batched": batched}
    return replay(SCHEDULE, problem(CLIENTS, 0), rule, **given)


@pytest.mark.parametrize("rule", RULES)
def test_epsilon_is_that_of_the_client_that_answered_most(rule: Rule) -> None:
    history = trained(rule)
    clients = np.asarray(SCHEDULE.client)
    privacy = Privacy(clip=0.5, noise=1.0)
    expected = [
        privacy.epsilon(int(np.bincount(clients[:done]).max()) if done else 0)
        for done in history.round.tolist()
    ]
    np.testing.assert_allclose(history.metrics["epsilon"], expected)
    assert (np.diff(history.metrics["epsilon"]) > 0).all()


@pytest.mark.parametrize("rule", RULES)
def test_the_same_seed_gives_the_same_noise(rule: Rule) -> None:
    first, again, other = trained(rule), trained(rule), trained(rule, seed=1)
    assert first.weights is not None and again.weights is not None and other.weights is not None
    np.testing.assert_array_equal(first.weights, again.weights)
    assert not np.array_equal(first.weights, other.weights)


def test_updates_are_clipped_and_the_noise_has_its_size() -> None:
    """All gradients are far larger than the clip, so that steps are of its length, and noise beside."""
    quiet = trained(AsyncSGD(privacy_clip=1e-3, privacy_noise=1e-9))
    loud = trained(AsyncSGD(privacy_clip=1e-3, privacy_noise=5.0))
    start = problem(CLIENTS, 0).initial_weights().numpy()
    assert quiet.weights is not None and loud.weights is not None
    assert np.linalg.norm(quiet.weights - start) <= 1.01 * ROUNDS * 0.05 * 1e-3
    noise = (loud.weights - start).astype(np.float64)
    deviation = 0.05 * 5.0 * 1e-3 * math.sqrt(ROUNDS)
    z = (np.mean(noise**2) / deviation**2 - 1.0) / math.sqrt(2.0 / noise.size)
    assert abs(z) < 5


def test_a_rule_says_its_privacy_in_a_table() -> None:
    rule = AsyncSGD(privacy_clip=0.5, privacy_noise=1.0)
    assert rule_from_table(rule_to_table(rule)) == rule
    assert AsyncSGD().privacy is None
    with pytest.raises(
        InvalidInput, match="both privacy_clip, the largest norm of an update, and privacy_noise"
    ):
        AsyncSGD(privacy_clip=0.5)


def test_an_experiment_has_epsilon_in_its_history(commands: Commands, tmp_path: Path) -> None:
    FLEET.to_csv(tmp_path / "fleet.csv")
    (tmp_path / "experiment.toml").write_text(
        'fleet = "fleet.csv"\nrounds = 12\ndata = "digits"\nmodel = "linear"\nseeds = 1\n'
        'threads = 1\nbatched = false\nconcurrency = 3\nlearning-rate = 0.1\n[[strategy]]\nname = "private"\n'
        'rule = { name = "async-sgd", privacy-clip = 1.0, privacy-noise = 2.0 }\n'
    )
    done = commands.run(tmp_path, "train", "experiment.toml", "--out", "run")
    assert done.code == 0, done.error
    (history,) = History.read(tmp_path / "run" / "history.jsonl")
    assert history.metrics["epsilon"][-1] > 0

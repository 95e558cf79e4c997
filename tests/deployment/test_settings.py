"""Run configurations: what they mean, and what is said about wrong ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sojourn.deployment.client import build
from sojourn.deployment.run import make_dispatcher
from sojourn.deployment.settings import Settings, read_settings
from sojourn.dispatch import NeverQueue, Routed
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.fleet import Fleet
from sojourn.planning import plan
from sojourn.planning.objectives import PerTime
from sojourn.rules import AsyncSGD, Cosine, FedBuff, Momentum
from sojourn.strategy import Strategy
from sojourn.theory.constants import LearningConstants
from tests.deployment.digits_task import Softmax, shares
from tests.deployment.test_rates import dispatcher
from tests.deployment.virtual_clock import VirtualClients

LEAST = {"clients": 3, "updates": 10, "learning-rate": 0.1}


def read(folder: Path, **config: Any) -> Settings:
    return read_settings({**LEAST, **{k.replace("_", "-"): v for k, v in config.items()}}, folder)


def write_plan(folder: Path, rates: list[float], names: list[str] | None = None) -> None:
    objective = PerTime(LearningConstants(15, 1, 3, 10), learning_rate=0.01, rounds=0)
    plan(Fleet(rates, names=names), objective, concurrency=6).write(folder / "plan.toml", Routed())


def test_little_must_be_said(tmp_path: Path) -> None:
    settings = read(tmp_path)
    assert settings.strategy.concurrency == 3
    assert settings.strategy.rule.name == "generalized-async-sgd"
    assert settings.strategy.network.client_routing.tolist() == pytest.approx([1 / 3] * 3)
    assert settings.replan() is None


def test_a_rule_may_be_a_table_and_own_keys_are_let_be(tmp_path: Path) -> None:
    config = {"rule.name": "fedbuff", "rule.buffer-size": 4, "task.hidden": 32}
    settings = read_settings({**LEAST, **config}, tmp_path)
    assert settings.strategy.rule == FedBuff(buffer_size=4)
    assert settings.task == {"hidden": 32}


def test_a_task_is_told_what_it_asks_for() -> None:
    told: dict[str, Any] = {}

    def curious(clients: int, seed: int, config: dict[str, Any], client: int | None) -> Softmax:
        told.update(config=config, client=client)
        return Softmax(*shares(clients)[0])

    build(curious, 3, 0, 2, {"hidden": 32})
    assert told == {"config": {"hidden": 32}, "client": 2}
    build(lambda clients, seed: Softmax(*shares(clients)[0]), 3, 0, 2, {"hidden": 32})


def test_a_rule_may_have_an_optimiser_at_the_server(tmp_path: Path) -> None:
    config = {
        "rule": "async-sgd",
        "rule.debias": 0.5,
        "rule.server.name": "momentum",
        "rule.server.beta": 0.5,
        "rule.server.schedule.name": "cosine",
    }
    settings = read_settings({**LEAST, **config}, tmp_path)
    assert settings.strategy.rule == AsyncSGD(
        debias=0.5, server=Momentum(beta=0.5, schedule=Cosine())
    )
    with pytest.raises(InvalidFile, match="'server' as 'adam', too"):
        read_settings({**LEAST, "rule.server": "adam", "rule.server.beta": 0.5}, tmp_path)


def test_a_rule_of_ones_own_lies_beside_the_settings(tmp_path: Path) -> None:
    (tmp_path / "rule_beside_settings.py").write_text(
        "from sojourn.rules import AsyncSGD\nclass Own(AsyncSGD):\n    name = 'own'\n"
    )
    settings = read_settings({**LEAST, "rule": "rule_beside_settings:Own"}, tmp_path)
    assert settings.strategy.rule.name == "own"


def test_a_policy_is_the_rules_or_ones_own_choice(tmp_path: Path) -> None:
    assert read(tmp_path).strategy.policy == Routed()
    assert read(tmp_path, policy="", rule="ringmaster").strategy.policy == NeverQueue()
    settings = read(tmp_path, policy="never-queue", concurrency=2, routing="uniform")
    assert (settings.strategy.policy, settings.strategy.concurrency) == (NeverQueue(), 2)
    assert make_dispatcher(Softmax(*shares(3)[0]), settings, depth=2).router.policy == NeverQueue()
    (tmp_path / "policy_beside_settings.py").write_text(
        "from dataclasses import dataclass\nfrom sojourn.dispatch import Idle\n"
        "@dataclass(frozen=True)\nclass Own(Idle):\n    name = 'own'\n    patience: int = 1\n"
    )
    config = {"policy.name": "policy_beside_settings:Own", "policy.patience": 4}
    own: Any = read_settings({**LEAST, **config}, tmp_path).strategy.policy
    assert (own.name, own.patience) == ("own", 4)


def test_a_tuned_strategy_brings_its_rule_and_policy(tmp_path: Path) -> None:
    objective = PerTime(LearningConstants(15, 1, 3, 10), learning_rate=0.01, rounds=0)
    made = plan(Fleet([0.1, 0.5, 1.0]), objective, concurrency=2)
    tuned = replace(Strategy.of_plan(made), rule=AsyncSGD(debias=0.5))
    tuned.write(tmp_path / "strategy.toml")
    config = {"clients": 3, "updates": 10, "strategy": "strategy.toml"}
    settings = read_settings({**config, "rule": "", "adapt": True}, tmp_path)
    assert (settings.strategy.rule, settings.strategy.policy) == (
        AsyncSGD(debias=0.5),
        NeverQueue(),
    )
    assert (settings.strategy.concurrency, settings.replan()) == (2, None)
    other = read_settings({**config, "rule": "ringmaster"}, tmp_path)
    assert other.strategy.rule.name == "ringmaster"


def test_policies_that_cannot_be_followed_are_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="'restart' waits for whole cohorts or stops tasks"):
        read_settings({**LEAST, "policy.name": "restart", "policy.max-staleness": 5}, tmp_path)
    with pytest.raises(InvalidFile, match="did you mean 'never-queue'"):
        read(tmp_path, policy="never-que")
    write_plan(tmp_path, [0.1, 0.5, 1.0])
    for config in ({"plan": "plan.toml"}, {"routing": "balanced", "adapt": True}):
        with pytest.raises(InvalidFile, match="not chosen by a routing"):
            read(tmp_path, policy="never-queue", **config)


def test_a_plan_gives_fleet_routing_concurrency_and_rate(tmp_path: Path) -> None:
    write_plan(tmp_path, [0.1, 0.5, 1.0], names=["old", "new", "newest"])
    settings = read_settings({"clients": 3, "updates": 10, "plan": "plan.toml"}, tmp_path)
    assert settings.strategy.concurrency == 6
    assert settings.learning_rate == 0.01
    assert settings.rates_known
    assert settings.strategy.network.fleet.names == ("old", "new", "newest")
    p = settings.strategy.network.client_routing
    assert p[0] < p[1] < p[2]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"updates": 0}, "'updates' must be at least 1; it is 0"),
        ({"depht": 2}, "did you mean 'depth'"),
        ({"learning_rate": -1.0}, "a learning rate must be positive"),
        ({"fleet": "fleet.csv"}, "the fleet has 2"),
        ({"fleet": "absent.csv"}, "cannot be read"),
        ({"routing": "balanced"}, "adapt = true"),
        ({"plan": "plan.toml", "routing": "uniform"}, "leave these two out"),
        ({"adapt": "yes"}, "'adapt' must be true or false"),
    ],
)
def test_mistakes_are_said(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    (tmp_path / "fleet.csv").write_text("service_rate\n1\n2\n")
    with pytest.raises(InvalidFile, match=said):
        read(tmp_path, **config)


def test_unknown_rules_and_routings_are_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="did you mean 'fedasync'"):
        read(tmp_path, rule="fedasyn")
    with pytest.raises(InvalidFile, match="did you mean 'balanced'"):
        read(tmp_path, routing="balancd", adapt=True)


def test_a_routing_of_ones_own_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "fleet.csv").write_text("service_rate\n1\n2\n3\n")
    (tmp_path / "mine.csv").write_text("routing\n0.5\n0.25\n0.25\n")
    settings = read(tmp_path, fleet="fleet.csv", routing="mine.csv")
    assert settings.strategy.network.client_routing.tolist() == [0.5, 0.25, 0.25]
    with pytest.raises(InvalidFile, match=r"'mine.csv' does not say how"):
        read(tmp_path, fleet="fleet.csv", routing="mine.csv", adapt=True)


@pytest.mark.slow
def test_adapting_a_plan_moves_its_routing_after_a_slowdown(tmp_path: Path) -> None:
    """The plan's own objective, optimised again at estimated speeds, within 30 completions."""
    write_plan(tmp_path, [0.5, 0.5, 0.5])
    settings = read_settings(
        {"clients": 3, "updates": 10, "plan": "plan.toml", "adapt": True}, tmp_path
    )
    replan = settings.replan()
    assert replan is not None
    ideal = replan(np.array([0.05, 0.5, 0.5]))
    server = dispatcher(replan=replan, replan_every=20)
    world = VirtualClients(server, [2.0, 2.0, 2.0], seed=2)
    world.begin()
    for _ in range(200):
        world.step()
    before = server.router.routing[0]
    assert ideal[0] < 0.7 * before
    world.seconds[0] = 20.0
    completions = world.completions[0]
    while server.router.routing[0] > (before + ideal[0]) / 2:
        world.step()
        assert world.completions[0] - completions <= 30

"""One owner of what is run: a strategy file means the same to every command, or is refused alike."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import sojourn as sj
from sojourn._support.configuration import Table
from sojourn.cli import app
from sojourn.deployment.settings import read_settings
from sojourn.dispatch import POLICIES, policy_to_table
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.rules import rule_from_table
from sojourn.runs.folder import RunFolder
from sojourn.strategy import Choices, Strategy, read_strategies
from sojourn.training.experiment.experiment import Experiment, experiment_from_table

FLEET = sj.Fleet([0.5, 1.0, 4.0], counts=[2, 2, 2], names=["slow", "middle", "fast"])
WAYS: dict[str, dict[str, Any]] = {
    "routed": {"rule": "generalized-async-sgd", "routing": "square-root"},
    "never-queue": {"rule": {"name": "async-sgd", "debias": 0.25}},
    "idle": {"rule": {"name": "fedbuff", "buffer-size": 3}},
    "shuffled": {"rule": "shuffled-async-sgd"},
    "synchronous": {"rule": {"name": "fedavg", "local-steps": 3}},
    "restart": {"rule": {"name": "ringmaster", "max-staleness": 5}, "max-staleness": 5},
    "first-of": {"rule": {"name": "m-synchronous", "first": 2}, "first": 2},
    "attempts": {"rule": {"name": "mindflayer", "attempts": 6}, "attempts": 1},
}


def made(policy: str, folder: Path) -> Strategy:
    """A strategy of that policy in a world that is not the usual one, and its file."""
    given = dict(WAYS[policy])
    rule, routing = given.pop("rule"), given.pop("routing", None)
    strategy = Strategy.resolve(
        Choices(
            policy={"name": policy, **given},
            rule=rule,
            routing=routing,
            concurrency=4,
            learning_rate=0.03,
            law=(sj.Law("lognormal", sigma=0.5),),
        ),
        fleet=FLEET,
        name=f"by {policy}",
    )
    strategy.write(folder / "strategy.toml", evidence={"seeds": 3})
    FLEET.to_csv(folder / "fleet.csv")
    return strategy


def parts(strategy: Strategy) -> tuple[Any, ...]:
    """What a strategy is, but for its name."""
    return (
        strategy.policy,
        strategy.rule,
        strategy.scenario.law,
        strategy.concurrency,
        strategy.learning_rates,
    )


def test_every_policy_has_a_way_here() -> None:
    assert set(WAYS) == set(POLICIES)


@pytest.mark.parametrize("policy", WAYS)
def test_one_file_means_the_same_to_every_command(policy: str, tmp_path: Path) -> None:
    meant = made(policy, tmp_path)
    again = Strategy.read(tmp_path / "strategy.toml")
    assert again == meant and hash(again) == hash(meant)
    assert again.origin.evidence == {"seeds": 3}

    simulated = CliRunner().invoke(
        app,
        [
            "simulate",
            str(tmp_path / "strategy.toml"),
            "--rounds",
            "50",
            "--replicates",
            "2",
            "--json",
        ],
    )
    assert simulated.exit_code == 0, simulated.output
    found = json.loads(simulated.stdout)
    assert (found["policy"], found["rule"]) == (policy, meant.rule.name)
    assert (found["law"], found["concurrency"]) == ("lognormal(sigma=0.5)", 4)
    assert found["work"] == meant.rule.local_steps

    values = {
        "fleet": "fleet.csv",
        "time": 5.0,
        "law": "lognormal(sigma=0.5)",
        "strategies": ["strategy.toml"],
    }
    trained = experiment_from_table(Table(dict(values), "e.toml"), tmp_path)
    tuned = experiment_from_table(Table(dict(values), "e.toml"), tmp_path, to_tune=True)
    assert parts(trained.strategies[0]) == parts(tuned.strategies[0]) == parts(meant)

    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    texts = {s.slug: s.origin.file_text or "" for s in trained.strategies}
    run.begin(trained.to_table(), fleet=FLEET, plans=texts)
    (reported,), _ = read_strategies(
        Table({k: v for k, v in run.experiment.items() if k in ("strategy", "law")}, "run"),
        FLEET,
        run.path,
    )
    assert parts(reported) == parts(meant)
    assert parts(Experiment.read(run.experiment_path).strategies[0]) == parts(meant)

    config = {"clients": 6, "updates": 10, "strategy": "strategy.toml"}
    reason = meant.not_deployable()
    if reason is None:
        deployed = read_settings(config, tmp_path)
        assert (deployed.strategy.policy, deployed.strategy.rule) == (meant.policy, meant.rule)
        assert (deployed.strategy.concurrency, deployed.learning_rate) == (4, 0.03)
    else:
        with pytest.raises(InvalidFile) as refused:
            read_settings(config, tmp_path)
        assert reason in str(refused.value)


def test_a_choice_is_the_strategys_then_the_files_then_the_experiments(tmp_path: Path) -> None:
    made("never-queue", tmp_path)
    entry = Table({"routing": "strategy.toml", "concurrency": 2}, "e.toml: [[strategy]]")
    experiment = Choices(
        concurrency=6, learning_rate=0.5, policy="idle", law=(sj.Law("lognormal", sigma=0.5),)
    )
    found = Strategy.from_table(entry, FLEET, experiment, tmp_path)
    assert (found.concurrency, found.learning_rates, found.policy.name) == (
        2,
        (0.03,),
        "never-queue",
    )
    plain = Strategy.from_table(Table({"rule": "fedbuff"}, "e"), FLEET, experiment, tmp_path)
    assert (plain.concurrency, plain.policy.name) == (6, "idle")
    usual = Strategy.from_table(Table({"rule": "fedavg"}, "e"), FLEET, Choices(), tmp_path)
    assert usual.policy.name == "synchronous"


def test_a_file_made_for_another_world_is_refused_in_an_experiment(tmp_path: Path) -> None:
    made("never-queue", tmp_path)
    values = {"fleet": "fleet.csv", "time": 5.0, "strategies": ["strategy.toml", "uniform"]}
    values["learning-rate"] = 0.1
    with pytest.raises(
        InvalidFile,
        match=r"made for law = lognormal\(sigma=0.5\), but here it would meet exponential",
    ):
        experiment_from_table(Table(values, "e.toml"), tmp_path)


def test_old_plan_files_of_tune_are_still_read(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        "concurrency = 2\nlearning-rate = 0.02\nclasses = [\n"
        "  { count = 3, service-rate = 1.0, routing = 0.3333333333333333 },\n]\n\n"
        '[strategy]\npolicy = "synchronous"\n[strategy.rule]\nname = "fedavg"\nlocal-steps = 2\n\n'
        '[evidence]\ncriterion = "final loss"\nscore = 0.2\nseeds = 5\n\n'
        "[predicted]\nvalue = 0.2\n\n[provenance]\n"
    )
    strategy = Strategy.read(tmp_path / "plan.toml")
    assert strategy.rule == rule_from_table({"name": "fedavg", "local-steps": 2})
    assert (strategy.policy.name, strategy.concurrency) == ("synchronous", 2)
    with pytest.raises(InvalidFile, match="a strategy, not a plan"):
        sj.Plan.read(tmp_path / "plan.toml")


def test_a_plan_recommends_never_queue_unless_told_to_route(tmp_path: Path) -> None:
    plan = sj.plan(FLEET, sj.NoiseRate())
    best = Strategy.of_plan(plan)
    assert best.policy == sj.NeverQueue()
    plan.write(tmp_path / "plan.toml")
    assert Strategy.read(tmp_path / "plan.toml").policy == sj.NeverQueue()
    plan.write(tmp_path / "routed.toml", sj.Routed())
    routed = Strategy.read(tmp_path / "routed.toml")
    assert routed.policy == sj.Routed() and routed.network == plan.network
    assert sj.Plan.read(tmp_path / "plan.toml").network == plan.network
    slow_server = sj.plan(FLEET, sj.NoiseRate(), server_rate=9.0)
    assert Strategy.of_plan(slow_server).policy == sj.Routed()


def test_a_fleet_needs_a_concurrency_and_zero_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="needs a concurrency"):
        Strategy.read("three-clusters")
    made("routed", tmp_path)
    for arguments in (["three-clusters"], [str(tmp_path / "strategy.toml")]):
        refused = CliRunner().invoke(app, ["simulate", *arguments, "--concurrency", "0"])
        assert refused.exit_code != 0
        assert "at least 1" in str(refused.exception)


def test_a_law_beside_a_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("duration\n1\n2\n")
    command = ["simulate", "three-clusters", "--concurrency", "3", "--law", "pareto"]
    refused = CliRunner().invoke(app, [*command, "--trace", str(tmp_path / "t.csv")])
    assert "a law by itself" in str(refused.exception)


def test_policies_are_written_so_that_they_are_read(tmp_path: Path) -> None:
    for policy in WAYS:
        strategy = made(policy, tmp_path)
        written = (tmp_path / "strategy.toml").read_text()
        assert str(policy_to_table(strategy.policy)) in written or f'name = "{policy}"' in written

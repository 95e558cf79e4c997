"""What a finished deployment leaves behind, beside what theory had in store for it.

The folder gets the files that ``sojourn train`` writes (``experiment.toml``, ``history.jsonl``,
``summary.json``), so that ``sojourn report`` shows a deployment like any other run.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import tomli_w

from sojourn.deploy.dispatcher import Dispatcher
from sojourn.deploy.journal import STRATEGY
from sojourn.deploy.settings import Settings
from sojourn.files import replacing
from sojourn.history import History
from sojourn.network import Fleet, Network
from sojourn.provenance import provenance
from sojourn.rules import rule_to_table
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.simulate import simulate
from sojourn.train import Problem
from sojourn.train.experiment.experiment import Experiment
from sojourn.train.experiment.strategy import Strategy
from sojourn.train.experiment.summary import summarize, summarize_strategy
from sojourn.train.replay.replay import replay

PREDICTED = "predicted"


def measured_network(dispatcher: Dispatcher) -> Network:
    """The clients at the speeds that were measured, with the routing in force at the end.

    Rates are per gradient, as everywhere in a fleet: a task of k local steps is k of them. Where a
    client has one task at a time, tasks are never more than there are clients.
    """
    steps = dispatcher.rule.local_steps
    rates = [steps * client.estimate.rate() for client in dispatcher.clients]
    fleet = Fleet(rates, names=[client.name for client in dispatcher.clients])
    in_flight = dispatcher.concurrency
    if dispatcher.router.policy.one_task_each:
        in_flight = min(in_flight, fleet.size)
    return Network(fleet, dispatcher.router.routing, in_flight)


def predict(
    dispatcher: Dispatcher, problem: Problem, settings: Settings, *, evaluate_every: int
) -> History:
    """The same plan in virtual time, at the measured speeds, for the same number of rounds."""
    schedule = simulate(
        measured_network(dispatcher),
        rounds=dispatcher.counts.completed,
        policy=dispatcher.router.policy,
        work=settings.rule.local_steps,
        seed=settings.seed,
    )
    history = replay(
        schedule,
        problem,
        settings.rule,
        learning_rate=settings.learning_rate,
        seed=settings.seed,
        evaluate_every=evaluate_every,
        strategy=PREDICTED,
    )
    return dataclasses.replace(history, weights=None)


def write_outcome(
    folder: Path,
    dispatcher: Dispatcher,
    settings: Settings,
    histories: list[History],
    *,
    problem_name: str,
) -> None:
    """Write the files of a run folder."""
    network = measured_network(dispatcher)
    network.fleet.to_csv(folder / "fleet.csv")
    scenario = Scenario(policy=dispatcher.router.policy, work=settings.rule.local_steps)
    strategies = tuple(
        Strategy(
            name=history.strategy,
            routing=network.routing.tolist(),
            network=network,
            rule=settings.rule,
            learning_rates=(settings.learning_rate,),
            scenario=scenario,
        )
        for history in histories
    )
    experiment = Experiment(
        fleet_name="fleet.csv",
        fleet=network.fleet,
        strategies=strategies,
        seeds=(settings.seed,),
        pilot_seeds=(),
        rounds=dispatcher.counts.completed,
        problem=problem_name,
        evaluate_every=settings.evaluate_every,
    )
    table = experiment.to_table()
    table["strategy"] = [entry for entry in table["strategy"] if entry["name"] != STRATEGY] or [
        {**table["strategy"][0], "name": PREDICTED}
    ]
    entries = [
        summarize_strategy(
            strategy,
            [history],
            learning_rate=settings.learning_rate,
            targets=experiment.targets,
            pilots={},
        )
        for strategy, history in zip(strategies, histories, strict=True)
    ]
    origin = provenance(
        rule=rule_to_table(settings.rule),
        clients=settings.clients,
        seed=settings.seed,
        adapt=settings.adapt,
        counts=dispatcher.counts.to_dict(),
    )
    History.write(folder / "history.jsonl", histories)
    with replacing(folder / "experiment.toml") as temporary:
        temporary.write_text(tomli_w.dumps(table), encoding="utf-8")
    with replacing(folder / "summary.json") as temporary:
        summary = summarize(experiment, entries, origin)
        temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    if settings.plan is not None:
        with replacing(folder / "plans" / f"{STRATEGY}.toml") as temporary:
            temporary.write_text(settings.plan.read_text(encoding="utf-8"), encoding="utf-8")
    with replacing(folder / "weights.npy") as temporary, temporary.open("wb") as file:
        np.save(file, dispatcher.state.weights, allow_pickle=False)

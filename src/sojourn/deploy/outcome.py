"""What a finished deployment leaves behind, beside what theory had in store for it.

The folder is one like those that ``sojourn train`` writes, so that ``sojourn report`` shows a deployment like any other run.
"""

import dataclasses
from pathlib import Path

import numpy as np

from sojourn.deploy.dispatcher import Dispatcher
from sojourn.deploy.journal import STRATEGY
from sojourn.deploy.problems import Learnable
from sojourn.deploy.settings import Settings
from sojourn.dispatch import policy_to_table
from sojourn.history import History
from sojourn.network import Fleet, Network
from sojourn.provenance import provenance
from sojourn.rules import rule_to_table
from sojourn.runfolder import FLEET, RunFolder
from sojourn.simulation.simulate import simulate
from sojourn.summary import summarize, summarize_strategy
from sojourn.train import Problem
from sojourn.train.replay.replay import replay

PREDICTED = "predicted"


def measured_network(dispatcher: Dispatcher) -> Network:
    """The clients at the speeds that were measured, with the routing in force at the end.

    Rates are per gradient, as everywhere in a fleet: a task of k local steps is k of them. Where a
    client has one task at a time, tasks are never more than there are clients.
    """
    steps = dispatcher.rule.local_steps
    rates = [steps * client.estimate.rate() for client in dispatcher.clients]
    names = [client.name for client in dispatcher.clients]
    weights = dispatcher.router.client_weights
    told = None if np.all(weights == weights[0]) else weights
    fleet = Fleet(rates, names=names, weight=told)
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
    problem: Learnable | None = None,
) -> None:
    """Write the folder of a run: what happened, and the experiment that predicts it."""
    network, policy = measured_network(dispatcher), dispatcher.router.policy
    plan = settings.plan
    written = RunFolder(folder)
    written.begin(
        {
            "fleet": FLEET,
            "problem": problem_name,
            "rounds": dispatcher.counts.completed,
            "seeds": [settings.seed],
            "evaluate-every": settings.evaluate_every,
            "strategy": [
                {
                    "name": PREDICTED,
                    **({"routing": network.routing.tolist()} if policy.routes else {}),
                    "rule": rule_to_table(settings.rule),
                    "concurrency": network.concurrency,
                    "learning-rate": settings.learning_rate,
                    "policy": policy_to_table(policy),
                }
            ],
        },
        fleet=network.fleet,
        plans={} if plan is None else {STRATEGY: plan.read_text(encoding="utf-8")},
    )
    entries = [
        summarize_strategy(
            history.strategy,
            [history],
            network=network,
            rule=settings.rule,
            law="exponential" if history.strategy == PREDICTED else "measured",
            policy=policy,
            learning_rate=settings.learning_rate,
            targets=None,
        )
        for history in histories
    ]
    origin = provenance(
        rule=rule_to_table(settings.rule),
        clients=settings.clients,
        seed=settings.seed,
        adapt=settings.adapt,
        counts=dispatcher.counts.to_dict(),
    )
    written.write_history(histories)
    written.write_summary(summarize(problem_name, entries, origin))
    written.write_weights(dispatcher.state.model)
    if isinstance(problem, Problem):
        written.write_state(problem.state_arrays(dispatcher.state.model))

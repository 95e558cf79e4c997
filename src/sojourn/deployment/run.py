"""One run of a deployment: from its settings to what it leaves in its folder."""

import dataclasses
import math
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sojourn._support.files import alone_in
from sojourn._support.memory import holding_little
from sojourn._support.provenance import provenance
from sojourn._support.user_modules import sources_of
from sojourn.deployment.client import Learnable, ProblemFunction, build, folder_of
from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.export import CHECKPOINT
from sojourn.deployment.guard.screens import Gradient
from sojourn.deployment.journal import STRATEGY, Journal
from sojourn.deployment.processes import handling
from sojourn.deployment.server import LARGE_BYTES, Server
from sojourn.deployment.settings import Settings, client_names
from sojourn.deployment.speeds import Deadlines
from sojourn.deployment.tasks import Event
from sojourn.deployment.transport import Transport
from sojourn.dispatch import policy_to_table
from sojourn.errors import InvalidInput, SojournError
from sojourn.fleet import Fleet, Network
from sojourn.rules import rule_to_table
from sojourn.rules.state import client_steps, steps_of
from sojourn.runs.folder import FLEET, RunFolder
from sojourn.runs.history import History
from sojourn.types import Vector

if TYPE_CHECKING:
    from sojourn.training import Problem

PREDICTED = "predicted"
HELD_BESIDE = 4
"""Times the weights, beside the versions in flight: a message as Flower holds it twice, the version that is
evaluated, and the next one while it is made."""


def serve(
    transport: Transport,
    problem: ProblemFunction,
    settings: Settings,
    *,
    depth: int = 2,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Run to the end, and write the outcome into the run folder; whether the end was reached.

    ``depth`` is how many messages one client may have, unless the settings say. On SIGTERM the run is
    written to its checkpoint, to be resumed, and left.
    """
    folder = settings.run_folder
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as run:
        run.enter_context(alone_in(folder))
        learnable = build(problem, settings.clients, settings.seed, None, settings.task)
        settings = with_known_steps(settings, learnable)
        dispatcher = make_dispatcher(learnable, settings, depth=depth)
        begun = (folder / CHECKPOINT).exists()
        if begun and not settings.resume:
            raise InvalidInput(
                f"'{folder}' holds a run already. Resume it (resume = true), or name another "
                "run-folder."
            )
        journal = Journal(dispatcher, learnable, settings, resume=begun)
        run.callback(journal.close)
        if settings.metrics_port:
            run.callback(_serve_metrics(journal, settings))
        if settings.resume and not begun:
            journal.event(Event("failed", None, "no checkpoint yet: the run begins anew"), 0.0)
        server = Server(transport, dispatcher, journal, settings, clock=clock)
        with ExitStack() as loop:
            loop.enter_context(handling(lambda number, frame: server.stop(), signal.SIGTERM))
            if dispatcher.state.weights.nbytes > LARGE_BYTES:
                loop.enter_context(holding_little())
                journal.event(Event("note", None, _said_of_size(dispatcher, settings)), 0.0)
            finished = server.run()
        if finished:
            finish(journal, problem, elapsed=server.elapsed)
            journal.status(server.elapsed, "finished")
        return finished


def _said_of_size(dispatcher: Dispatcher, settings: Settings) -> str:
    """What a large model will ask of the server and the network."""
    size = dispatcher.state.weights.nbytes
    kept = sum(array.nbytes for array in dispatcher.state.arrays.values())
    held = (settings.strategy.concurrency + HELD_BESIDE) * size + kept
    travels = 2 * size / (2 if settings.wire == "bfloat16" else 1)
    return (
        f"the model has {size / 1e6:,.0f} MB: the server holds up to {held / 1e6:,.0f} MB of weights, "
        f"messages included, and an update sends {travels / 1e6:,.0f} MB there and back together"
    )


def _serve_metrics(journal: Journal, settings: Settings) -> Callable[[], None]:
    """Serve what the journal's status says; what ends that."""
    from sojourn.deployment.metrics import serve_metrics

    host, port = settings.metrics_host, settings.metrics_port
    try:
        return serve_metrics(lambda: journal.last_status, host, port)
    except OSError as error:
        raise InvalidInput(
            f"metrics cannot be served at {host}:{port} ({error.strerror}). Name another metrics-port "
            "or metrics-host."
        ) from error


def with_known_steps(settings: Settings, problem: Learnable) -> Settings:
    """``settings`` with local epochs as steps, where the problem knows the samples of every client.

    Otherwise clients count their steps themselves, and the speeds of a fleet, which are those of one
    step, say nothing about tasks.
    """
    strategy = settings.strategy
    if strategy.local_epochs is None:
        return settings
    sizes = getattr(problem, "train_sizes", None)
    if sizes is None or len(sizes) != settings.clients:
        return dataclasses.replace(settings, rates_known=False)
    batch_size = int(getattr(problem, "batch_size", 1))
    return dataclasses.replace(settings, strategy=strategy.with_samples(sizes, batch_size))


def check_buffers(problem: Learnable) -> None:
    """Refuse buffers that would stay as the model came with them."""
    if getattr(problem, "has_buffers", False) and getattr(problem, "buffers", "") != "recompute":
        raise InvalidInput(
            "the model has buffers that training changes, such as the running statistics of batch "
            "normalisation. A server does not receive those of its clients: let the problem say "
            "buffers='recompute', by which the server computes them on samples of its own."
        )


def make_dispatcher(problem: Learnable, settings: Settings, *, depth: int) -> Dispatcher:
    """The dispatcher that ``settings`` describe."""
    check_buffers(problem)
    shapes: Mapping[str, Sequence[int]] = getattr(problem, "parameter_shapes", {})
    strategy, network = settings.strategy, settings.strategy.network
    rates = network.fleet.expand(network.fleet.service_rates)
    rates = rates / client_steps(strategy.rule, network.size)
    return Dispatcher(
        np.asarray(problem.initial_weights()).copy(),
        rule=strategy.rule,
        layout=[(name, tuple(shape)) for name, shape in shapes.items()],
        routing=network.client_routing,
        concurrency=strategy.concurrency,
        learning_rate=settings.learning_rate,
        policy=strategy.policy,
        depth=settings.depth or depth,
        service_rates=rates if settings.rates_known else None,
        names=client_names(network.fleet),
        listed=settings.listed,
        client_weights=network.fleet.expand(network.fleet.relative_weights),
        replan=settings.replan(),
        replan_every=settings.replan_every,
        patience=settings.patience,
        guard=settings.guard,
        reference=reference_gradient(problem, settings),
        deadlines=Deadlines(
            shortest=settings.shortest_deadline,
            first=settings.first_deadline,
            longest=settings.longest_deadline or math.inf,
        ),
        privacy=settings.privacy,
        updates=settings.updates,
        seed=settings.seed,
        # Clients are sent the seed: what protects from them must not follow from it.
        key=secrets.token_bytes(16),
    )


def reference_gradient(problem: Learnable, settings: Settings) -> Gradient | None:
    """The gradient of a batch of the server's own samples, each of its train sets in turn.

    ``None`` if no screen asks for it.
    """
    if not settings.guard.needs_reference:
        return None

    def gradient(weights: Vector, number: int) -> Vector:
        whose, turn = number % problem.clients, number // problem.clients
        _, found = problem.loss_and_gradient(weights, whose, turn, settings.seed)
        return np.asarray(found)

    return gradient


def measured_network(dispatcher: Dispatcher) -> Network:
    """The clients at the speeds that were measured, with the routing in force at the end.

    Rates are per gradient, as everywhere in a fleet: a task of k local steps is k of them. Where a
    client has one task at a time, tasks are never more than there are clients.
    """
    there = [client for client in dispatcher.clients if not client.vacant]
    rule = dispatcher.rule
    rates = [steps_of(rule, client.number) * client.estimate.rate() for client in there]
    names = [client.name for client in there]
    numbers = [client.number for client in there]
    weights = dispatcher.router.client_weights[numbers]
    alike = bool(np.all(weights == weights[0]))
    fleet = Fleet(rates, names=names, weight=None if alike else weights)
    in_flight = dispatcher.concurrency
    if dispatcher.router.policy.one_task_each:
        in_flight = min(in_flight, fleet.size)
    routing = dispatcher.router.routing[numbers]
    return Network(fleet, routing / routing.sum(), in_flight)


def predict(dispatcher: Dispatcher, problem: "Problem", settings: Settings) -> History:
    """The same plan in virtual time, at the measured speeds, for the same number of rounds."""
    from sojourn.simulation.simulate import simulate
    from sojourn.training.replay.replay import replay

    schedule = simulate(
        measured_network(dispatcher),
        rounds=dispatcher.counts.completed,
        policy=dispatcher.router.policy,
        work=settings.strategy.rule.local_steps,
        seed=settings.seed,
    )
    history = replay(
        schedule,
        problem,
        settings.strategy.rule,
        learning_rate=settings.learning_rate,
        seed=settings.seed,
        evaluate_every=settings.evaluate_every,
        strategy=PREDICTED,
    )
    return dataclasses.replace(history, weights=None)


def write_outcome(
    dispatcher: Dispatcher,
    settings: Settings,
    histories: list[History],
    *,
    problem_name: str,
    problem: Learnable | None = None,
    folder: Path | None = None,
) -> None:
    """Write the folder of a run: what happened, and the experiment that predicts it.

    Modules of the users' own are looked for in ``folder``.
    """
    from sojourn.runs.summary import summarize, summarize_strategy
    from sojourn.training import Problem

    network, policy = measured_network(dispatcher), dispatcher.router.policy
    rule, text = settings.strategy.rule, settings.strategy.origin.file_text
    written = RunFolder(settings.run_folder)
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
                    "rule": rule_to_table(rule),
                    "concurrency": network.concurrency,
                    "learning-rate": settings.learning_rate,
                    "policy": policy_to_table(policy),
                }
            ],
        },
        fleet=network.fleet,
        plans={} if text is None else {STRATEGY: text},
        extensions=sources_of(settings.strategy.modules, folder),
    )
    entries = [
        summarize_strategy(
            history.strategy,
            [history],
            network=network,
            rule=rule,
            law="exponential" if history.strategy == PREDICTED else "measured",
            policy=policy,
            learning_rate=settings.learning_rate,
            targets=None,
        )
        for history in histories
    ]
    origin = provenance(
        rule=rule_to_table(rule),
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


def finish(journal: Journal, problem: ProblemFunction, *, elapsed: float) -> None:
    """Write the outcome of a finished run, with the prediction beside it if there can be one."""
    from sojourn.training import Problem

    dispatcher, learnable, settings = journal.dispatcher, journal.problem, journal.settings
    histories = [journal.history()]
    whole = learnable.clients == settings.clients
    if settings.admit == "any" and dispatcher.listed < settings.clients:
        detail = "no prediction is made: devices joined and left while it ran"
        journal.event(Event("left", None, detail), elapsed)
    elif settings.predict and isinstance(learnable, Problem) and whole:
        try:
            histories.append(predict(dispatcher, learnable, settings))
        except SojournError as error:
            journal.event(Event("failed", None, f"no prediction can be made: {error}"), elapsed)
    write_outcome(
        dispatcher,
        settings,
        histories,
        problem_name=f"{problem.__module__}:{problem.__name__}",
        problem=learnable,
        folder=folder_of(problem),
    )

"""The server's side on Flower."""

import inspect
import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sojourn.deploy.deadlines import Deadlines
from sojourn.deploy.dispatcher import Dispatcher
from sojourn.deploy.gridserver import GridServer
from sojourn.deploy.journal import Journal, write_phase
from sojourn.deploy.problems import Learnable, ProblemFunction, build
from sojourn.deploy.screening.base import Gradient
from sojourn.deploy.settings import Settings, read_settings
from sojourn.deploy.tasks import Event
from sojourn.errors import InvalidInput, SojournError
from sojourn.network import Fleet
from sojourn.types import Vector

SIMULATED_GRID = "InMemoryGrid"


def server_app(problem: ProblemFunction) -> ServerApp:
    """A Flower ``ServerApp`` that trains asynchronously, as its run configuration says.

    ``problem(clients, seed)`` returns the learning problem; the server uses its first weights and
    its test set. Files that the configuration names (``plan``, ``fleet``) lie beside the module
    that defines ``problem``. See `Settings` for the configuration.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        folder = Path(str(context.run_config.get("run-folder") or "run"))
        try:
            settings = read_settings(context.run_config, Path(inspect.getfile(problem)).parent)
            serve(grid, problem, settings)
        except (SojournError, OSError) as error:
            with suppress(SojournError):  # a full disk has no room for the reason either
                write_phase(folder, "failed", error=str(error))
            raise

    return app


def serve(
    grid: Grid,
    problem: ProblemFunction,
    settings: Settings,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Run to the end, and write the outcome into the run folder."""
    learnable = build(problem, settings.clients, settings.seed, None, settings.task)
    simulated = type(grid).__name__ == SIMULATED_GRID
    dispatcher = make_dispatcher(learnable, settings, depth=1 if simulated else 2)
    checkpoint = settings.run_folder / "checkpoint.npz"
    if checkpoint.exists() and not settings.resume:
        raise InvalidInput(
            f"'{settings.run_folder}' holds a run already. Resume it (resume = true), or name "
            "another run-folder."
        )
    journal = Journal(
        settings.run_folder,
        dispatcher,
        learnable,
        seed=settings.seed,
        updates=settings.updates,
        resume=checkpoint.exists(),
    )
    try:
        if settings.resume and not checkpoint.exists():
            journal.event(Event("failed", None, "no checkpoint yet: the run begins anew"), 0.0)
        server = GridServer(grid, dispatcher, journal, settings, clock=clock, sleep=sleep)
        server.run()
        finish(dispatcher, journal, learnable, settings, problem, elapsed=server.elapsed)
        journal.status(server.elapsed, "finished")
    finally:
        journal.close()


def make_dispatcher(problem: Learnable, settings: Settings, *, depth: int) -> Dispatcher:
    """The dispatcher that ``settings`` describe."""
    network = settings.network
    rates = network.fleet.expand(network.fleet.service_rates) / settings.rule.local_steps
    return Dispatcher(
        np.asarray(problem.initial_weights()).copy(),
        rule=settings.rule,
        routing=network.client_routing,
        concurrency=settings.concurrency,
        learning_rate=settings.learning_rate,
        policy=settings.policy,
        depth=settings.depth or depth,
        service_rates=rates if settings.rates_known else None,
        names=client_names(network.fleet),
        client_weights=network.fleet.expand(network.fleet.relative_weights),
        replan=settings.replan(),
        replan_every=settings.replan_every,
        patience=settings.patience,
        screens=settings.screens,
        reference=reference_gradient(problem, settings),
        largest_speed=settings.largest_speed,
        quarantine=settings.quarantine,
        deadlines=Deadlines(
            shortest=settings.shortest_deadline,
            first=settings.first_deadline,
            longest=settings.longest_deadline or math.inf,
        ),
        updates=settings.updates,
        seed=settings.seed,
    )


def reference_gradient(problem: Learnable, settings: Settings) -> Gradient | None:
    """The gradient of a batch of the server's own samples, each of its train sets in turn.

    ``None`` if no screen asks for it.
    """
    if not any(screen.needs_reference for screen in settings.screens):
        return None

    def gradient(weights: Vector, number: int) -> Vector:
        whose, turn = number % problem.clients, number // problem.clients
        _, found = problem.loss_and_gradient(weights, whose, turn, settings.seed)
        return np.asarray(found)

    return gradient


def client_names(fleet: Fleet) -> list[str]:
    """What to call every client: after its class, numbered from 1 if the class has several.

    >>> client_names(Fleet([1.0, 2.0], counts=[2, 1], names=["old", "new"]))
    ['old 1', 'old 2', 'new']
    >>> client_names(Fleet([1.0], counts=[2]))
    ['client 0', 'client 1']
    """
    if fleet.names is None:
        return [f"client {i}" for i in range(fleet.size)]
    of = np.repeat(np.asarray(fleet.names, dtype=object), fleet.counts).tolist()
    total, seen = Counter(of), Counter[str]()
    names = []
    for client, name in enumerate(of):
        seen[name] += 1
        numbered = f"{name} {seen[name]}" if total[name] > 1 else name
        names.append(numbered if name else f"client {client}")
    return names


def finish(
    dispatcher: Dispatcher,
    journal: Journal,
    learnable: Learnable,
    settings: Settings,
    problem: ProblemFunction,
    *,
    elapsed: float,
) -> None:
    """Write the outcome of a finished run, with the prediction beside it if there can be one."""
    from sojourn.deploy.outcome import predict, write_outcome
    from sojourn.train import Problem

    histories = [journal.history()]
    whole = isinstance(learnable, Problem) and learnable.clients == settings.clients
    if settings.predict and isinstance(learnable, Problem) and whole:
        every = settings.evaluate_every
        try:
            histories.append(predict(dispatcher, learnable, settings, evaluate_every=every))
        except SojournError as error:
            journal.event(Event("failed", None, f"no prediction can be made: {error}"), elapsed)
    write_outcome(
        settings.run_folder,
        dispatcher,
        settings,
        histories,
        problem_name=f"{problem.__module__}:{problem.__name__}",
        problem=learnable,
    )

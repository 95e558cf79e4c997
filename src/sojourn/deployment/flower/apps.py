"""The two Flower apps: a server that trains asynchronously, and a client that does its tasks."""

import inspect
import time
from contextlib import suppress
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from sojourn._support.user_errors import users_error
from sojourn.deployment.client import (
    Learnable,
    ProblemFunction,
    build,
    compute,
    folder_of,
)
from sojourn.deployment.flower.messages import (
    client_of,
    read_request,
    read_state,
    update_reply,
    who_reply,
    write_state,
)
from sojourn.deployment.settings import PAUSE, own_settings, read_settings
from sojourn.errors import SojournError

SIMULATED_GRID = "InMemoryGrid"
"""Flower's simulation would work on two messages of a client at once."""


def server_app(problem: ProblemFunction) -> ServerApp:
    """A Flower ``ServerApp`` that trains asynchronously, as its run configuration says.

    ``problem(clients, seed)`` returns the learning problem; the server uses its first weights and
    its test set. Files that the configuration names (``plan``, ``fleet``) lie beside the module
    that defines ``problem``. See `Settings` for the configuration.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        # Not above: a client's process never needs them.
        from sojourn.deployment.flower.transport import FlowerTransport
        from sojourn.deployment.run import serve
        from sojourn.deployment.status import write_status

        folder = Path(str(context.run_config.get("run-folder") or "run"))
        depth = 1 if type(grid).__name__ == SIMULATED_GRID else 2
        try:
            settings = read_settings(context.run_config, Path(inspect.getfile(problem)).parent)
            serve(FlowerTransport(grid), problem, settings, depth=depth)
        except Exception as error:
            reason = None if isinstance(error, SojournError) else users_error(error)
            with suppress(SojournError):  # a full disk has no room for the reason either
                write_status(folder, {"phase": "failed", "error": reason or _in_words(error)})
            raise

    return app


def _in_words(error: Exception) -> str:
    expected = isinstance(error, SojournError | OSError)
    return str(error) if expected else f"{type(error).__name__}: {error}"


def client_app(problem: ProblemFunction) -> ClientApp:
    """A Flower ``ClientApp`` that works on the tasks of a Sojourn server.

    ``problem(clients, seed)`` returns the learning problem, with the samples of all clients or only
    of its own; it may also take ``client``, its number, and ``config``, its own settings. Which
    client a node is stands in its configuration: ``device``, a name of the fleet, or ``partition-id``.
    """
    app = ClientApp()
    built: dict[str, Learnable] = {}

    @app.query()
    def who(message: Message, context: Context) -> Message:
        return who_reply(message, client_of(context.node_config))

    @app.train()
    def work(message: Message, context: Context) -> Message:
        request, weights = read_request(message)
        client = request.client
        config = own_settings(context.run_config)
        key = repr((request.clients, request.seed, client, sorted(config.items())))
        if key not in built:  # where the process stays, data and model are loaded once
            built.clear()
            built[key] = build(problem, request.clients, request.seed, client, config)
        own, begun = read_state(context.state), time.perf_counter()
        found = compute(built[key], request, weights, client, own, folder_of(problem))
        write_state(context.state, own)
        time.sleep(float(context.node_config.get(PAUSE, 0.0)))
        return update_reply(message, request, found, time.perf_counter() - begun)

    return app

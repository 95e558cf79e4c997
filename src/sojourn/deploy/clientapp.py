"""The client's side on Flower: a task comes in, a gradient (or local steps) goes out."""

import time

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from sojourn.deploy.problems import Learnable, ProblemFunction, build
from sojourn.deploy.records import (
    Request,
    client_number,
    read_request,
    update_reply,
    who_reply,
)
from sojourn.deploy.settings import PAUSE, own_settings
from sojourn.rules import one_gradient, sent_back
from sojourn.types import Vector

SEED_STRIDE = 1_000_003


def client_app(problem: ProblemFunction) -> ClientApp:
    """A Flower ``ClientApp`` that works on the tasks of a Sojourn server.

    ``problem(clients, seed)`` returns the learning problem, with the samples of all clients or only
    of its own; it may also take ``client``, its number, and ``config``, its own settings. Which client a node is stands in its
    configuration: ``partition-id``.
    """
    app = ClientApp()

    @app.query()
    def who(message: Message, context: Context) -> Message:
        return who_reply(message, client_number(context.node_config))

    @app.train()
    def work(message: Message, context: Context) -> Message:
        request, weights = read_request(message)
        client = client_number(context.node_config)
        config = own_settings(context.run_config)
        learnable = build(problem, request.clients, request.seed, client, config)
        loss, update = compute(learnable, request, weights, client)
        time.sleep(float(context.node_config.get(PAUSE, 0.0)))
        return update_reply(message, request.number, update, loss)

    return app


def compute(
    problem: Learnable, request: Request, weights: Vector, client: int
) -> tuple[float, Vector]:
    """The loss and the update that ``request`` asks for.

    A problem that holds one client's samples calls them its client 0, and draws its batches from a
    seed of its own.
    """
    alone = problem.clients == 1 < request.clients
    index = 0 if alone else client
    seed = request.seed * SEED_STRIDE + client + 1 if alone else request.seed
    if one_gradient(request):
        loss, update = problem.loss_and_gradient(weights, index, request.ordinal, seed)
    else:
        rate = request.local_learning_rate
        loss, difference = problem.loss_and_difference(
            *(weights, index, request.ordinal, seed, request.local_steps, rate),
            proximal=request.proximal,
        )
        update = sent_back(request, difference, rate)
    return float(loss), np.asarray(update, dtype=weights.dtype)

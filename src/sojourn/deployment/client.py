"""The client's side: what a learning problem must have, and what is computed for a task."""

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike

from sojourn.deployment.transport import Request
from sojourn.errors import InvalidInput
from sojourn.rules import epoch_steps, rule_from_table, sent_back
from sojourn.rules.state import client_part
from sojourn.types import Vector

if TYPE_CHECKING:
    from sojourn.training import Problem
    from sojourn.training.problem.optimizer import ClientState

SEED_STRIDE = 1_000_003
"""A prime above any number of clients here, so that no client of a run has another run's seed."""


class Learnable(Protocol):
    """The part of `sojourn.training.Problem` that clients and server use.

    A problem written without torch will do, if it has these.
    """

    @property
    def clients(self) -> int:
        """How many clients it holds samples of: all, or the one that it is built for."""

    def initial_weights(self) -> ArrayLike:
        """The first weights, a flat vector."""

    def loss_and_gradient(
        self, weights: Vector, client: int, number: int, seed: int, /
    ) -> tuple[float, ArrayLike]:
        """The loss on a batch, and its gradient."""

    def loss_and_difference(
        self,
        weights: Vector,
        client: int,
        ordinal: int,
        seed: int,
        steps: int,
        learning_rate: float,
        /,
        *,
        proximal: float,
    ) -> tuple[float, ArrayLike]:
        """The mean loss over local steps, and the move they make."""

    def evaluate(self, weights: Vector, /) -> tuple[float, float]:
        """Loss and accuracy on the test set."""


def measured(problem: Learnable, weights: Vector) -> tuple[float, float, Mapping[str, float]]:
    """Loss, accuracy and, of a problem that has some, metrics of its own on the test set."""
    measures = getattr(problem, "measures", None)
    if measures is None:
        return (*problem.evaluate(weights), {})
    loss, accuracy, metrics = measures(weights)
    return loss, accuracy, metrics


ProblemFunction = Callable[..., Learnable]
"""``problem(clients, seed)``, and, if it has such parameters, ``client`` and ``config``."""


def takes_client(function: ProblemFunction) -> bool:
    """Whether the user's function asks which client it is for."""
    return "client" in inspect.signature(function).parameters


def folder_of(function: ProblemFunction) -> Path | None:
    """Where the user's function is written, and modules of rules beside it."""
    try:
        return Path(inspect.getfile(function)).parent
    except (TypeError, OSError):
        return None


def build(
    function: ProblemFunction,
    clients: int,
    seed: int,
    client: int | None,
    config: Mapping[str, object] | None = None,
) -> Learnable:
    """Call the user's function, with the client's number and its settings if it wants to know them.

    ``config`` is what the app's table ``[tool.flwr.app.config.task]`` says. Generators that the
    function may use without asking start from ``seed``: frozen weights, which are not sent, are the
    same on every machine.
    """
    offered = {"client": client, "config": dict(config or {})}
    wanted = inspect.signature(function).parameters
    with _seeded(seed):
        problem = function(clients, seed, **{k: v for k, v in offered.items() if k in wanted})
    if problem.clients not in (1, clients):
        raise InvalidInput(
            f"{function.__name__} returned a problem with the samples of {problem.clients} "
            f"clients; it must hold those of all {clients}, or of one"
        )
    return problem


def _seeded(seed: int) -> AbstractContextManager[None]:
    try:
        from sojourn.training.problem.generators import forked_generators
    except ImportError:  # without torch
        return nullcontext()
    return forked_generators(seed)


class Computed(NamedTuple):
    """What a client sends back: the mean loss it saw, its update, and the local steps it took."""

    loss: float
    update: Vector
    steps: int


def compute(
    problem: Learnable,
    request: Request,
    weights: Vector,
    client: int,
    own: "ClientState | None" = None,
    folder: Path | None = None,
) -> Computed:
    """The loss and the update that ``request`` asks for, and how many local steps they took.

    ``own`` are the arrays that stay with the client; they are replaced by what it has after the task. A
    rule of one's own is looked for in ``folder``.

    A problem that holds one client's samples calls them its client 0, and draws its batches from a
    seed of its own.
    """
    alone = problem.clients == 1 < request.clients
    index = 0 if alone else client
    seed = request.seed * SEED_STRIDE + client + 1 if alone else request.seed
    steps = _steps(problem, request, index)
    update: ArrayLike
    if request.rule or not getattr(problem, "takes_plain_steps", True):
        from sojourn.training.problem.gradients import Task, trained

        rule = rule_from_table(json.loads(request.rule), folder=folder) if request.rule else None
        loss, update = trained(
            cast("Problem", problem),
            Task(index, request.ordinal, weights, request.local_learning_rate, own),
            seed,
            request,
            steps=steps,
            proximal=request.proximal,
            part=None if rule is None else client_part(rule),
        )
    elif request.sends == "gradient" and steps == 1:
        loss, update = problem.loss_and_gradient(weights, index, request.ordinal, seed)
    else:
        rate = request.local_learning_rate
        loss, difference = problem.loss_and_difference(
            *(weights, index, request.ordinal, seed, steps, rate), proximal=request.proximal
        )
        update = sent_back(request, difference, rate)
    return Computed(float(loss), np.asarray(update, dtype=weights.dtype), steps)


def _steps(problem: Learnable, request: Request, index: int) -> int:
    """The local steps of a task: as asked for, or of so many passes over the client's samples."""
    if not request.local_epochs:
        return request.local_steps
    sizes, batch_size = getattr(problem, "train_sizes", None), getattr(problem, "batch_size", None)
    if sizes is None or batch_size is None:
        raise InvalidInput(
            "local-epochs needs a problem with train_sizes, the number of samples of each client, and "
            "batch_size. Give it these, or write local-steps."
        )
    return epoch_steps(request.local_epochs, sizes[index], batch_size)

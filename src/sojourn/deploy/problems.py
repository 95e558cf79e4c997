"""What a deployment needs of a learning problem."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sojourn.errors import InvalidInput


class Learnable(Protocol):
    """The part of `sojourn.train.Problem` that clients and server use.

    A problem written without torch will do, if it has these.
    """

    @property
    def clients(self) -> int:
        """How many clients it holds samples of: all, or the one that it is built for."""

    def initial_weights(self) -> Any:
        """The first weights, a flat vector."""

    def loss_and_gradient(self, weights: Any, client: int, number: int, seed: int, /) -> Any:
        """The loss on a batch, and its gradient."""

    def loss_and_difference(
        self,
        weights: Any,
        client: int,
        ordinal: int,
        seed: int,
        steps: int,
        learning_rate: float,
        /,
        *,
        proximal: float,
    ) -> Any:
        """The mean loss over local steps, and the move they make."""

    def evaluate(self, weights: Any, /) -> tuple[float, float]:
        """Loss and accuracy on the test set."""


def measured(problem: Learnable, weights: Any) -> tuple[float, float, Mapping[str, float]]:
    """Loss, accuracy and, of a problem that has some, metrics of its own on the test set."""
    measures = getattr(problem, "measures", None)
    if measures is None:
        return (*problem.evaluate(weights), {})
    loss, accuracy, metrics = measures(weights)
    return loss, accuracy, metrics


ProblemFunction = Callable[..., Learnable]
"""``problem(clients, seed)``, and, if it has such parameters, ``client`` and ``config``."""


def build(
    function: ProblemFunction,
    clients: int,
    seed: int,
    client: int | None,
    config: Mapping[str, Any] | None = None,
) -> Learnable:
    """Call the user's function, with the client's number and its settings if it wants to know them.

    ``config`` is what the app's table ``[tool.flwr.app.config.task]`` says.
    """
    offered = {"client": client, "config": dict(config or {})}
    wanted = inspect.signature(function).parameters
    problem = function(clients, seed, **{k: v for k, v in offered.items() if k in wanted})
    if problem.clients not in (1, clients):
        raise InvalidInput(
            f"{function.__name__} returned a problem with the samples of {problem.clients} "
            f"clients; it must hold those of all {clients}, or of one"
        )
    return problem

"""Rules for clients that send one gradient per task."""

from dataclasses import dataclass
from typing import ClassVar

from sojourn.checks import check_whole
from sojourn.rules.base import Buffered, Run, WeightedGradientRule, weighted
from sojourn.rules.server import Move
from sojourn.rules.state import NEVER_QUEUE, Arrival, ServerState
from sojourn.types import Vector


class Stepping(WeightedGradientRule):
    """A rule that makes a version of every gradient it uses."""

    def step(
        self, state: ServerState, arrival: Arrival, run: Run, gradient: Vector, length: float
    ) -> tuple[ServerState, bool]:
        """Move against ``gradient``, ``length`` far before weights and the server's optimiser."""
        move = Move(gradient, -(length / arrival.divisor), run.learning_rate)
        return self.server.move(state, move, arrival), True


@dataclass(frozen=True, kw_only=True, repr=False)
class AsyncSGD(Stepping):
    r"""Apply every gradient as it comes: :math:`w \leftarrow w - \eta g`.

    With ``debias`` and ``cap`` the gradient is weighted, see `Weighting`.
    """

    name: ClassVar[str] = "async-sgd"

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        return self.step(state, arrival, run, arrival.update, run.learning_rate)


@dataclass(frozen=True, kw_only=True, repr=False)
class GeneralizedAsyncSGD(AsyncSGD):
    r"""Undo the bias of the routing: a client asked twice as often counts half each time.

    .. math:: w \leftarrow w - \frac{\eta}{n p_c} g

    with :math:`p_c` as it was when the task was dispatched; under a policy that does not route, with
    the client's share of the tasks. Paper: Algorithm 1. Where everybody is always busy this is
    Rescaled ASGD (Mahran, Maranjyan and Richtárik, arXiv 2605.13434).

    >>> import numpy as np
    >>> rule = GeneralizedAsyncSGD()
    >>> state = rule.begin(np.array([1.0]), clients=2)
    >>> arrival = Arrival(
    ...     np.array([2.0]), state.weights, client=0, staleness=0, share=0.25, divisor=2 * 0.25
    ... )
    >>> state, used = rule.apply(state, arrival, learning_rate=0.1, clients=2, concurrency=1)
    >>> state.weights, used
    (array([0.6]), True)
    """

    name: ClassVar[str] = "generalized-async-sgd"
    debias: float = 1.0


@dataclass(frozen=True, kw_only=True, repr=False)
class ShuffledAsyncSGD(AsyncSGD):
    """AsyncSGD for clients served in a fresh random order every n dispatches (AsGrad)."""

    name: ClassVar[str] = "shuffled-async-sgd"
    policy: ClassVar[str] = "shuffled"


@dataclass(frozen=True, kw_only=True, repr=False)
class DelayAdaptive(Stepping):
    r"""Shorter steps for stale gradients.

    .. math:: w \leftarrow w - \eta \min(1, m/\tau) g

    where :math:`\tau = 0` counts as 1. A client goes on with the weights *after* its own gradient,
    as in the paper; the authors' notebook takes those before it.
    """

    name: ClassVar[str] = "delay-adaptive"

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        length = run.learning_rate * min(1.0, run.concurrency / max(1, int(arrival.staleness)))
        return self.step(state, arrival, run, arrival.update, length)


@dataclass(frozen=True, kw_only=True, repr=False)
class Ringmaster(Stepping):
    r"""Apply a gradient only if :math:`\tau < R` (``max_staleness``); drop it otherwise.

    Its authors take :math:`R = \max(1, \lceil \sigma^2/\varepsilon \rceil)`. A dropped gradient
    makes no version. This is the algorithm without stops of calculations (Maranjyan, Tyurin and
    Richtárik, arXiv 2501.16168); the authors' code runs only the one with stops.
    """

    name: ClassVar[str] = "ringmaster"
    policy: ClassVar[str] = NEVER_QUEUE
    max_staleness: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("max_staleness", self.max_staleness)

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        if arrival.staleness >= self.max_staleness:
            return state, False
        return self.step(state, arrival, run, arrival.update, run.learning_rate)


@dataclass(frozen=True, kw_only=True, repr=False)
class MinibatchSGD(Buffered, WeightedGradientRule):
    """Wait for the whole cohort of ``concurrency`` tasks, then step along its mean gradient."""

    name: ClassVar[str] = "minibatch-sgd"
    policy: ClassVar[str] = "synchronous"

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        size, rate = run.concurrency, -run.learning_rate
        return self.collect(state, arrival, weighted(arrival), size=size, rate=rate), True

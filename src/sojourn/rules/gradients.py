"""Rules for clients that send one gradient per task."""

from dataclasses import dataclass
from typing import ClassVar

from sojourn._support.extensions import fraction, real, whole
from sojourn.errors import InvalidInput
from sojourn.rules.arrays import norm, root
from sojourn.rules.base import Buffered, OfCohorts, Run, Shape, WeightedGradientRule, weighted
from sojourn.rules.server import Move, blend, moved
from sojourn.rules.state import NEVER_QUEUE, Arrival, ServerState
from sojourn.types import Vector


class Stepping(WeightedGradientRule):
    """A rule that makes a version of every gradient it uses."""

    def step(
        self, state: ServerState, arrival: Arrival, run: Run, gradient: Vector, length: float
    ) -> tuple[ServerState, bool]:
        """Move against ``gradient``, ``length`` far before weights and the server's optimiser."""
        step, server = -(length / arrival.divisor), self.server
        if server.is_bare:
            return state.updated(moved(state.weights, step, gradient)), True
        return server.move(state, Move(gradient, step, run.learning_rate), arrival), True


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
    the client's share of the tasks. Paper: Algorithm 1. Under the policy ``never-queue`` this is
    Rescaled ASGD (Mahran, Maranjyan and Richtárik, arXiv 2605.13434), and so is `AsyncSGD` with
    ``debias`` 1 there.

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
    Richtárik, arXiv 2501.16168); the authors' code runs only the one with stops, which is the policy
    `sojourn.dispatch.Restart` with the same ``max_staleness``: then nothing is dropped.
    """

    name: ClassVar[str] = "ringmaster"
    policy: ClassVar[str] = NEVER_QUEUE
    max_staleness: int = whole(10)

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        if arrival.staleness >= self.max_staleness:
            return state, False
        return self.step(state, arrival, run, arrival.update, run.learning_rate)


@dataclass(frozen=True, kw_only=True, repr=False)
class MinibatchSGD(OfCohorts, WeightedGradientRule):
    """Wait for the whole cohort of ``concurrency`` tasks, then step along its mean gradient."""

    name: ClassVar[str] = "minibatch-sgd"
    policy: ClassVar[str] = "synchronous"

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        rate = -run.learning_rate
        return self.collect_cohort(state, arrival, weighted(arrival), run, rate=rate)


@dataclass(frozen=True, kw_only=True, repr=False)
class Rennala(Buffered, WeightedGradientRule):
    r"""Collect S gradients taken at the present weights, then step along their mean.

    .. math:: x \leftarrow x - \gamma \frac1S \sum_{j=1}^{S} g_j

    ``batch_size`` is :math:`S`; its authors take :math:`S = \max(1, \lceil\sigma^2/\varepsilon\rceil)`.
    Everybody goes on at the present weights until there are enough; what was taken at older ones is
    dropped instead of stopped, as the paper allows; under the policy `sojourn.dispatch.FirstOf` with
    ``first`` = S and ``again`` it is stopped. Tyurin and Richtárik, arXiv 2305.12387, who
    take exactly S as their code does; a later restatement waits for more.
    """

    name: ClassVar[str] = "rennala"
    policy: ClassVar[str] = NEVER_QUEUE
    batch_size: int = whole(10)

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        if arrival.staleness > 0:
            return state, False
        size, rate = self.batch_size, -run.learning_rate
        return self.collect(state, arrival, weighted(arrival), size=size, rate=rate), True


@dataclass(frozen=True, kw_only=True, repr=False)
class MSynchronousSGD(Buffered, WeightedGradientRule):
    r"""Average the first results of ``first`` clients at the present weights; ignore the others.

    .. math:: x \leftarrow x - \gamma \frac1m \sum_{i \in \text{first } m} g_i

    ``first`` is :math:`m`, at most n. A client counts once per version; its further results at the
    same weights are dropped, and so is whatever comes late. Ignoring the rest instead of cancelling
    it gives the same iterates, not the same times unless service is memoryless; the policy
    `sojourn.dispatch.FirstOf` cancels it. Without ``debias``
    fast clients are favoured. Begunov and Tyurin, arXiv 2602.03802.
    """

    name: ClassVar[str] = "m-synchronous"
    policy: ClassVar[str] = NEVER_QUEUE
    counts: ClassVar[tuple[str, ...]] = ("counted",)
    first: int = whole(2)

    def begin(self, weights: Vector, clients: int) -> ServerState:
        """The state before the first arrival, if there are clients enough."""
        if self.first > clients:
            raise InvalidInput(
                f"the rule '{self.name}' waits for {self.first} clients, but there are {clients}: "
                "give a smaller 'first'"
            )
        return super().begin(weights, clients)

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        counted = state.arrays["counted"]
        if arrival.staleness > 0 or counted[arrival.client]:
            return state, False
        counted[arrival.client] = 1
        size, rate = self.first, -run.learning_rate
        after = self.collect(state, arrival, weighted(arrival), size=size, rate=rate)
        if after.version > state.version:
            counted[:] = 0
        return after, True


@dataclass(frozen=True, kw_only=True, repr=False)
class PickySGD(Stepping):
    r"""Apply a gradient only if it was taken close to the present weights.

    .. math:: x \leftarrow x - \eta g \quad \text{if } \|x - x_{\text{sent}}\| \le \theta

    ``threshold`` is :math:`\theta`, in theory of the order of :math:`\varepsilon/L`; what was taken
    further away is dropped. Cohen, Daniely, Drori, Koren and Schain, arXiv 2106.11879.
    """

    name: ClassVar[str] = "picky-sgd"
    threshold: float = real(1.0, above=0.0)

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        if not norm(state.weights - arrival.sent) <= self.threshold:
            return state, False
        return self.step(state, arrival, run, arrival.update, run.learning_rate)


@dataclass(frozen=True, kw_only=True, repr=False)
class DCASGD(Stepping):
    r"""Correct a stale gradient to first order, with :math:`g \odot g` in place of the Hessian.

    .. math:: x \leftarrow x - \eta\,\bigl(g + \lambda\, g \odot g \odot (x - x_{\text{sent}})\bigr)

    ``compensation`` is :math:`\lambda`. With ``decay`` :math:`\rho` it is adaptive: divided by
    :math:`\sqrt{q + 10^{-7}}`, :math:`q \leftarrow \rho q + (1-\rho)\, g \odot g`; the authors take
    .95, and a larger :math:`\lambda`. Zheng et al., arXiv 1609.08326.
    """

    name: ClassVar[str] = "dc-asgd"
    compensation: float = real(0.04, least=0.0)
    decay: float | None = fraction(None)

    def shapes(self, clients: int, dimension: int) -> dict[str, Shape]:
        own = {} if self.decay is None else {"mean_square": (dimension,)}
        return own | super().shapes(clients, dimension)

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        g = arrival.update
        curvature = float(self.compensation) * (g * g)
        if self.decay is not None:
            mean_square = state.arrays["mean_square"]
            blend(mean_square, self.decay, g * g)
            curvature = curvature / root(mean_square + 1e-7)
        corrected = g + curvature * (state.weights - arrival.sent)
        return self.step(state, arrival, run, corrected, run.learning_rate)

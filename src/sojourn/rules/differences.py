"""Rules for clients that train locally and send what their training changed."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from sojourn._support.extensions import fraction, real, whole
from sojourn.errors import UnknownName
from sojourn.rules.arrays import mean_of_rows, raise_to, root
from sojourn.rules.base import Buffered, DifferenceRule, MixingRule, OfCohorts, Run, Shape
from sojourn.rules.server import ADAPTIVE_RATE, Move, Plain, blend
from sojourn.rules.state import Arrival, ServerState


@dataclass(frozen=True, kw_only=True, repr=False)
class FedAsync(MixingRule):
    r"""Mix the locally trained model :math:`x` into the server's.

    .. math:: w \leftarrow (1-\alpha_\tau) w + \alpha_\tau x, \qquad \alpha_\tau = \alpha\, s(\tau)

    With ``debias`` :math:`\alpha_\tau` is multiplied by the client's weight (at most 1 in all), and
    with ``server_learning_rate`` the whole move by that rate. ``mixing`` is :math:`\alpha`;
    ``decay`` names :math:`s`: ``constant`` (1), ``polynomial`` (:math:`(1+\tau)^{-a}`) or ``hinge``
    (1 if :math:`\tau \le b`, else :math:`1/(a(\tau-b)+1)`). ``a`` is .5 for the polynomial and 10
    for the hinge if not given.
    APPFL's FedAsync divides :math:`\alpha` by n where the number of clients is set; this does not.
    """

    name: ClassVar[str] = "fedasync"
    mixing: float = real(0.6, above=0.0, most=1.0)
    decay: Literal["constant", "polynomial", "hinge"] = "polynomial"
    a: float | None = real(None, above=0.0)
    b: float = real(4.0, least=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay not in _DECAY_RATES:
            raise UnknownName("decay", str(self.decay), _DECAY_RATES)

    def discount(self, staleness: int) -> float:
        r""":math:`s(\tau)`.

        >>> FedAsync(decay="hinge").discount(4), FedAsync(decay="hinge").discount(5)
        (1.0, 0.09090909090909091)
        """
        a = _DECAY_RATES[self.decay] if self.a is None else self.a
        if self.decay == "polynomial":
            return float((1.0 + staleness) ** -a)
        if self.decay == "hinge" and staleness > self.b:
            return float(1.0 / (a * (staleness - self.b) + 1.0))
        return 1.0

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        share = float(self.mixing * self.discount(int(arrival.staleness)) / arrival.divisor)
        share, rate = min(1.0, share), self.server_rate(run)
        trained = arrival.sent + arrival.update
        if self.server == Plain() and rate == 1.0:  # a mixture, rounded as one
            return state.updated((1.0 - share) * state.weights + share * trained), True
        move = Move(trained - state.weights, share * rate, rate)
        return self.server.move(state, move, arrival), True


_DECAY_RATES = {"constant": 1.0, "polynomial": 0.5, "hinge": 10.0}
"""The parameter a of a decay where none is given, as in the experiments of FedAsync's authors."""


@dataclass(frozen=True, kw_only=True, repr=False)
class FedBuff(Buffered, MixingRule):
    r"""Collect K differences, discounted by staleness, then step along their mean.

    .. math:: b \leftarrow b + \frac{\Delta}{\sqrt{1+\tau}}, \qquad
       \text{after } K: \ w \leftarrow w + \eta_g\, b/K

    ``buffer_size`` is :math:`K`, ``server_learning_rate`` is :math:`\eta_g`; with ``debias`` a
    difference is multiplied by its client's weight. The version grows by
    one per emptied buffer, not per receipt. FLSim makes the discount 1 at staleness 1 and sums
    instead of averaging; APPFL does not divide by K and takes differences against the current
    model.
    """

    name: ClassVar[str] = "fedbuff"
    buffer_size: int = whole(10)

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        discount = 1.0 / math.sqrt(1.0 + arrival.staleness) / arrival.divisor
        update = float(discount) * arrival.update
        size, rate = self.buffer_size, self.server_rate(run)
        return self.collect(state, arrival, update, size=size, rate=rate), True


@dataclass(frozen=True, kw_only=True, repr=False)
class FedAvg(OfCohorts, DifferenceRule):
    """Wait for the whole cohort of ``concurrency`` tasks, then average its trained models."""

    name: ClassVar[str] = "fedavg"
    policy: ClassVar[str] = "synchronous"

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        return self.collect_cohort(state, arrival, arrival.update, run, rate=1.0)


@dataclass(frozen=True, kw_only=True, repr=False)
class FADAS(Buffered, DifferenceRule):
    r"""Adaptive steps along the mean of M differences, shorter if one of them is very stale.

    .. math:: a \leftarrow \beta_1 a + (1-\beta_1)\bar\Delta, \quad
       q \leftarrow \beta_2 q + (1-\beta_2)\bar\Delta^2, \quad \hat q \leftarrow \max(\hat q, q), \quad
       x \leftarrow x + \eta_t \frac{a}{\sqrt{\hat q} + \epsilon}

    ``buffer_size`` is :math:`M`, ``server_learning_rate`` :math:`\eta`, and :math:`\eta_t = \eta`
    while the largest staleness in the buffer is at most ``max_staleness``, else
    :math:`\min(\eta, 1/\tau_{\max})`. Wang et al., arXiv 2407.18365. The authors' code differs from
    the paper: it takes :math:`\eta/\tau_{\max}` and corrects the moments' bias; this does neither.
    """

    name: ClassVar[str] = "fadas"
    vectors: ClassVar[tuple[str, ...]] = ("buffer", "mean", "mean_square", "largest_square")
    numbers: ClassVar[tuple[str, ...]] = ("buffered", "stalest")
    buffer_size: int = whole(5)
    server_learning_rate: float = real(1e-3, above=0.0)
    beta1: float = fraction(0.9)
    beta2: float = fraction(0.99)
    epsilon: float = real(1e-8, above=0.0)
    max_staleness: int = whole(1, least=0)

    def learning_rate_scale(self, stable_step: float) -> float:
        """That of adaptive steps, whatever the curvature."""
        return ADAPTIVE_RATE

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        stalest = max(int(state.numbers["stalest"]), int(arrival.staleness))
        state = self.gather(state, arrival.update).remembering(stalest=stalest)
        if state.numbers["buffered"] < self.buffer_size:
            return state, True
        change = state.arrays["buffer"] / self.buffer_size
        mean, square = state.arrays["mean"], state.arrays["mean_square"]
        largest = state.arrays["largest_square"]
        blend(mean, self.beta1, change)
        blend(square, self.beta2, change * change)
        raise_to(largest, square)
        rate = float(self.server_learning_rate)
        if stalest > self.max_staleness:
            rate = min(rate, 1.0 / stalest)
        move = Move(mean / (root(largest) + float(self.epsilon)), rate, rate)
        return self.server.move(state, move, arrival).remembering(buffered=0, stalest=0), True


@dataclass(frozen=True, kw_only=True, repr=False)
class FedFa(DifferenceRule):
    r"""The mean of the last K locally trained models.

    .. math:: w \leftarrow \frac1K \sum_{k=1}^{K} x_k

    ``queue_size`` is :math:`K`; a new model takes the oldest one's place, and until there are K the
    mean is over those there are. Xu et al., arXiv 2404.11015. Memory: K models.
    """

    name: ClassVar[str] = "fedfa"
    numbers: ClassVar[tuple[str, ...]] = ("received",)
    queue_size: int = whole(5)

    def shapes(self, clients: int, dimension: int) -> dict[str, Shape]:
        return {"queue": (self.queue_size, dimension), **super().shapes(clients, dimension)}

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        queue, received = state.arrays["queue"], int(state.numbers["received"])
        queue[received % self.queue_size, ...] = arrival.sent + arrival.update
        present = queue[: min(received + 1, self.queue_size), ...]
        move = Move(mean_of_rows(present) - state.weights, 1.0, 1.0)
        return self.server.move(state, move, arrival).remembering(received=received + 1), True

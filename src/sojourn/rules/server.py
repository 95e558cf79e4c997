r"""The server's optimiser: what becomes of the move that a rule makes of its arrivals.

A rule hands over a `Move`; plainly applied it is :math:`w \leftarrow w + s\,v`. Momentum, Adam,
clipping, weight decay and learning-rate schedules act on any rule's moves alike. Written in TOML:
``server = {name = "momentum", beta = 0.9, clip = 10.0, schedule = {name = "cosine"}}``.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol

from sojourn._support.checks import check_number
from sojourn._support.extensions import Checked, Parameters, fraction, real, set_parameters
from sojourn.errors import InvalidInput
from sojourn.rules.arrays import LEAST_KEPT, is_long, long_vector, norm, raise_to, root
from sojourn.rules.state import AVERAGE, Arrival, ServerState
from sojourn.types import Vector

ADAPTIVE_RATE = 5e-3
"""Around which to search for the learning rate of adaptive steps, whatever the curvature."""


class RateSchedule(Protocol):
    """What the learning rate is multiplied by when an arrival is applied."""

    @property
    def name(self) -> str: ...
    def factor(self, arrival: Arrival) -> float: ...


@dataclass(frozen=True)
class Constant:
    """1 throughout."""

    name: ClassVar[str] = "constant"

    def factor(self, arrival: Arrival) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Cosine(Checked):
    r"""From 1 to ``final`` along half a cosine: :math:`f + (1-f)(1+\cos \pi x)/2` at progress x."""

    name: ClassVar[str] = "cosine"
    final: float = real(0.0, least=0.0, most=1.0)

    def factor(self, arrival: Arrival) -> float:
        half = 0.5 * (1.0 + math.cos(math.pi * arrival.progress))
        return float(self.final + (1.0 - self.final) * half)


@dataclass(frozen=True, kw_only=True)
class InverseSquareRoot(Checked):
    r""":math:`1/\sqrt{1 + t/T}` in round t, where ``rounds`` is :math:`T`."""

    name: ClassVar[str] = "inverse-square-root"
    rounds: float = real(1.0, above=0.0)

    def factor(self, arrival: Arrival) -> float:
        return float(1.0 / math.sqrt(1.0 + arrival.round / self.rounds))


@dataclass(frozen=True, kw_only=True)
class Steps(Checked):
    """Multiplied by ``by`` once for each point of progress in ``at`` that has been reached."""

    name: ClassVar[str] = "steps"
    at: tuple[float, ...] = (0.5, 0.75)
    by: float = real(0.1, above=0.0, most=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        points = tuple(check_number("at", point, least=0.0, most=1.0) for point in self.at)
        object.__setattr__(self, "at", points)

    def factor(self, arrival: Arrival) -> float:
        return float(self.by ** sum(arrival.progress >= point for point in self.at))


SCHEDULES: dict[str, type[RateSchedule]] = {
    kind.name: kind for kind in (Constant, Cosine, InverseSquareRoot, Steps)
}
"""Every schedule of the learning rate by the name that configuration calls it."""


class Move(NamedTuple):
    r"""Where a rule would go: :math:`w + s\,v`.

    ``vector`` is :math:`v`, ``step`` is :math:`s` (negative against a gradient) and ``rate`` the
    learning rate in it, so that :math:`(s/\text{rate})\,v` is the weighted update by itself.
    """

    vector: Vector
    step: float
    rate: float


@dataclass(frozen=True, kw_only=True, repr=False)
class Server(Parameters, ABC):
    r"""What all optimisers share, with :math:`u = (s/\text{rate})\,v` the weighted update.

    ``clip`` shortens :math:`u` to that norm; ``weight_decay`` :math:`\lambda` multiplies the weights
    by :math:`1 - \text{rate}\,\rho\,\lambda` at every move (decoupled, as in AdamW), and
    ``schedule`` gives :math:`\rho`, by which the learning rate is multiplied.

    With ``average`` :math:`f` the model that is evaluated and delivered is a mean over about the
    last fraction f of the versions, whichever version that is, while tasks go out with the weights
    themselves:

    .. math:: \bar w \leftarrow \bar w + \min\bigl(1, \tfrac1{f k}\bigr)(w_k - \bar w)

    so that version j counts in proportion to :math:`j^{1/f-1}`; with f = 1 all count alike (Polyak and
    Juditsky 1992; Shamir and Zhang 2013). The noise of single steps averages out, at one vector of
    memory, so that larger steps can be taken.
    """

    name: ClassVar[str]
    numbers: ClassVar[tuple[str, ...]] = ()
    """The numbers it keeps, 0 before the first move."""
    clip: float | None = real(None, above=0.0)
    weight_decay: float = real(0.0, least=0.0)
    schedule: RateSchedule = field(default_factory=Constant)
    average: float | None = real(None, above=0.0, most=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(getattr(self.schedule, "factor", None)):
            raise InvalidInput(f"schedule must be one, such as Cosine(); it is {self.schedule!r}")

    @property
    def is_bare(self) -> bool:
        """Whether a move is made as it is, which is then done without detours: it is for each task."""
        return False

    def learning_rate_scale(self, stable_step: float) -> float:
        """The learning rate around which to search, where plain steps are stable to ``stable_step``."""
        return stable_step

    def all_vectors(self) -> tuple[str, ...]:
        """The names of the vectors it keeps, each as long as the weights."""
        return self.vectors() if self.average is None else (*self.vectors(), AVERAGE)

    def vectors(self) -> tuple[str, ...]:
        """Those of the optimiser itself."""
        return ()

    def move(self, state: ServerState, move: Move, arrival: Arrival) -> ServerState:
        """The next version of ``state``."""
        if self.clip is not None:
            length = abs(move.step / move.rate) * norm(move.vector)
            if length > self.clip:
                move = Move(move.vector, move.step * (self.clip / length), move.rate)
        factor = self.schedule.factor(arrival)
        weights = state.weights
        if self.weight_decay:
            weights = float(1.0 - move.rate * factor * self.weight_decay) * weights
        after = self._moved(state, weights, move, factor)
        if self.average is not None:
            average = after.arrays[AVERAGE]
            average += min(1.0, 1.0 / (self.average * after.version)) * (after.weights - average)
        return after

    @abstractmethod
    def _moved(self, state: ServerState, weights: Vector, move: Move, factor: float) -> ServerState:
        """The next version, from decayed ``weights`` along a clipped ``move``."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Plain(Server):
    r""":math:`w \leftarrow w + \rho\, s\, v`."""

    name: ClassVar[str] = "plain"

    @cached_property
    def is_bare(self) -> bool:
        return not set_parameters(self)

    def move(self, state: ServerState, move: Move, arrival: Arrival) -> ServerState:
        if self.is_bare:
            return state.updated(moved(state.weights, move.step, move.vector))
        return super().move(state, move, arrival)

    def _moved(self, state: ServerState, weights: Vector, move: Move, factor: float) -> ServerState:
        return state.updated(moved(weights, factor * move.step, move.vector))


@dataclass(frozen=True, kw_only=True, repr=False)
class Momentum(Server):
    r"""Polyak's heavy ball, which spreads a heavy update over the rounds that follow.

    .. math:: z \leftarrow \beta z + s\,v, \qquad w \leftarrow w + \rho z

    With ``nesterov`` the weights move by :math:`\rho(\beta z + s\,v)` instead. As in PyTorch there
    is no damping: in the long run steps are :math:`1/(1-\beta)` times as long.
    """

    name: ClassVar[str] = "momentum"
    beta: float = fraction(0.9)
    nesterov: bool = False

    def learning_rate_scale(self, stable_step: float) -> float:
        return stable_step * (1.0 - self.beta)

    def vectors(self) -> tuple[str, ...]:
        return ("velocity",)

    def _moved(self, state: ServerState, weights: Vector, move: Move, factor: float) -> ServerState:
        z = state.arrays["velocity"]
        push = float(move.step) * move.vector
        z *= float(self.beta)
        z += push
        if not self.nesterov:
            return state.updated(moved(weights, factor, z))
        return state.updated(moved(weights, factor, moved(push, self.beta, z)))


@dataclass(frozen=True, kw_only=True, repr=False)
class Adam(Server):
    r"""Adam, with bias corrections; ``amsgrad`` never forgets the largest second moment.

    .. math:: a \leftarrow \beta_1 a + (1-\beta_1) u, \quad q \leftarrow \beta_2 q + (1-\beta_2) u^2,
       \quad w \leftarrow w + \text{rate}\,\rho\,
       \frac{a/(1-\beta_1^k)}{\sqrt{q/(1-\beta_2^k)} + \epsilon}

    at the k-th move, with :math:`u = (s/\text{rate})\,v`, which has the sign of the move. With
    ``amsgrad`` the largest :math:`q` so far stands in the root. Kingma and Ba 2015; Reddi, Kale
    and Kumar 2018.
    """

    name: ClassVar[str] = "adam"
    numbers: ClassVar[tuple[str, ...]] = ("moves",)
    beta1: float = fraction(0.9)
    beta2: float = fraction(0.999)
    epsilon: float = real(1e-8, above=0.0)
    amsgrad: bool = False

    def learning_rate_scale(self, stable_step: float) -> float:
        return ADAPTIVE_RATE

    def vectors(self) -> tuple[str, ...]:
        return ("moment", "square", "largest") if self.amsgrad else ("moment", "square")

    def _moved(self, state: ServerState, weights: Vector, move: Move, factor: float) -> ServerState:
        update = float(move.step / move.rate) * move.vector
        a, q = state.arrays["moment"], state.arrays["square"]
        blend(a, self.beta1, update)
        blend(q, self.beta2, update * update)
        if self.amsgrad:
            largest = state.arrays["largest"]
            raise_to(largest, q)
            q = largest
        k = int(state.numbers["moves"]) + 1
        scale = root(q / float(1.0 - self.beta2**k)) + float(self.epsilon)
        step = move.rate * factor / (1.0 - self.beta1**k)
        return state.updated(moved(weights, step, a / scale), moves=k)


SERVERS: dict[str, type[Server]] = {kind.name: kind for kind in (Plain, Momentum, Adam)}
"""Every optimiser of the server by the name that configuration calls it."""


def moved(weights: Vector, step: float, direction: Vector) -> Vector:
    """``weights + step * direction``, with one new vector and no other on the way.

    A NumPy number as ``step`` would make double precision of single.
    """
    if is_long(weights, direction):
        from sojourn.rules.kernels import scaled_sum, streamed_sum

        made = long_vector(weights.size, weights.dtype)
        fill = scaled_sum if made.nbytes < LEAST_KEPT else streamed_sum
        fill(weights, weights.dtype.type(step), direction, made)  # type: ignore[arg-type]
        return made
    result = float(step) * direction
    result += weights
    return result


def blend(average: Vector, keep: float, value: Vector) -> None:
    """``average`` becomes ``keep`` of itself and the rest ``value``, in place."""
    average *= float(keep)
    average += float(1.0 - keep) * value

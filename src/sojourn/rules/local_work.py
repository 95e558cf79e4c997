r"""Rules with a momentum made for delays, most of them for clients that take many local steps.

Clients send differences of H local steps. The papers write the *pseudo-gradient*
:math:`\Delta = w_\text{sent} - w_\text{end}`, which is minus the difference that arrives here. Their
own momentum acts before the server's optimiser, which is plain in the papers.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from sojourn._support.checks import check_whole
from sojourn._support.extensions import fraction, real, whole
from sojourn.errors import InvalidInput, UnknownName
from sojourn.rules.arrays import copied, count_of, norm, reshaped
from sojourn.rules.base import BuiltInRule, DifferenceRule, GradientRule, Run
from sojourn.rules.server import Move, blend
from sojourn.rules.state import MODEL, NEVER_QUEUE, Arrival, Layout, ServerState
from sojourn.types import Vector


@dataclass(frozen=True, kw_only=True, repr=False)
class DelayedNesterov(DifferenceRule):
    r"""Small steps at once, and Nesterov's momentum once in N arrivals.

    .. math:: w \leftarrow w - \frac{\epsilon}{N} \Delta, \quad b \leftarrow b + \Delta; \qquad
       \text{every } N: \ z \leftarrow \beta z + \frac bN, \quad
       w \leftarrow w - \epsilon \beta z, \quad b \leftarrow 0

    ``server_learning_rate`` is :math:`\epsilon`, ``momentum`` :math:`\beta` and ``period`` :math:`N`,
    by default (and at least, its authors say) the number of clients. Liu et al., arXiv 2401.09135,
    algorithm 3.
    """

    name: ClassVar[str] = "delayed-nesterov"
    policy: ClassVar[str] = NEVER_QUEUE
    vectors: ClassVar[tuple[str, ...]] = ("buffer", "velocity")
    numbers: ClassVar[tuple[str, ...]] = ("buffered",)
    server_learning_rate: float = real(0.7, above=0.0)
    momentum: float = fraction(0.9)
    period: int | None = whole(None)

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        period, rate = self.period or run.clients, float(self.server_learning_rate)
        buffer, velocity = state.arrays["buffer"], state.arrays["velocity"]
        buffer += arrival.update
        buffered = int(state.numbers["buffered"]) + 1
        direction = arrival.update / float(period)
        if buffered == period:
            velocity *= float(self.momentum)
            velocity += buffer / float(period)
            direction = direction + float(self.momentum) * velocity
            buffer[:], buffered = 0.0, 0
        after = self.server.move(state, Move(direction, rate, rate), arrival)
        return after.remembering(buffered=buffered), True


@dataclass(frozen=True, kw_only=True, repr=False)
class MomentumLookAhead(DifferenceRule):
    r"""Momentum at the server, and tasks that start where the momentum is about to lead (MLA).

    .. math:: z \leftarrow \gamma z + (1-\gamma)\Delta, \qquad
       w \leftarrow w - \eta(\gamma z + \Delta), \qquad
       \text{tasks are sent } w - \eta\gamma z

    ``server_learning_rate`` is :math:`\eta` and ``momentum`` :math:`\gamma`. The state's ``weights``
    are what tasks are sent; its ``model`` is :math:`w`. Ajanthan et al. 2025.
    """

    name: ClassVar[str] = "mla"
    policy: ClassVar[str] = NEVER_QUEUE
    vectors: ClassVar[tuple[str, ...]] = ("velocity", MODEL)
    server_learning_rate: float = real(0.1, above=0.0)
    momentum: float = fraction(0.9)

    def begin(self, weights: Vector, clients: int) -> ServerState:
        """The state before the first arrival: no momentum, and tasks are sent the first weights."""
        state = super().begin(weights, clients)
        state.arrays[MODEL][:] = weights
        return state

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        rate, gamma = float(self.server_learning_rate), float(self.momentum)
        velocity, model = state.arrays["velocity"], state.arrays[MODEL]
        change = self.corrected(state, arrival.update)
        blend(velocity, gamma, change)
        move = Move(gamma * velocity + change, rate, rate)
        after = self.server.move(state._replace(weights=copied(model)), move, arrival)
        model[:] = after.weights
        return after._replace(weights=after.weights + rate * gamma * velocity), True

    def corrected(self, state: ServerState, change: Vector) -> Vector:
        """The difference that enters the momentum: as it is."""
        return change


@dataclass(frozen=True, kw_only=True, repr=False)
class TensorRule(BuiltInRule):
    """A rule that knows which tensors the flat vector of weights is made of."""

    uses_layout: ClassVar[bool] = True

    def begin(self, weights: Vector, clients: int, layout: Layout = ()) -> ServerState:
        """The state before the first arrival, with where each tensor of ``layout`` ends."""
        return with_layout(super().begin(weights, clients), layout)

    def memory(self, clients: int, dimension: int) -> int:
        """How many numbers it keeps beyond the weights, of one tensor."""
        return super().memory(clients, dimension) + 2


@dataclass(frozen=True, kw_only=True, repr=False)
class HeLoCo(TensorRule, MomentumLookAhead):
    r"""As `MomentumLookAhead`, with every tensor's difference turned towards the momentum.

    With :math:`c = \cos(\Delta, z)` and :math:`\kappa = |\Delta|/(|\Delta| + 3|z|)` of one tensor,

    .. math:: \Delta \leftarrow \begin{cases} \Delta & c \ge 0.2 \\
       |\Delta| \frac{(1 - l)\hat\Delta + l \hat z}{|(1 - l)\hat\Delta + l \hat z|},\
       l = \min(\kappa (0.2 - c)/0.4, 1) & 0 \le c < 0.2 \\
       \Delta - b\, c\, |\Delta| \hat z,\ b = \min(-c\kappa/2, 1/2) & c < 0 \end{cases}

    where hats are unit vectors. Without a layout the whole vector is one tensor. arXiv 2606.00271.
    """

    name: ClassVar[str] = "heloco"

    def corrected(self, state: ServerState, change: Vector) -> Vector:
        result, velocity = copied(change), state.arrays["velocity"]
        for part in tensors(state):
            result[part] = _turned(change[part], velocity[part])
        return result


def _turned(change: Vector, velocity: Vector) -> Vector:
    length, speed = norm(change), norm(velocity)
    if length == 0.0 or speed == 0.0:
        return change
    cosine = float(change @ velocity) / (length * speed)
    if cosine >= 0.2:
        return change
    confidence = length / (length + 3.0 * speed)
    along = velocity / speed
    if cosine < 0.0:
        part = min(-0.5 * cosine * confidence, 0.5)
        return change - (part * cosine * length) * along
    turn = min(confidence * (0.2 - cosine) / 0.4, 1.0)
    direction = (1.0 - turn) / length * change + turn * along
    return (length / norm(direction)) * direction


@dataclass(frozen=True, kw_only=True, repr=False)
class OrMo(GradientRule):
    r"""Momentum in which a late gradient counts as if it had come in its turn (ordered momentum).

    Versions are counted in blocks of K. At the start of every block but the first
    :math:`w \leftarrow w - \beta u`, :math:`u \leftarrow \beta u`; a gradient sent a blocks ago makes

    .. math:: u \leftarrow u + \beta^a \eta g, \qquad
       w \leftarrow w - \frac{1 - \beta^{a+1}}{1 - \beta}\, \eta g

    ``momentum`` is :math:`\beta` and ``block`` :math:`K`, by default the tasks in flight. Shi et al.,
    "Ordered momentum for asynchronous SGD", NeurIPS 2024.
    """

    name: ClassVar[str] = "ormo"
    policy: ClassVar[str] = NEVER_QUEUE
    vectors: ClassVar[tuple[str, ...]] = ("velocity",)
    momentum: float = fraction(0.9)
    block: int | None = whole(None)

    def learning_rate_scale(self, stable_step: float) -> float:
        """That of momentum, whose steps are :math:`1/(1-\\beta)` times as long in the long run."""
        return super().learning_rate_scale(stable_step) * (1.0 - self.momentum)

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        block, beta, version = self.block or run.concurrency, self.momentum, state.version
        late = version // block - (version - int(arrival.staleness)) // block
        velocity, rate = state.arrays["velocity"], run.learning_rate
        length = (1.0 - beta ** (late + 1)) / (1.0 - beta)
        direction = float(length) * arrival.update
        if version and version % block == 0:
            direction = direction + float(beta / rate) * velocity
            velocity *= float(beta)
        velocity += float(beta**late * rate) * arrival.update
        return self.server.move(state, Move(direction, -rate, rate), arrival), True


@dataclass(frozen=True, kw_only=True, repr=False)
class RingmasterLMO(TensorRule, GradientRule):
    r"""Steps of a given length along the momentum, which drop what is too stale.

    At version k (from 1) a gradient counts if its staleness is below
    :math:`R_k = \lfloor\sqrt k\rfloor`; then

    .. math:: z \leftarrow \frac{g}{\sqrt k} + \Bigl(1 - \frac1{\sqrt k}\Bigr) z, \qquad
       w \leftarrow w + \frac{\eta}{(k+1)^{3/4}}\, \mathrm{lmo}(z)

    where lmo is :math:`-z/|z|` (``norm = "euclidean"``) or, for every matrix of the layout,
    :math:`-U V^\top` of its singular vectors by five steps of Newton and Schulz (``norm = "muon"``;
    other tensors as Euclidean). arXiv 2605.18174.
    """

    name: ClassVar[str] = "ringmaster-lmo"
    policy: ClassVar[str] = NEVER_QUEUE
    vectors: ClassVar[tuple[str, ...]] = ("velocity",)
    norm: Literal["euclidean", "muon"] = "euclidean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in ("euclidean", "muon"):
            raise UnknownName("norm", str(self.norm), ("euclidean", "muon"))

    def learning_rate_scale(self, stable_step: float) -> float:
        """Steps have a length of their own, whatever the curvature."""
        return 0.1

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        k = state.version + 1
        if arrival.staleness >= math.isqrt(k):
            return state, False
        velocity = state.arrays["velocity"]
        blend(velocity, 1.0 - 1.0 / math.sqrt(k), arrival.update)
        rate = run.learning_rate / (k + 1.0) ** 0.75
        move = Move(self._direction(state, velocity), -rate, run.learning_rate)
        return self.server.move(state, move, arrival), True

    def _direction(self, state: ServerState, velocity: Vector) -> Vector:
        if self.norm == "euclidean":
            return _unit(velocity)
        result = copied(velocity)
        columns = state.arrays[COLUMNS].tolist()
        for part, width in zip(tensors(state), columns, strict=True):
            piece = velocity[part]
            if width:
                result[part] = reshaped(orthogonal(reshaped(piece, (-1, width))), (-1,))
            else:
                result[part] = _unit(piece)
        return result


def _unit(vector: Vector) -> Vector:
    length = norm(vector)
    return copied(vector) if length == 0.0 else vector / length


def orthogonal(matrix: Vector, steps: int = 5) -> Vector:
    r"""About :math:`U V^\top` of a matrix :math:`U \Sigma V^\top`, by ``steps`` of Newton and Schulz.

    Its singular values lie between 0.7 and 1.2 instead of at 1, which is all that Muon asks for.

    >>> values = np.linalg.svd(orthogonal(np.diag([3.0, 0.5])), compute_uv=False)
    >>> bool(values.min() > 0.6 and values.max() < 1.3)
    True
    """
    wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix if wide else matrix.T
    x = x / (norm(x) + 1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x if wide else x.T


ENDS, COLUMNS = "tensor_ends", "tensor_columns"
"""Arrays of a state: where each tensor ends, and the width of those that are matrices, else 0."""


def with_layout(state: ServerState, layout: Layout) -> ServerState:
    """``state`` with the ends and widths of the tensors of ``layout``; of one if there is none."""
    shapes = [shape for _, shape in layout] or [(count_of(state.weights),)]
    sizes = np.array([math.prod(shape) for shape in shapes], dtype=np.int64)
    if sizes.sum() != count_of(state.weights):
        raise InvalidInput(
            f"the layout has {sizes.sum()} numbers, but there are {count_of(state.weights)} weights"
        )
    widths = [math.prod(shape[1:]) if len(shape) > 1 else 0 for shape in shapes]
    arrays = {**state.arrays, ENDS: np.cumsum(sizes), COLUMNS: np.array(widths, dtype=np.int64)}
    return state._replace(arrays=arrays)


def tensors(state: ServerState) -> list[slice]:
    """Where each tensor lies in the flat vector."""
    ends = state.arrays[ENDS].tolist()
    return [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def dynamic_local_steps(rates: Vector, steps: int) -> tuple[int, ...]:
    r"""Local steps by speed, so that tasks take about equally long (DyLU).

    .. math:: H_i = \min(H, \max(1, \lfloor H v_i/v_\text{ref} \rfloor))

    ``rates`` are :math:`v_i`, shape ``(n,)``, ``steps`` is :math:`H` and :math:`v_\text{ref}` the 0.9
    quantile of the rates. Liu et al., arXiv 2401.09135, equation 6.

    >>> dynamic_local_steps(np.array([0.1, 1.0, 2.0, 2.0]), 10)
    (1, 5, 10, 10)
    """
    check_whole("steps", steps)
    speeds = np.asarray(rates, dtype=np.float64)
    reference = float(np.quantile(speeds, 0.9))
    wanted = np.floor(steps * speeds / reference + 1e-12)
    return tuple(np.clip(wanted, 1, steps).astype(int).tolist())


def epoch_steps(epochs: float, samples: int, batch_size: int) -> int:
    r"""The steps of ``epochs`` passes over ``samples``: epochs times the batches of one, rounded up.

    .. math:: H = \lceil e \lceil N/b \rceil \rceil

    >>> epoch_steps(1, 100, 32), epoch_steps(2.5, 100, 32), epoch_steps(0.1, 5, 32)
    (4, 10, 1)
    """
    return max(1, math.ceil(epochs * math.ceil(samples / batch_size) - 1e-9))

r"""Server rules: what the server does with the result of a task.

A rule is a small frozen value with one ``apply``, from one `ServerState` and one `Arrival` to the
next state. Vectors are flat and one-dimensional, NumPy arrays or torch tensors alike: rules use
nothing but ``+``, ``-`` and multiplication by a number, and never change a vector in place, so the
same rule serves the replay in virtual time and a deployment.

``staleness`` (:math:`\tau`) counts *model versions* between the dispatch of a task and its use; a
rule that buffers makes a new version only when it empties its buffer.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, cast

from sojourn.config import Table
from sojourn.errors import InvalidInput, UnknownName

Vector: TypeAlias = Any
"""A flat vector: a one-dimensional NumPy array or torch tensor."""

Sends = Literal["gradient", "difference"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """The result of one task, as the server receives it.

    ``update`` is a stochastic gradient if the rule's ``sends`` is ``"gradient"``, or the locally
    trained weights minus those sent if it is ``"difference"``; ``sent`` is what the task was sent
    with; ``probability`` is the routing probability of the client when the task was dispatched.
    """

    update: Vector
    sent: Vector
    probability: float
    staleness: int
    client: int


@dataclass(frozen=True, slots=True)
class ServerState:
    """The weights, how many versions were made so far, and what waits to be applied.

    ``weights`` is never modified in place: every version is a vector of its own.
    """

    weights: Vector
    version: int = 0
    buffer: Vector = None
    buffered: int = 0

    def updated(self, weights: Vector) -> "ServerState":
        """The next version, with an empty buffer."""
        return ServerState(weights, self.version + 1)

    def buffering(self, update: Vector) -> "ServerState":
        """The same version, with ``update`` added to the buffer."""
        total = update if self.buffer is None else self.buffer + update
        return ServerState(self.weights, self.version, total, self.buffered + 1)


class Rule(Protocol):
    """What the replay and the deployment need of a rule.

    ``name`` is what configuration calls it, ``sends`` what a client returns, ``policy`` the
    dispatch policy it is meant for. A client that sends a difference takes ``local_steps`` steps
    at ``local_learning_rate`` (``None``: the learning rate of the run), each pulled towards the
    weights sent by ``proximal`` times the distance; ``local_steps`` is also how many service times
    a task takes.
    """

    @property
    def name(self) -> str: ...
    @property
    def sends(self) -> Sends: ...
    @property
    def policy(self) -> str: ...
    @property
    def local_steps(self) -> int: ...
    @property
    def local_learning_rate(self) -> float | None: ...
    @property
    def proximal(self) -> float: ...

    def apply(
        self,
        state: ServerState,
        arrival: Arrival,
        *,
        learning_rate: float,
        clients: int,
        concurrency: int,
    ) -> ServerState:
        """The state after ``arrival``; ``clients`` is n and ``concurrency`` m."""
        ...


@dataclass(frozen=True)
class _GradientRule:
    sends: ClassVar[Sends] = "gradient"
    policy: ClassVar[str] = "routed"
    local_steps: ClassVar[int] = 1
    local_learning_rate: ClassVar[float | None] = None
    proximal: ClassVar[float] = 0.0


@dataclass(frozen=True)
class GeneralizedAsyncSGD(_GradientRule):
    r"""Undo the bias of the routing: a client asked twice as often counts half each time.

    .. math:: w \leftarrow w - \frac{\eta}{n p_c} g

    with :math:`p_c` as it was when the task was dispatched. Paper: Algorithm 1.

    >>> import numpy as np
    >>> state = ServerState(np.array([1.0]))
    >>> arrival = Arrival(np.array([2.0]), state.weights, probability=0.25, staleness=0, client=0)
    >>> rule = GeneralizedAsyncSGD()
    >>> rule.apply(state, arrival, learning_rate=0.1, clients=2, concurrency=1).weights
    array([0.6])
    """

    name: ClassVar[str] = "generalized-async-sgd"

    def apply(
        self,
        state: ServerState,
        arrival: Arrival,
        *,
        learning_rate: float,
        clients: int,
        concurrency: int,
    ) -> ServerState:
        step = learning_rate / (clients * float(arrival.probability))
        return state.updated(_moved(state.weights, -step, arrival.update))


@dataclass(frozen=True)
class AsyncSGD(_GradientRule):
    r"""Apply every gradient as it comes: :math:`w \leftarrow w - \eta g`."""

    name: ClassVar[str] = "async-sgd"

    def apply(
        self,
        state: ServerState,
        arrival: Arrival,
        *,
        learning_rate: float,
        clients: int,
        concurrency: int,
    ) -> ServerState:
        return state.updated(_moved(state.weights, -learning_rate, arrival.update))


@dataclass(frozen=True)
class ShuffledAsyncSGD(AsyncSGD):
    """AsyncSGD for clients served in a fresh random order every n dispatches (AsGrad)."""

    name: ClassVar[str] = "shuffled-async-sgd"
    policy: ClassVar[str] = "shuffled"


@dataclass(frozen=True)
class DelayAdaptive(_GradientRule):
    r"""Shorter steps for stale gradients.

    .. math:: w \leftarrow w - \eta \min(1, m/\tau) g

    where :math:`\tau = 0` counts as 1.
    """

    name: ClassVar[str] = "delay-adaptive"

    def apply(
        self,
        state: ServerState,
        arrival: Arrival,
        *,
        learning_rate: float,
        clients: int,
        concurrency: int,
    ) -> ServerState:
        step = learning_rate * min(1.0, concurrency / max(1, int(arrival.staleness)))
        return state.updated(_moved(state.weights, -step, arrival.update))


@dataclass(frozen=True)
class Ringmaster(_GradientRule):
    r"""Apply a gradient only if :math:`\tau < R` (``max_staleness``); drop it otherwise.

    Its authors take :math:`R = \max(1, \lceil \sigma^2/\varepsilon \rceil)`. A dropped gradient
    makes no version.
    """

    name: ClassVar[str] = "ringmaster"
    policy: ClassVar[str] = "never-queue"
    max_staleness: int = 10

    def __post_init__(self) -> None:
        _whole("max_staleness", self.max_staleness)

    def apply(
        self,
        state: ServerState,
        arrival: Arrival,
        *,
        learning_rate: float,
        clients: int,
        concurrency: int,
    ) -> ServerState:
        if arrival.staleness >= self.max_staleness:
            return state
        return state.updated(_moved(state.weights, -learning_rate, arrival.update))


@dataclass(frozen=True)
class MinibatchSGD(_GradientRule):
    """Wait for the whole cohort of ``concurrency`` tasks, then step along its mean gradient."""

    name: ClassVar[str] = "minibatch-sgd"
    policy: ClassVar[str] = "synchronous"

    def apply(
        self,
        state: ServerState,
        arrival: Arrival,
        *,
        learning_rate: float,
        clients: int,
        concurrency: int,
    ) -> ServerState:
        waiting = state.buffering(arrival.update)
        if waiting.buffered < concurrency:
            return waiting
        return waiting.updated(
            _moved(waiting.weights, -learning_rate / concurrency, waiting.buffer)
        )


@dataclass(frozen=True, kw_only=True)
class _DifferenceRule:
    sends: ClassVar[Sends] = "difference"
    local_steps: int = 1
    local_learning_rate: float | None = None
    proximal: float = 0.0

    def __post_init__(self) -> None:
        _whole("local_steps", self.local_steps)
        if self.local_learning_rate is not None:
            _number("local_learning_rate", self.local_learning_rate, above=0.0)
        _number("proximal", self.proximal, least=0.0)


@dataclass(frozen=True, kw_only=True)
class FedAsync(_DifferenceRule):
    r"""Mix the locally trained model :math:`x` into the server's.

    .. math:: w \leftarrow (1-\alpha_\tau) w + \alpha_\tau x, \qquad \alpha_\tau = \alpha\, s(\tau)

    ``mixing`` is :math:`\alpha`; ``decay`` names :math:`s`: ``constant`` (1), ``polynomial``
    (:math:`(1+\tau)^{-a}`) or ``hinge`` (1 if :math:`\tau \le b`, else
    :math:`1/(a(\tau-b)+1)`). ``a`` is .5 for the polynomial and 10 for the hinge if not given.
    """

    name: ClassVar[str] = "fedasync"
    policy: ClassVar[str] = "idle"
    mixing: float = 0.6
    decay: Literal["constant", "polynomial", "hinge"] = "polynomial"
    a: float | None = None
    b: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _number("mixing", self.mixing, above=0.0, most=1.0)
        if self.decay not in _DECAY_RATES:
            raise UnknownName("decay", str(self.decay), _DECAY_RATES)
        if self.a is not None:
            _number("a", self.a, above=0.0)
        _number("b", self.b, least=0.0)

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

    def apply(
        self,
        state: ServerState,
        arrival: Arrival,
        *,
        learning_rate: float,
        clients: int,
        concurrency: int,
    ) -> ServerState:
        share = float(self.mixing * self.discount(int(arrival.staleness)))
        trained = arrival.sent + arrival.update
        return state.updated((1.0 - share) * state.weights + share * trained)


_DECAY_RATES = {"constant": 1.0, "polynomial": 0.5, "hinge": 10.0}


@dataclass(frozen=True, kw_only=True)
class FedBuff(_DifferenceRule):
    r"""Collect K differences, discounted by staleness, then step along their mean.

    .. math:: b \leftarrow b + \frac{\Delta}{\sqrt{1+\tau}}, \qquad
       \text{after } K: \ w \leftarrow w + \eta_g\, b/K

    ``buffer_size`` is :math:`K`, ``server_learning_rate`` is :math:`\eta_g`. The version grows by
    one per emptied buffer, not per receipt.
    """

    name: ClassVar[str] = "fedbuff"
    policy: ClassVar[str] = "idle"
    buffer_size: int = 10
    server_learning_rate: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _whole("buffer_size", self.buffer_size)
        _number("server_learning_rate", self.server_learning_rate, above=0.0)

    def apply(
        self,
        state: ServerState,
        arrival: Arrival,
        *,
        learning_rate: float,
        clients: int,
        concurrency: int,
    ) -> ServerState:
        discount = 1.0 / math.sqrt(1.0 + arrival.staleness)
        waiting = state.buffering(discount * arrival.update)
        if waiting.buffered < self.buffer_size:
            return waiting
        step = self.server_learning_rate / self.buffer_size
        return waiting.updated(_moved(waiting.weights, step, waiting.buffer))


@dataclass(frozen=True, kw_only=True)
class FedAvg(_DifferenceRule):
    """Wait for the whole cohort of ``concurrency`` tasks, then average its trained models."""

    name: ClassVar[str] = "fedavg"
    policy: ClassVar[str] = "synchronous"

    def apply(
        self,
        state: ServerState,
        arrival: Arrival,
        *,
        learning_rate: float,
        clients: int,
        concurrency: int,
    ) -> ServerState:
        waiting = state.buffering(arrival.update)
        if waiting.buffered < concurrency:
            return waiting
        return waiting.updated(_moved(waiting.weights, 1.0 / concurrency, waiting.buffer))


RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        GeneralizedAsyncSGD,
        AsyncSGD,
        DelayAdaptive,
        FedAsync,
        FedBuff,
        ShuffledAsyncSGD,
        Ringmaster,
        MinibatchSGD,
        FedAvg,
    )
}
"""Every rule by the name that configuration calls it."""


def local_learning_rate(rule: Rule, learning_rate: float) -> float:
    """The rate of a client's own steps: the rule's, or else the run's."""
    own = rule.local_learning_rate
    return float(learning_rate if own is None else own)


def check_rule(rule: Rule, policy: str) -> None:
    """Raise unless ``rule`` is one, and its step makes sense for tasks dispatched by ``policy``."""
    if isinstance(rule, str | type) or not callable(getattr(rule, "apply", None)):
        raise InvalidInput(
            f"rule must be a rule, such as AsyncSGD(); it is {rule!r}. rule_from_table('async-sgd') "
            "makes one of its name."
        )
    if isinstance(rule, GeneralizedAsyncSGD) and policy != "routed":
        raise InvalidInput(
            f"the rule '{rule.name}' divides by the routing probabilities, but with policy "
            f"'{policy}' clients are not chosen by them. Use policy 'routed', or the rule 'async-sgd'."
        )


def rule_from_table(table: str | Mapping[str, Any], where: str = "rule") -> Rule:
    """The rule that a configuration file describes: a name, or a table of ``name`` and knobs.

    Knobs are the rule's keyword arguments, hyphenated; ``where`` opens the message of an error.

    >>> rule_from_table("async-sgd")
    AsyncSGD()
    >>> rule_from_table({"name": "ringmaster", "max-staleness": 5})
    Ringmaster(max_staleness=5)
    """
    given = Table({"name": table} if isinstance(table, str) else table, where)
    name = given.take("name", str)
    if name not in RULES:
        raise UnknownName("rule", name, RULES)
    kind = RULES[name]
    knobs: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        key = field.name.replace("_", "-")
        types = _knob_types(field.type)
        value = given.take(key, types, default=None)
        if value is not None:
            knobs[field.name] = value
    given.close()
    try:
        return kind(**knobs)
    except UnknownName:
        raise
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error


def rule_to_table(rule: Rule) -> dict[str, Any]:
    """What `rule_from_table` reads back: the name and every knob that is set.

    Of a rule of one's own that is no dataclass, the name alone.

    >>> rule_to_table(Ringmaster(max_staleness=5))
    {'name': 'ringmaster', 'max-staleness': 5}
    """
    has_knobs = dataclasses.is_dataclass(rule)
    knobs: dict[str, Any] = dataclasses.asdict(cast("Any", rule)) if has_knobs else {}
    set_knobs = {k.replace("_", "-"): v for k, v in knobs.items() if v is not None}
    return {"name": rule.name, **set_knobs}


def _moved(weights: Vector, step: float, direction: Vector) -> Vector:
    """``weights + step * direction``, with one new vector and no other on the way.

    A NumPy number as ``step`` would make double precision of single.
    """
    moved = float(step) * direction
    moved += weights
    return moved


def _knob_types(annotation: Any) -> type:
    if annotation in (int, float):
        return annotation  # type: ignore[no-any-return]
    return float if annotation == float | None else str


def _whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{name} must be a whole number of at least 1; it is {value!r}")


def _number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float = math.inf,
) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good:
        raise InvalidInput(f"{name} must be a finite number; it is {value!r}")
    if above is not None and not above < value <= most:
        bound = f"above {above:g}" + (f" and at most {most:g}" if most < math.inf else "")
        raise InvalidInput(f"{name} must be {bound}; it is {value:g}")
    if least is not None and value < least:
        raise InvalidInput(f"{name} must be at least {least:g}; it is {value:g}")

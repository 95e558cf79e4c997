"""What the built-in rules share: their knobs, the arrays they keep, and how a version is made."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sojourn.checks import check_number, check_whole
from sojourn.errors import InvalidInput
from sojourn.knobs import Knobs
from sojourn.rules.server import Move, Plain, Server
from sojourn.rules.state import Arrival, Number, Sends, ServerState, one_gradient
from sojourn.rules.weighting import Weighting
from sojourn.types import Vector

Shape = tuple[int, ...]


class Run(NamedTuple):
    """What a rule is told of the run: the learning rate, n and m."""

    learning_rate: float
    clients: int
    concurrency: int


@dataclass(frozen=True, kw_only=True, repr=False)
class BuiltInRule(Knobs, ABC):
    """A rule whose moves go through the optimiser ``server``.

    Clients take ``local_steps`` steps per task, see `Rule`. A subclass says which vectors (in the precision of the weights), counts and numbers it keeps,
    and what it does with an arrival.
    """

    name: ClassVar[str]
    sends: ClassVar[Sends]
    policy: ClassVar[str]
    server: Server = field(default_factory=Plain)
    local_steps: int = 1
    local_learning_rate: float | None = None
    proximal: float = 0.0

    def __post_init__(self) -> None:
        given: object = self.server
        if not isinstance(given, Server):
            raise InvalidInput(
                f"server must be an optimiser, such as Momentum(beta=0.9); it is {given!r}"
            )
        check_whole("local_steps", self.local_steps)
        if self.local_learning_rate is not None:
            check_number("local_learning_rate", self.local_learning_rate, above=0.0)
        check_number("proximal", self.proximal, least=0.0)
        if one_gradient(self):
            self._check_local_knobs()

    def begin(self, weights: Vector, clients: int) -> ServerState:
        """The state before the first arrival."""
        shapes = self._all_vectors(clients, weights.size)
        arrays: dict[str, Any] = {k: np.zeros(s, dtype=weights.dtype) for k, s in shapes.items()}
        arrays |= {k: np.zeros(s, dtype=np.int64) for k, s in self.counts(clients).items()}
        return ServerState(weights, 0, arrays, {**self.numbers(), **self.server.numbers()})

    def apply(
        self,
        state: ServerState,
        arrival: Arrival,
        *,
        learning_rate: float,
        clients: int,
        concurrency: int,
    ) -> tuple[ServerState, bool]:
        """The state after ``arrival``, and whether it was used."""
        return self.take(state, arrival, Run(float(learning_rate), clients, concurrency))

    def memory(self, clients: int, dimension: int) -> int:
        """How many numbers it keeps beyond the weights."""
        shapes = [*self._all_vectors(clients, dimension).values(), *self.counts(clients).values()]
        return sum(math.prod(shape) for shape in shapes)

    def vectors(self, clients: int, dimension: int) -> dict[str, Shape]:
        """The vectors and tables it keeps, by name, with their shapes."""
        return {}

    def counts(self, clients: int) -> dict[str, Shape]:
        """The arrays of whole numbers that it keeps."""
        return {}

    def numbers(self) -> dict[str, Number]:
        """The numbers it keeps, as they are before the first arrival."""
        return {}

    @abstractmethod
    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        """What `apply` does."""

    def _check_local_knobs(self) -> None:
        """A client that takes one gradient goes nowhere by itself."""
        for knob, given in (
            ("local_learning_rate", self.local_learning_rate),
            ("proximal", self.proximal),
        ):
            if given:
                raise InvalidInput(
                    f"{knob} is {given:g}, but has no effect: a client of '{self.name}' sends one "
                    f"gradient per task. Give local_steps of 2 or more, or leave out {knob}."
                )

    def _all_vectors(self, clients: int, dimension: int) -> dict[str, Shape]:
        own = self.vectors(clients, dimension)
        return {**own, **dict.fromkeys(self.server.all_vectors(), (dimension,))}


@dataclass(frozen=True, kw_only=True, repr=False)
class GradientRule(BuiltInRule):
    """Clients send a stochastic gradient per task, or what their local steps come to."""

    sends: ClassVar[Sends] = "gradient"
    policy: ClassVar[str] = "routed"


@dataclass(frozen=True, kw_only=True, repr=False)
class WeightedGradientRule(GradientRule):
    """A gradient counts by its client's share: ``debias`` and ``cap`` are those of `Weighting`."""

    debias: float = 0.0
    cap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        Weighting(self.debias, self.cap)

    @property
    def weighting(self) -> Weighting:
        """How much the gradient of each client counts."""
        return Weighting(self.debias, self.cap)


@dataclass(frozen=True, kw_only=True, repr=False)
class DifferenceRule(BuiltInRule):
    """Clients train locally and send the trained weights minus those they were sent."""

    sends: ClassVar[Sends] = "difference"
    policy: ClassVar[str] = "idle"


class Buffered:
    """The parts of a rule that sums updates in ``buffer`` and counts them in ``buffered``."""

    server: Server

    def vectors(self, clients: int, dimension: int) -> dict[str, Shape]:
        return {"buffer": (dimension,)}

    def numbers(self) -> dict[str, Number]:
        return {"buffered": 0}

    def gather(self, state: ServerState, update: Vector) -> ServerState:
        """Add ``update`` to the buffer."""
        buffer, buffered = state.arrays["buffer"], int(state.numbers["buffered"])
        if buffered:
            buffer += update
        else:
            buffer[:] = update
        return state.remembering(buffered=buffered + 1)

    def collect(
        self, state: ServerState, arrival: Arrival, update: Vector, *, size: int, rate: float
    ) -> ServerState:
        """Gather ``update``; the ``size``-th makes a version: ``rate`` times the mean, emptied."""
        state = self.gather(state, update)
        if state.numbers["buffered"] < size:
            return state
        move = Move(state.arrays["buffer"], rate / size, abs(rate))
        return self.server.move(state, move, arrival).remembering(buffered=0)


def weighted(arrival: Arrival) -> Vector:
    """The update times its weight."""
    return arrival.update if arrival.divisor == 1.0 else arrival.update / float(arrival.divisor)

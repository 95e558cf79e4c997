"""What the built-in rules share: their parameters, the arrays they keep, and how a version is made."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn._support.checks import check_number, check_whole
from sojourn._support.extensions import Parameters, per_client, real
from sojourn.errors import InvalidInput
from sojourn.rules.arrays import count_of, zeros
from sojourn.rules.privacy import Privacy
from sojourn.rules.server import Adam, Move, Plain, Server
from sojourn.rules.state import (
    Arrival,
    LocalSteps,
    Sends,
    ServerState,
    most_steps,
    one_gradient,
)
from sojourn.rules.weighting import Weighting
from sojourn.types import Vector

Shape = tuple[int, ...]


class Run(NamedTuple):
    """What a rule knows of the run: the learning rate, n and m."""

    learning_rate: float
    clients: int
    concurrency: int


@dataclass(frozen=True, kw_only=True, repr=False)
class BuiltInRule(Parameters, ABC):
    """A rule whose moves go through the optimiser ``server``.

    Clients take ``local_steps`` steps per task, see `Rule`. With ``privacy_clip`` and
    ``privacy_noise`` every update is clipped and gets Gaussian noise when it arrives: see
    `Privacy`.

    A subclass names what it keeps: ``vectors`` as long as the weights and ``tables`` of one for
    each client, in the precision of the weights; ``counts``, a whole number for each client; and
    ``numbers``, 0 at first. `shapes` is for vectors of another size. `take` says what it does with
    an arrival.
    """

    name: ClassVar[str]
    sends: ClassVar[Sends]
    policy: ClassVar[str]
    vectors: ClassVar[tuple[str, ...]] = ()
    tables: ClassVar[tuple[str, ...]] = ()
    counts: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[tuple[str, ...]] = ()
    server: Server = field(default_factory=Plain)
    local_steps: LocalSteps = per_client(1, check_whole)
    local_learning_rate: float | None = real(None, above=0.0)
    proximal: float = real(0.0, least=0.0)
    privacy_clip: float | None = real(None, above=0.0)
    privacy_noise: float | None = real(None, above=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        given: object = self.server
        if not isinstance(given, Server):
            raise InvalidInput(
                f"server must be an optimiser, such as Momentum(beta=0.9); it is {given!r}"
            )
        if (self.privacy_clip is None) != (self.privacy_noise is None):
            raise InvalidInput(
                "privacy takes both privacy_clip, the largest norm of an update, and privacy_noise, in "
                f"units of it; they are {self.privacy_clip} and {self.privacy_noise}"
            )
        if one_gradient(self):
            self._check_local_parameters()

    @property
    def privacy(self) -> Privacy | None:
        """What makes updates private; ``None`` if nothing does."""
        if self.privacy_clip is None or self.privacy_noise is None:
            return None
        return Privacy(self.privacy_clip, self.privacy_noise)

    def begin(self, weights: Vector, clients: int) -> ServerState:
        """The state before the first arrival."""
        shapes = self.shapes(clients, count_of(weights))
        arrays: dict[str, NDArray[Any]] = {k: zeros(s, weights) for k, s in shapes.items()}
        arrays |= {name: np.zeros(clients, dtype=np.int64) for name in self.counts}
        return ServerState(
            weights, 0, arrays, dict.fromkeys((*self.numbers, *self.server.numbers), 0)
        )

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
        shapes = self.shapes(clients, dimension).values()
        return sum(math.prod(shape) for shape in shapes) + len(self.counts) * clients

    def learning_rate_scale(self, stable_step: float) -> float:
        """The learning rate around which to search: see `sojourn.rules.learning_rate_scale`."""
        step = stable_step / most_steps(self) if self.sends == "gradient" else stable_step
        return self.server.learning_rate_scale(step)

    def shapes(self, clients: int, dimension: int) -> dict[str, Shape]:
        """The vectors and tables that it and its optimiser keep, by name."""
        names = (*self.vectors, *self.server.all_vectors())
        return dict.fromkeys(self.tables, (clients, dimension)) | dict.fromkeys(names, (dimension,))

    @abstractmethod
    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        """What `apply` does."""

    def _check_local_parameters(self) -> None:
        """A client that takes one gradient goes nowhere by itself."""
        for name, given in (
            ("local_learning_rate", self.local_learning_rate),
            ("proximal", self.proximal),
        ):
            if given:
                raise InvalidInput(
                    f"{name} is {given:g}, but has no effect: a client of '{self.name}' sends one "
                    f"gradient per task. Give local_steps of 2 or more, or leave out {name}."
                )


@dataclass(frozen=True, kw_only=True, repr=False)
class GradientRule(BuiltInRule):
    """Clients send a stochastic gradient per task, or what their local steps come to."""

    sends: ClassVar[Sends] = "gradient"
    policy: ClassVar[str] = "routed"


@dataclass(frozen=True, kw_only=True, repr=False)
class Weighted(BuiltInRule):
    """An update counts by its client's share: ``debias`` and ``cap`` are those of `Weighting`."""

    debias: float = 0.0
    cap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        Weighting(self.debias, self.cap)

    @property
    def weighting(self) -> Weighting:
        """How much the update of each client counts."""
        return Weighting(self.debias, self.cap)


@dataclass(frozen=True, kw_only=True, repr=False)
class WeightedGradientRule(Weighted, GradientRule):
    """Gradients that count by their client's share."""


@dataclass(frozen=True, kw_only=True, repr=False)
class DifferenceRule(BuiltInRule):
    """Clients train locally and send the trained weights minus those they were sent."""

    sends: ClassVar[Sends] = "difference"
    policy: ClassVar[str] = "idle"

    def learning_rate_scale(self, stable_step: float) -> float:
        """The learning rate is that of local steps: the scale of adaptive server steps is no scale of it."""
        adaptive = isinstance(self.server, Adam)
        return stable_step if adaptive else self.server.learning_rate_scale(stable_step)


@dataclass(frozen=True, kw_only=True, repr=False)
class MixingRule(Weighted, DifferenceRule):
    """Differences that count by their client's share, times a learning rate of the server.

    ``server_learning_rate`` is a number, or ``"run"``: then the learning rate of the run, which is
    tuned, is the server's, and ``local_learning_rate`` is that of the clients. An adaptive
    ``server`` needs that: its steps do not depend on the size of the differences, so that the
    clients' rate hardly matters.
    """

    server_learning_rate: float | Literal["run"] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.server_learning_rate != "run":
            check_number("server_learning_rate", self.server_learning_rate, above=0.0)
        elif self.local_learning_rate is None:
            raise InvalidInput(
                "server_learning_rate is 'run', so that the learning rate of the run is the server's: "
                "give the clients one, as local_learning_rate"
            )

    def learning_rate_scale(self, stable_step: float) -> float:
        """Around 1 if it is the server's; else that of local steps."""
        if self.server_learning_rate == "run":
            return self.server.learning_rate_scale(1.0)
        return super().learning_rate_scale(stable_step)

    def server_rate(self, run: Run) -> float:
        """The learning rate of the server in a run."""
        if self.server_learning_rate == "run":
            return run.learning_rate
        return self.server_learning_rate


class Buffered:
    """The parts of a rule that sums updates in ``buffer`` and counts them in ``buffered``."""

    vectors: ClassVar[tuple[str, ...]] = ("buffer",)
    numbers: ClassVar[tuple[str, ...]] = ("buffered",)
    server: Server

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


class OfCohorts(Buffered):
    """The parts of a rule that waits for the whole cohort of ``concurrency`` tasks.

    Of clients whose task the policy cut short (`Synchronous` with over-selection or a deadline)
    there is no update: the mean is over the others.
    """

    hears_of_cuts: ClassVar[bool] = True
    numbers: ClassVar[tuple[str, ...]] = ("buffered", "cut")

    def collect_cohort(
        self, state: ServerState, arrival: Arrival, update: Vector, run: Run, *, rate: float
    ) -> tuple[ServerState, bool]:
        """Gather ``update``, if there is one; the last of a cohort makes a version."""
        if arrival.cut:
            state = state.remembering(cut=int(state.numbers["cut"]) + 1)
        else:
            state = self.gather(state, update)
        number = int(state.numbers["buffered"])
        if number + int(state.numbers["cut"]) >= run.concurrency:
            if number:
                move = Move(state.arrays["buffer"], rate / number, abs(rate))
                state = self.server.move(state, move, arrival)
            state = state.remembering(buffered=0, cut=0)
        return state, not arrival.cut


def weighted(arrival: Arrival) -> Vector:
    """The update times its weight."""
    return arrival.update if arrival.divisor == 1.0 else arrival.update / float(arrival.divisor)

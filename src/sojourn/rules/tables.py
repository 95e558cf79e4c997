"""Rules that remember something of every client: n times the memory of the weights."""

from dataclasses import dataclass
from typing import ClassVar

from sojourn.checks import check_number, check_whole
from sojourn.rules.base import (
    Buffered,
    DifferenceRule,
    GradientRule,
    Run,
    Shape,
    WeightedGradientRule,
)
from sojourn.rules.server import Move
from sojourn.rules.state import NEVER_QUEUE, Arrival, ServerState
from sojourn.types import Vector


@dataclass(frozen=True, kw_only=True, repr=False)
class ACE(GradientRule):
    r"""Step along the mean of all clients' last gradients, whenever one of them comes.

    .. math:: h_j \leftarrow g, \qquad x \leftarrow x - \eta \frac1n \sum_i h_i

    No step is made before everybody was heard once at the first weights; the arrival that completes
    the table makes the first (``warm_up = false``: steps from the first arrival on, clients not
    heard yet counting as zero). arXiv 2511.19066; with one gradient per client this is IA²SGD, which
    makes no step at the arrival that fills its table. The learning rate must be about n times
    smaller than for a plain step. Memory: n + 1 gradients.
    """

    name: ClassVar[str] = "ace"
    policy: ClassVar[str] = NEVER_QUEUE
    warm_up: bool = True

    def vectors(self, clients: int, dimension: int) -> dict[str, Shape]:
        return {"table": (clients, dimension), "mean": (dimension,)}

    def counts(self, clients: int) -> dict[str, Shape]:
        return {"heard": (clients,)}

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        mean, heard = state.arrays["mean"], state.arrays["heard"]
        mean += replace(state.arrays["table"], arrival.client, arrival.update) / heard.size
        heard[arrival.client] = 1
        if self.warm_up and not heard.all():
            return state, True
        move = Move(mean, -run.learning_rate, run.learning_rate)
        return self.server.move(state, move, arrival), True


@dataclass(frozen=True, kw_only=True, repr=False)
class ACED(GradientRule):
    r"""ACE over those clients whose last gradient is not too old.

    .. math:: x \leftarrow x - \eta \frac{1}{|A|} \sum_{i \in A} h_i, \qquad
       A = \{i : k - k_i \le \tau\}

    where :math:`k` is the present version, :math:`k_i` the one that client i's last gradient was
    taken at and ``max_staleness`` is :math:`\tau`. If nobody is in :math:`A` no version is made.
    Clients not heard yet are not in it. arXiv 2511.19066; the authors' code steps only every n
    arrivals and looks at the version of the running task instead. Memory: n gradients.
    """

    name: ClassVar[str] = "aced"
    policy: ClassVar[str] = NEVER_QUEUE
    max_staleness: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("max_staleness", self.max_staleness, least=0)

    def vectors(self, clients: int, dimension: int) -> dict[str, Shape]:
        return {"table": (clients, dimension)}

    def counts(self, clients: int) -> dict[str, Shape]:
        return {"heard": (clients,), "taken_at": (clients,)}

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        table, heard, taken_at = (state.arrays[k] for k in ("table", "heard", "taken_at"))
        table[arrival.client] = arrival.update
        heard[arrival.client] = 1
        taken_at[arrival.client] = state.version - int(arrival.staleness)
        active = (heard > 0) & (state.version - taken_at <= self.max_staleness)
        if not active.any():
            return state, True
        move = Move(table[active].mean(axis=0), -run.learning_rate, run.learning_rate)
        return self.server.move(state, move, arrival), True


@dataclass(frozen=True, kw_only=True, repr=False)
class RoutedSAGA(WeightedGradientRule):
    r"""SAGA for tasks routed with any p: unbiased, and free of the noise of unequal data.

    .. math:: x \leftarrow x - \eta\left[\bar h + \frac{g - h_c}{n p_c}\right], \qquad
       \bar h \leftarrow \bar h + \frac{g - h_c}{n}, \qquad h_c \leftarrow g

    The table :math:`h` of last gradients begins at zero, :math:`\bar h` is its mean; with ``debias``
    below 1 or a ``cap`` the divisor is that of `Weighting`. CA2FL (ICLR 2024) with a buffer of one
    and importance weights. Memory: n + 1 gradients.
    """

    name: ClassVar[str] = "saga"
    debias: float = 1.0

    def vectors(self, clients: int, dimension: int) -> dict[str, Shape]:
        return {"table": (clients, dimension), "mean": (dimension,)}

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        table, mean = state.arrays["table"], state.arrays["mean"]
        news = replace(table, arrival.client, arrival.update)
        direction = mean + news / float(arrival.divisor)
        mean += news / len(table)
        move = Move(direction, -run.learning_rate, run.learning_rate)
        return self.server.move(state, move, arrival), True


@dataclass(frozen=True, kw_only=True, repr=False)
class CA2FL(Buffered, DifferenceRule):
    r"""FedBuff, calibrated by what every client sent last.

    .. math:: v = \bar h + \frac1M \sum_{i \in \text{buffer}} (\Delta_i - h_i), \qquad
       w \leftarrow w + \eta v, \qquad h_i \leftarrow \Delta_i

    ``buffer_size`` is :math:`M`, ``server_learning_rate`` :math:`\eta`; :math:`\bar h` is the mean of
    the cache :math:`h` before the buffer. Wang et al., ICLR 2024, where a client stands in a buffer
    once; one that stands there twice is calibrated the second time against its first difference,
    as in the code that people use. Memory: n + 2 differences.
    """

    name: ClassVar[str] = "ca2fl"
    buffer_size: int = 10
    server_learning_rate: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("buffer_size", self.buffer_size)
        check_number("server_learning_rate", self.server_learning_rate, above=0.0)

    def vectors(self, clients: int, dimension: int) -> dict[str, Shape]:
        return {"table": (clients, dimension), "mean": (dimension,), "buffer": (dimension,)}

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        table, mean, buffer = (state.arrays[k] for k in ("table", "mean", "buffer"))
        state = self.gather(state, replace(table, arrival.client, arrival.update))
        if state.numbers["buffered"] < self.buffer_size:
            return state, True
        rate = float(self.server_learning_rate)
        move = Move(mean + buffer / self.buffer_size, rate, rate)
        mean += buffer / len(table)
        return self.server.move(state, move, arrival).remembering(buffered=0), True


@dataclass(frozen=True, kw_only=True, repr=False)
class AREA(Buffered, DifferenceRule):
    r"""The exact average of every client's last trained model, however often each is heard.

    .. math:: w \leftarrow w + \frac1n \sum_{i \in \text{buffer}} (x_i - y_i), \qquad
       y_i \leftarrow x_i

    :math:`x_i` is the model that client i has trained and :math:`y_i` the one before, at first the
    first weights: after every emptied buffer (of ``buffer_size`` arrivals) :math:`w` is the mean of
    the :math:`y_i`. Iakovidou and Kim, arXiv 2405.10123. There the clients keep :math:`y_i`, here the
    server does; in the authors' simulator the client that empties the buffer gets the weights from
    before. Memory: n + 1 models.
    """

    name: ClassVar[str] = "area"
    policy: ClassVar[str] = NEVER_QUEUE
    buffer_size: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("buffer_size", self.buffer_size)

    def vectors(self, clients: int, dimension: int) -> dict[str, Shape]:
        return {"table": (clients, dimension), "buffer": (dimension,)}

    def begin(self, weights: Vector, clients: int) -> ServerState:
        """The state before the first arrival: everybody has the first weights."""
        state = super().begin(weights, clients)
        state.arrays["table"][:] = weights
        return state

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        table = state.arrays["table"]
        trained = arrival.sent + arrival.update
        state = self.gather(state, replace(table, arrival.client, trained))
        if state.numbers["buffered"] < self.buffer_size:
            return state, True
        move = Move(state.arrays["buffer"], 1.0 / len(table), 1.0)
        return self.server.move(state, move, arrival).remembering(buffered=0), True


def replace(table: Vector, row: int, value: Vector) -> Vector:
    """Put ``value`` into a row of ``table``; how much that changes it."""
    change: Vector = value - table[row]
    table[row] = value
    return change

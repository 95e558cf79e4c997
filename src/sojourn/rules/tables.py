"""Rules that remember something of every client: n times the memory of the weights."""

from dataclasses import dataclass
from typing import ClassVar

from sojourn._support.extensions import real, whole
from sojourn.rules.arrays import mean_of_rows
from sojourn.rules.base import (
    Buffered,
    DifferenceRule,
    GradientRule,
    Run,
    WeightedGradientRule,
)
from sojourn.rules.server import Move
from sojourn.rules.state import NEVER_QUEUE, Arrival, ServerState
from sojourn.types import IntArray, Vector


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
    tables: ClassVar[tuple[str, ...]] = ("table",)
    vectors: ClassVar[tuple[str, ...]] = ("mean",)
    counts: ClassVar[tuple[str, ...]] = ("heard",)
    warm_up: bool = True

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
    taken at and ``max_staleness`` is :math:`\tau`. If nobody is in :math:`A` no version is made. As in
    the authors' code no step is made before everybody was heard once at the first weights; the arrival
    that completes the table makes the first (``warm_up = false``: steps from the first arrival on,
    over the clients heard so far). arXiv 2511.19066; the authors' code steps only every n arrivals and
    looks at the version of the running task instead. Memory: n gradients.
    """

    name: ClassVar[str] = "aced"
    policy: ClassVar[str] = NEVER_QUEUE
    tables: ClassVar[tuple[str, ...]] = ("table",)
    counts: ClassVar[tuple[str, ...]] = ("heard", "taken_at")
    max_staleness: int = whole(50, least=0)
    warm_up: bool = True

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        table, heard, taken_at = (state.arrays[k] for k in ("table", "heard", "taken_at"))
        table[arrival.client, ...] = arrival.update
        heard[arrival.client] = 1
        taken_at[arrival.client] = state.version - int(arrival.staleness)
        if self.warm_up and not heard.all():
            return state, True
        active = (heard > 0) & (state.version - taken_at <= self.max_staleness)
        if not active.any():
            return state, True
        move = Move(mean_of_rows(table, active), -run.learning_rate, run.learning_rate)
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
    tables: ClassVar[tuple[str, ...]] = ("table",)
    vectors: ClassVar[tuple[str, ...]] = ("mean",)
    debias: float = 1.0

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        table, mean = state.arrays["table"], state.arrays["mean"]
        news = replace(table, arrival.client, arrival.update)
        direction = mean + news / float(arrival.divisor)
        mean += news / table.shape[0]
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
    tables: ClassVar[tuple[str, ...]] = ("table",)
    vectors: ClassVar[tuple[str, ...]] = ("mean", "buffer")
    buffer_size: int = whole(10)
    server_learning_rate: float = real(1.0, above=0.0)

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        table, mean, buffer = (state.arrays[k] for k in ("table", "mean", "buffer"))
        state = self.gather(state, replace(table, arrival.client, arrival.update))
        if state.numbers["buffered"] < self.buffer_size:
            return state, True
        rate = float(self.server_learning_rate)
        move = Move(mean + buffer / self.buffer_size, rate, rate)
        mean += buffer / table.shape[0]
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
    tables: ClassVar[tuple[str, ...]] = ("table",)
    buffer_size: int = whole(3)

    def begin(self, weights: Vector, clients: int) -> ServerState:
        """The state before the first arrival: everybody has the first weights."""
        state = super().begin(weights, clients)
        state.arrays["table"][...] = weights
        return state

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        table = state.arrays["table"]
        trained = arrival.sent + arrival.update
        state = self.gather(state, replace(table, arrival.client, trained))
        if state.numbers["buffered"] < self.buffer_size:
            return state, True
        move = Move(state.arrays["buffer"], 1.0 / table.shape[0], 1.0)
        return self.server.move(state, move, arrival).remembering(buffered=0), True


def replace(table: Vector, row: int, value: Vector) -> Vector:
    """Put ``value`` into a row of ``table``; how much that changes it."""
    change: Vector = value - table[row, ...]
    table[row, ...] = value
    return change


@dataclass(frozen=True, kw_only=True, repr=False)
class Malenia(GradientRule):
    r"""Collect gradients at the present weights until all clients have sent enough of them.

    .. math:: x \leftarrow x - \gamma \frac1n \sum_i \frac{1}{B_i} \sum_{j \le B_i} g_{ij}
       \quad\text{as soon as}\quad \Bigl(\frac1n \sum_i \frac1{B_i}\Bigr)^{-1} > \frac{S}{n}

    with :math:`B_i` gradients of client i; ``batch_size`` is :math:`S`, by default n. Gradients are
    collected *while* the harmonic mean is at most S/n, so a tie goes on: with S = n somebody is heard
    twice. Its authors take :math:`S = \max(n, \lceil\sigma^2/\varepsilon\rceil)`. What was taken at
    older weights is dropped. Tyurin and Richtárik, arXiv 2305.12387; their code has no S at all.
    Memory: n gradients.
    """

    name: ClassVar[str] = "malenia"
    policy: ClassVar[str] = NEVER_QUEUE
    tables: ClassVar[tuple[str, ...]] = ("means",)
    counts: ClassVar[tuple[str, ...]] = ("heard",)
    batch_size: int | None = whole(None)

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        if arrival.staleness > 0:
            return state, False
        means, heard = state.arrays["means"], state.arrays["heard"]
        fold(means, heard, arrival.client, arrival.update)
        if not heard.all() or not self._enough(heard):
            return state, True
        move = Move(mean_of_rows(means), -run.learning_rate, run.learning_rate)
        after = self.server.move(state, move, arrival)
        means[...], heard[...] = 0.0, 0
        return after, True

    def _enough(self, heard: IntArray) -> bool:
        n = heard.size
        wanted = n if self.batch_size is None else self.batch_size
        # Rounding must not end a tie.
        return bool(wanted * (1.0 / heard).sum() < n * n * (1.0 - 1e-12))


@dataclass(frozen=True, kw_only=True, repr=False)
class Ringleader(GradientRule):
    r"""Rounds of n updates, each along the mean of all clients' mean gradients.

    .. math:: x \leftarrow x - \gamma \frac1n \sum_i \bar g_i

    First the gradients of every client i are gathered in :math:`\bar g_i` until all were heard; the
    last of them triggers the first update. Then every client that has not triggered one in this
    round does so with its next arrival, which is folded into its mean first; the arrivals of the
    others are kept for the next round. After n updates those become the present ones, and the next
    round is gathered. Maranjyan and Richtárik, arXiv 2509.22860, whose
    :math:`\gamma = \min(1/8nL, \cdot)`: about n times smaller than for a plain step. Staleness is at
    most 2n - 2. Memory: 2 n gradients.
    """

    name: ClassVar[str] = "ringleader"
    policy: ClassVar[str] = NEVER_QUEUE
    tables: ClassVar[tuple[str, ...]] = ("means", "next_means")
    counts: ClassVar[tuple[str, ...]] = ("heard", "next_heard", "updated")

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        means, heard = state.arrays["means"], state.arrays["heard"]
        updated, client = state.arrays["updated"], arrival.client
        if updated[client]:
            fold(state.arrays["next_means"], state.arrays["next_heard"], client, arrival.update)
            return state, True
        fold(means, heard, client, arrival.update)
        if not heard.all():
            return state, True
        updated[client] = 1
        move = Move(mean_of_rows(means), -run.learning_rate, run.learning_rate)
        after = self.server.move(state, move, arrival)
        if updated.all():
            for now, later in (("means", "next_means"), ("heard", "next_heard")):
                state.arrays[now][...], state.arrays[later][...] = state.arrays[later], 0
            updated[:] = 0
        return after, True


def fold(means: Vector, counts: IntArray, row: int, value: Vector) -> None:
    """Take ``value`` into the running mean of a row."""
    counts[row] += 1
    means[row, ...] += (value - means[row, ...]) / float(counts[row])

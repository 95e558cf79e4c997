"""Rules that wait for every client, and remember the means of what each has sent meanwhile."""

from dataclasses import dataclass
from typing import ClassVar

from sojourn.checks import check_whole
from sojourn.rules.base import GradientRule, Run, Shape
from sojourn.rules.server import Move
from sojourn.rules.state import NEVER_QUEUE, Arrival, ServerState
from sojourn.types import IntArray, Vector


@dataclass(frozen=True, kw_only=True, repr=False)
class Malenia(GradientRule):
    r"""Collect gradients at the present weights until all clients have sent enough of them.

    .. math:: x \leftarrow x - \gamma \frac1n \sum_i \frac{1}{B_i} \sum_{j \le B_i} g_{ij}
       \quad\text{as soon as}\quad \Bigl(\frac1n \sum_i \frac1{B_i}\Bigr)^{-1} \ge \frac{S}{n}

    with :math:`B_i` gradients of client i; ``batch_size`` is :math:`S`, by default n (one of each).
    Its authors take :math:`S = \max(n, \lceil\sigma^2/\varepsilon\rceil)`. What was taken at older
    weights is dropped. Tyurin and Richtárik, arXiv 2305.12387; another paper of theirs has "more
    than" for "at least", and their code no S at all. Memory: n gradients.
    """

    name: ClassVar[str] = "malenia"
    policy: ClassVar[str] = NEVER_QUEUE
    batch_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is not None:
            check_whole("batch_size", self.batch_size)

    def vectors(self, clients: int, dimension: int) -> dict[str, Shape]:
        return {"means": (clients, dimension)}

    def counts(self, clients: int) -> dict[str, Shape]:
        return {"heard": (clients,)}

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        if arrival.staleness > 0:
            return state, False
        means, heard = state.arrays["means"], state.arrays["heard"]
        fold(means, heard, arrival.client, arrival.update)
        if not heard.all() or not self._enough(heard):
            return state, True
        move = Move(means.mean(axis=0), -run.learning_rate, run.learning_rate)
        after = self.server.move(state, move, arrival)
        means[:], heard[:] = 0.0, 0
        return after, True

    def _enough(self, heard: IntArray) -> bool:
        n = heard.size
        wanted = n if self.batch_size is None else self.batch_size
        return bool(wanted * (1.0 / heard).sum() <= n * n * (1.0 + 1e-12))


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

    def vectors(self, clients: int, dimension: int) -> dict[str, Shape]:
        return {"means": (clients, dimension), "next_means": (clients, dimension)}

    def counts(self, clients: int) -> dict[str, Shape]:
        return dict.fromkeys(("heard", "next_heard", "updated"), (clients,))

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
        move = Move(means.mean(axis=0), -run.learning_rate, run.learning_rate)
        after = self.server.move(state, move, arrival)
        if updated.all():
            for now, later in (("means", "next_means"), ("heard", "next_heard")):
                state.arrays[now][:], state.arrays[later][:] = state.arrays[later], 0
            updated[:] = 0
        return after, True


def fold(means: Vector, counts: IntArray, row: int, value: Vector) -> None:
    """Take ``value`` into the running mean of a row."""
    counts[row] += 1
    means[row] += (value - means[row]) / float(counts[row])

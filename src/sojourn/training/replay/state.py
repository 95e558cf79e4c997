"""The state of a run: position, rows, saved versions, and what its schedule says of tasks to come."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sojourn.errors import InvalidInput
from sojourn.rules import Rule, ServerState, Weighting
from sojourn.runs.measure import Measure
from sojourn.training.problem.evaluation import Measures
from sojourn.training.problem.optimizer import ClientState
from sojourn.training.problem.problem import Problem
from sojourn.types import FloatArray, IntArray, Vector

if TYPE_CHECKING:
    from sojourn.simulation.schedule import Schedule


class Version(NamedTuple):
    """Weights that tasks were sent with, and how many versions had been made by then."""

    weights: Vector
    number: int


class Sums(NamedTuple):
    """What was seen since the last row: tasks, their losses, those used, their staleness."""

    tasks: int = 0
    loss: float = 0.0
    used: int = 0
    staleness: int = 0

    def since(self, before: "Sums") -> "Sums":
        """What was seen after ``before``."""
        return Sums(
            self.tasks - before.tasks,
            self.loss - before.loss,
            self.used - before.used,
            self.staleness - before.staleness,
        )


class Between(NamedTuple):
    """A version of the weights between two rows, saved in case it is to be evaluated."""

    weights: Vector
    round: int
    version: int
    sums: Sums


@dataclass
class Rows:
    """The rows of a history so far, and the sums for the next one."""

    columns: dict[str, Any] = field(
        default_factory=lambda: {
            "round": [],
            "time": [],
            "test_loss": [],
            "test_accuracy": [],
            "train_loss": [],
            "staleness": [],
            "gradients": [],
            "updates": [],
        }
    )
    metrics: dict[str, Any] = field(default_factory=dict)
    tasks: int = 0
    loss: float = 0.0
    used: int = 0
    staleness: int = 0

    @property
    def sums(self) -> Sums:
        """What was seen since the last row."""
        return Sums(self.tasks, self.loss, self.used, self.staleness)

    def add(self, sums: Sums, metrics: Mapping[str, float], **row: float) -> None:
        """Close a row; losses and staleness are means over the tasks in ``sums``."""
        row["train_loss"] = sums.loss / sums.tasks if sums.tasks else math.nan
        row["staleness"] = sums.staleness / sums.used if sums.used else math.nan
        for name, column in self.columns.items():
            column.append(row[name])
        for name, value in metrics.items():
            self.metrics.setdefault(name, []).append(value)

    def column(self, measure: Measure) -> list[float]:
        """The values of a measure so far."""
        values: list[float] = self.metrics.get(measure.name) or self.columns.get(
            f"test_{measure.name}", []
        )
        return values

    def begin_anew(self) -> None:
        """From here on sums are of the next row."""
        self.tasks, self.loss, self.used, self.staleness = Sums()


@dataclass
class ReplayState:
    """A run after ``round`` completions.

    ``live`` holds the weights of tasks in flight by the number of completions at their dispatch;
    ``batched`` is whether gradients are computed together, once that is settled; ``between`` are
    versions since the last row; ``stopped`` says that a target has ended the run. ``buffers`` are
    the server's, where they are averaged; ``clients`` is what stays with clients between tasks.
    """

    state: ServerState
    live: dict[int, Version]
    rows: Rows = field(default_factory=Rows)
    round: int = 0
    batched: bool | None = None
    diverged_at: int | None = None
    between: list[Between] = field(default_factory=list)
    stopped: bool = False
    buffers: Vector | None = None
    clients: dict[int, ClientState] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether the run ends before its schedule."""
        return self.stopped or self.diverged_at is not None


def last_uses(dispatched: NDArray[np.integer]) -> IntArray:
    """For every number of completions d, the last completion of a task sent then, or -1.

    Weights are kept until then and no longer.

    >>> last_uses(np.array([0, 0, 1, 0])).tolist()
    [3, 2, -1, -1, -1]
    """
    rounds = dispatched.size
    last = np.full(rounds + 1, -1, dtype=np.int64)
    np.maximum.at(last, dispatched, np.arange(rounds))
    return last


def run_end(dispatched: NDArray[np.integer], start: int, limit: int) -> int:
    """Where the run of independent tasks that begins at completion ``start`` ends.

    All tasks of the run were sent with weights that exist when it begins; at most ``limit`` tasks.

    >>> run_end(np.array([0, 0, 1, 0, 1]), start=0, limit=10)
    2
    >>> run_end(np.array([0, 0, 1, 0, 1]), start=2, limit=10)
    5
    """
    ahead = dispatched[start : start + limit] > start
    return start + (int(ahead.argmax()) if ahead.any() else ahead.size)


def shares_and_divisors(schedule: "Schedule", rule: Rule) -> tuple[FloatArray, FloatArray]:
    """Share and divisor of every completed task, as of its dispatch: both of shape ``(rounds,)``.

    The long-run share is used where it is known, and otherwise the share in the tasks sent before.
    Tasks sent at one instant are taken in order of clients.
    """
    weighting: Weighting = getattr(rule, "weighting", Weighting())
    shares = schedule.shares
    client, n = np.asarray(schedule.client), schedule.network.size
    if shares is not None:
        return shares[client], weighting.divisors(shares)[client]
    clients = np.concatenate([client, schedule.pending_client])
    dispatched = np.concatenate([schedule.dispatched, schedule.pending_dispatched])
    order = np.lexsort((clients, dispatched))
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    realised, divisors = weighting.realised(clients[order], n)
    return realised[place[: client.size]], divisors[place[: client.size]]


def relative_weights(client_weights: ArrayLike, clients: int) -> FloatArray:
    r"""How often the loss of every client counts: :math:`n n_i / N`, of mean 1, shape ``(n,)``.

    What is minimised is then :math:`\sum_i (n_i/N) f_i` instead of :math:`\frac1n \sum_i f_i`.

    >>> relative_weights([1, 3], 2).tolist()
    [0.5, 1.5]
    """
    weights = np.asarray(client_weights, dtype=np.float64)
    if weights.shape != (clients,) or not np.all(np.isfinite(weights) & (weights > 0)):
        raise InvalidInput(
            f"client_weights must be {clients} positive numbers, one per client; they have shape "
            f"{weights.shape}"
        )
    return np.asarray(weights / weights.mean())


VERSIONS_BETWEEN = 15
"""Versions that are saved between two rows: a jump is located to a sixteenth of the distance."""
MOST_BYTES = 2**28


class RefinedEvaluations:
    """Rows between two evaluations, where the primary measure jumps to a new best.

    ``rounds`` says after which rounds the weights are saved; which of them are evaluated is found
    by bisection. Cost: up to 15 vectors of weights, fewer if they would take more than 256 MB;
    evaluations only at a new best, so at most about 50 times four in a run, and usually a dozen.
    """

    def __init__(self, problem: Problem, marks: Sequence[int]) -> None:
        self._problem = problem
        size = problem.dimension * problem.initial_weights().element_size()
        most = min(VERSIONS_BETWEEN, MOST_BYTES // size)
        self.rounds: set[int] = set()
        for begin, end in itertools.pairwise(marks):
            count = min(most, end - begin - 1)
            self.rounds.update(
                np.linspace(begin, end, count + 2)[1:-1].round().astype(int).tolist()
            )

    def between(self, position: ReplayState, found: Measures) -> list[tuple[Between, Measures]]:
        """The saved versions worth a row before that of ``found``, in order."""
        measure = self._problem.measure
        past = [value for value in position.rows.column(measure) if np.isfinite(value)]
        if not past:
            return []
        best = max(past) if measure.higher_is_better else min(past)
        return self._search(position.between, best, found.value(measure))

    def _search(
        self, saved: Sequence[Between], before: float, after: float
    ) -> list[tuple[Between, Measures]]:
        measure = self._problem.measure
        if not saved or not measure.leaps(before, after):
            return []
        middle = len(saved) // 2
        version = saved[middle]
        found = self._problem.measures(version.weights)
        if not np.isfinite(found.loss):
            return []
        value = found.value(measure)
        best = value if measure.reaches(value, before) else before
        early = self._search(saved[:middle], before, value)
        return [*early, (version, found), *self._search(saved[middle + 1 :], best, after)]

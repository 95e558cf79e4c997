"""Where a run stands, and what its schedule says in advance about the tasks to come."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.rules import ServerState
from sojourn.types import IntArray, Vector


class Version(NamedTuple):
    """Weights that tasks were sent with, and how many versions had been made by then."""

    weights: Vector
    number: int


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
    tasks: int = 0
    loss: float = 0.0
    used: int = 0
    staleness: int = 0

    def add(self, **row: Any) -> None:
        """Close a row; what it does not give is the mean over the tasks since the row before."""
        row["train_loss"] = self.loss / self.tasks if self.tasks else math.nan
        row["staleness"] = self.staleness / self.used if self.used else math.nan
        for name, column in self.columns.items():
            column.append(row[name])
        self.tasks, self.loss, self.used, self.staleness = 0, 0.0, 0, 0


@dataclass
class Position:
    """A run after ``round`` completions.

    ``live`` holds the weights of tasks in flight by the number of completions at their dispatch;
    ``batched`` is whether gradients are computed together, once that is settled.
    """

    state: ServerState
    live: dict[int, Version]
    rows: Rows = field(default_factory=Rows)
    round: int = 0
    batched: bool | None = None
    diverged_at: int | None = None


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

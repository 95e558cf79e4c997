"""Where a run stands: everything that the next round depends on."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sojourn.rules import ServerState, Vector


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

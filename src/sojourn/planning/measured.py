"""The objective of a plan that pilot runs chose: what they measured, and nothing to optimise."""

from dataclasses import dataclass, replace
from typing import Any

from sojourn.config import Table
from sojourn.constants import LearningConstants
from sojourn.network import Network
from sojourn.optimize.objectives import Evaluation


@dataclass(frozen=True)
class Measured:
    """A score on fresh seeds; it belongs to the strategy that earned it, whatever the network.

    ``criterion`` says what was measured, such as ``time to 80 %``.
    """

    criterion: str
    score: float
    learning_rate: float | None = None

    @property
    def name(self) -> str:
        return "measured"

    @property
    def maximize(self) -> bool:
        return False

    @property
    def constants(self) -> LearningConstants | None:
        return None

    def with_learning_rate(self, learning_rate: float | None) -> "Measured":
        return replace(self, learning_rate=learning_rate)

    def evaluate(self, network: Network) -> Evaluation:
        return Evaluation(self.score, None, self.learning_rate)

    def rounds_at(self, network: Network) -> float | None:
        return None

    def to_table(self) -> dict[str, Any]:
        return {"criterion": self.criterion, "score": self.score}

    @classmethod
    def from_table(cls, table: Table, constants: LearningConstants | None) -> "Measured":
        return cls(table.take("criterion", str), table.take("score", float))

"""Which form of the bounds: the paper's or the tight one, and how many updates the server collects."""

from dataclasses import dataclass
from typing import Any

from sojourn.checks import check_whole
from sojourn.config import Table
from sojourn.errors import UnknownName

BOUNDS = ("paper", "tight")


@dataclass(frozen=True)
class Form:
    r"""The form of G and H.

    ``bound`` is ``"paper"`` or ``"tight"``, in whose staleness term gradient noise of different
    tasks does not add up (``docs/theory.md``). ``buffer`` is :math:`K`: the server collects so many
    updates and makes them at once, with their mean; learning rates are then those of such a step.

    >>> Form(buffer=5)
    Form(bound='paper', buffer=5)
    """

    bound: str = "paper"
    buffer: int = 1

    def __post_init__(self) -> None:
        if self.bound not in BOUNDS:
            raise UnknownName("bound", self.bound, BOUNDS)
        object.__setattr__(self, "buffer", check_whole("buffer", self.buffer))

    def to_table(self) -> dict[str, Any]:
        """What differs from the paper's form, as plain values."""
        bound = {} if self.bound == "paper" else {"bound": self.bound}
        return bound | ({} if self.buffer == 1 else {"buffer": self.buffer})

    @classmethod
    def from_table(cls, table: Table) -> "Form":
        """The form that `to_table` wrote; other keys are left to the caller."""
        bound = table.take("bound", str, default="paper")
        return cls(bound, table.take("buffer", int, default=1))


PAPER = Form()

"""Learning rates that change on the way, by the progress of a run or its rounds."""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

from sojourn.checks import check_number
from sojourn.rules.state import Arrival


class RateSchedule(Protocol):
    """What the learning rate is multiplied by when an arrival is applied."""

    @property
    def name(self) -> str: ...
    def factor(self, arrival: Arrival) -> float: ...


@dataclass(frozen=True)
class Constant:
    """1 throughout."""

    name: ClassVar[str] = "constant"

    def factor(self, arrival: Arrival) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Cosine:
    r"""From 1 to ``final`` along half a cosine: :math:`f + (1-f)(1+\cos \pi x)/2` at progress x."""

    name: ClassVar[str] = "cosine"
    final: float = 0.0

    def __post_init__(self) -> None:
        check_number("final", self.final, least=0.0, most=1.0)

    def factor(self, arrival: Arrival) -> float:
        half = 0.5 * (1.0 + math.cos(math.pi * arrival.progress))
        return float(self.final + (1.0 - self.final) * half)


@dataclass(frozen=True, kw_only=True)
class InverseSquareRoot:
    r""":math:`1/\sqrt{1 + t/T}` in round t, where ``rounds`` is :math:`T`."""

    name: ClassVar[str] = "inverse-square-root"
    rounds: float = 1.0

    def __post_init__(self) -> None:
        check_number("rounds", self.rounds, above=0.0)

    def factor(self, arrival: Arrival) -> float:
        return float(1.0 / math.sqrt(1.0 + arrival.round / self.rounds))


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Multiplied by ``by`` once for each point of progress in ``at`` that has been reached."""

    name: ClassVar[str] = "steps"
    at: tuple[float, ...] = (0.5, 0.75)
    by: float = 0.1

    def __post_init__(self) -> None:
        points = tuple(check_number("at", point, least=0.0, most=1.0) for point in self.at)
        object.__setattr__(self, "at", points)
        check_number("by", self.by, above=0.0, most=1.0)

    def factor(self, arrival: Arrival) -> float:
        return float(self.by ** sum(arrival.progress >= point for point in self.at))


SCHEDULES: dict[str, type[RateSchedule]] = {
    kind.name: kind for kind in (Constant, Cosine, InverseSquareRoot, Steps)
}
"""Every schedule of the learning rate by the name that configuration calls it."""

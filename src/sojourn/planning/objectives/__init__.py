"""What a plan can be optimised for: the objectives, by name and as tables."""

from pathlib import Path
from typing import Any

from sojourn._support.configuration import Table
from sojourn._support.extensions import is_extension, load_extension
from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.planning.objectives.base import (
    Evaluation,
    NoiseRate,
    Objective,
    PerRound,
    PerTime,
    Throughput,
    TimeBudget,
    TimeToAccuracy,
)
from sojourn.planning.objectives.energy import Energy, TimeAndEnergy
from sojourn.theory.constants import LearningConstants

__all__ = [
    "OBJECTIVES",
    "Energy",
    "Evaluation",
    "NoiseRate",
    "Objective",
    "PerRound",
    "PerTime",
    "Throughput",
    "TimeAndEnergy",
    "TimeBudget",
    "TimeToAccuracy",
    "objective_from_table",
    "objective_to_table",
]

OBJECTIVES: dict[str, type[Objective]] = {
    "noise-rate": NoiseRate,
    "time-to-accuracy": TimeToAccuracy,
    "time-budget": TimeBudget,
    "per-time": PerTime,
    "per-round": PerRound,
    "throughput": Throughput,
    "energy": Energy,
    "time-and-energy": TimeAndEnergy,
}
"""The built-in objectives by name."""


def objective_to_table(objective: Objective) -> dict[str, object]:
    """An objective's table with its name: a built-in one, or ``module:Class``.

    >>> objective_to_table(Throughput())
    {'name': 'throughput'}
    """
    kind = type(objective)
    built_in = OBJECTIVES.get(objective.name) is kind
    name = objective.name if built_in else f"{kind.__module__}:{kind.__qualname__}"
    return {"name": name, **objective.to_table()}


def objective_from_table(
    table: Table, constants: LearningConstants | None, folder: Path | None = None
) -> Objective:
    """The objective that ``table`` describes; a module that it names is looked for in ``folder`` too.

    >>> objective_from_table(Table({"name": "throughput"}, "plan.toml"), None)
    Throughput()
    """
    name = table.take("name", str)
    if not is_extension(name) and name not in OBJECTIVES:
        raise InvalidFile(f"{table.where}: {UnknownName('objective', name, OBJECTIVES)}")
    try:
        kind: Any = OBJECTIVES.get(name) or load_extension(name, "objective", folder)
        if not hasattr(kind, "from_table"):
            raise InvalidFile(
                f"{table.where}: '{name}' is no objective: it has no 'from_table' to make one of a "
                "table. Name a class that has."
            )
        objective: Objective = kind.from_table(table, constants)
    except InvalidFile:
        raise
    except InvalidInput as error:
        raise InvalidFile(f"{table.where}: {error}") from error
    table.close()
    return objective

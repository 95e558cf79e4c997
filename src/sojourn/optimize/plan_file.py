"""Plans on disk: TOML with one line per class."""

import contextlib
import math
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import tomli_w

from sojourn.bounds import LearningConstants
from sojourn.config import Table
from sojourn.errors import InvalidFile, InvalidInput, UnknownName, Unreachable
from sojourn.files import replacing
from sojourn.network import Network
from sojourn.optimize.objectives import (
    Evaluation,
    Objective,
    PerRound,
    PerTime,
    Throughput,
    TimeBudget,
    TimeToAccuracy,
)
from sojourn.optimize.planning import Plan
from sojourn.version import __version__

SAME_RATE = 1e-9
"""Relative difference up to which a learning rate is the objective's best."""


def write_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write ``plan`` as TOML, atomically."""
    network = plan.network.to_table()
    rows = [
        "  { " + ", ".join(_item(key, value) for key, value in row.items()) + " },"
        for row in network["classes"]
    ]
    head: dict[str, Any] = {"concurrency": network["concurrency"]}
    if plan.learning_rate is not None:
        head["learning-rate"] = plan.learning_rate
    if plan.network.is_split and plan.fleet.names is not None:
        head["fleet-names"] = list(plan.fleet.names)
    prediction = plan.predict()
    predicted = {
        "value": plan.value,
        "throughput": prediction.throughput,
        "mean-staleness": prediction.mean_staleness,
        "worst-staleness": prediction.worst_staleness,
    }
    tail: dict[str, Any] = {"objective": _objective_table(plan.objective)}
    if plan.objective.constants is not None:
        constants = asdict(plan.objective.constants)
        tail["constants"] = {key.replace("_", "-"): value for key, value in constants.items()}
    tail["predicted"] = predicted
    tail["provenance"] = plan.provenance
    text = "\n".join(
        [
            f"# A plan by sojourn {__version__}: who gets which share of the tasks, how many at once.",
            "# Edit it as you like: it is checked when it is read, and [predicted] computed anew.",
            "",
            tomli_w.dumps(head).rstrip(),
            "",
            "# routing is the probability of each single client of a class.",
            "classes = [",
            *rows,
            "]",
            "",
            tomli_w.dumps(tail),
        ]
    )
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan, checking every key and value.

    A learning rate other than the objective's best counts as given.
    """
    table = Table.read(os.fspath(path))
    learning_rate = table.take("learning-rate", float, default=None)
    names = table.take("fleet-names", list, default=None)
    network = Network.from_table(table)
    constants = _read_constants(table)
    objective = _read_objective(table.table("objective"), constants)
    table.take("predicted", dict, default=None)
    origin = table.take("provenance", dict, default={})
    table.close()
    try:
        fleet = network.whole_fleet(names)
        objective, evaluation = _at_learning_rate(objective, learning_rate, network)
    except InvalidFile:
        raise
    except InvalidInput as error:
        raise InvalidFile(f"{path}: {error}") from error
    return Plan(
        fleet=fleet,
        objective=objective,
        network=network,
        learning_rate=evaluation.learning_rate,
        value=evaluation.value,
        provenance=origin,
    )


def _read_constants(table: Table) -> LearningConstants | None:
    inner = table.optional_table("constants")
    if inner is None:
        return None
    constants = LearningConstants.from_table(inner)
    inner.close()
    return constants


def _objective_table(objective: Objective) -> dict[str, Any]:
    table: dict[str, Any] = {"name": objective.name}
    for key in ("accuracy", "guaranteed", "rounds", "time", "learning_rate"):
        value = getattr(objective, key, None)
        if value is not None:
            table[key.replace("_", "-")] = value
    return table


def _read_objective(table: Table, constants: LearningConstants | None) -> Objective:
    name = table.take("name", str)
    if name not in OBJECTIVES:
        raise InvalidFile(f"{table.where}: {UnknownName('objective', name, OBJECTIVES)}")
    if constants is None and name != "throughput":
        raise InvalidFile(f"{table.where}: the objective {name} needs a table [constants]")
    try:
        objective = OBJECTIVES[name](table, constants)
    except InvalidFile:
        raise
    except InvalidInput as error:
        raise InvalidFile(f"{table.where}: {error}") from error
    table.close()
    return objective


def _at_learning_rate(
    objective: Objective, learning_rate: float | None, network: Network
) -> tuple[Objective, Evaluation]:
    if learning_rate is None:
        return objective, objective.evaluate(network)
    fixed = objective.with_learning_rate(learning_rate)
    if objective.learning_rate is None:
        with contextlib.suppress(InvalidInput, Unreachable):
            best = objective.evaluate(network)
            if math.isclose(best.learning_rate or 0.0, learning_rate, rel_tol=SAME_RATE):
                return objective, best
    return fixed, fixed.evaluate(network)


def _rate(table: Table) -> float | None:
    rate: float | None = table.take("learning-rate", float, default=None)
    return rate


OBJECTIVES: dict[str, Callable[[Table, Any], Objective]] = {
    "time-to-accuracy": lambda t, c: TimeToAccuracy(
        c, t.take("accuracy", float), t.take("guaranteed", bool, default=False), _rate(t)
    ),
    "time-budget": lambda t, c: TimeBudget(c, t.take("time", float), _rate(t)),
    "per-time": lambda t, c: PerTime(c, _rate(t), t.take("rounds", float)),
    "per-round": lambda t, c: PerRound(c, _rate(t), t.take("rounds", float)),
    "throughput": lambda t, c: Throughput(),
}
"""By name: how each objective is read from its table, given the learning constants."""


def _item(key: str, value: Any) -> str:
    return tomli_w.dumps({key: value}).strip()

"""Plans on disk: TOML with one line per class."""

import contextlib
import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import tomli_w

from sojourn._support.configuration import Table
from sojourn._support.files import replacing
from sojourn.dispatch import Policy, policy_to_table
from sojourn.errors import InvalidFile, InvalidInput, Unreachable
from sojourn.fleet import Network
from sojourn.planning.objectives import objective_from_table, objective_to_table
from sojourn.planning.objectives.base import Evaluation, Objective
from sojourn.planning.plan import Plan
from sojourn.theory.constants import LearningConstants
from sojourn.version import __version__

SAME_RATE = 1e-9
"""Relative difference up to which a learning rate is the objective's best."""


def write_plan(plan: Plan, path: str | os.PathLike[str], policy: Policy | None = None) -> None:
    """Write ``plan`` as TOML, atomically, with the strategy to run: what it recommends, or ``policy``."""
    prediction = plan.predict()
    chosen = plan.recommended_policy if policy is None else policy
    tail: dict[str, object] = {
        "strategy": {"policy": policy_to_table(chosen)},
        "objective": objective_to_table(plan.objective),
    }
    if plan.objective.constants is not None:
        constants = asdict(plan.objective.constants)
        tail["constants"] = {key.replace("_", "-"): value for key, value in constants.items()}
    tail["predicted"] = {
        "value": plan.value,
        "throughput": prediction.throughput,
        "mean-staleness": prediction.mean_staleness,
        "worst-staleness": prediction.worst_staleness,
    }
    tail["provenance"] = plan.provenance
    names = plan.fleet.names if plan.network.is_split else None
    text = "\n".join(
        [
            f"# A plan by sojourn {__version__}: the best routing by theory, and the strategy to run.",
            "# Edit it as you like: it is checked when it is read, and [predicted], which is about the",
            "# routing, computed anew.",
            "",
            *network_lines(plan.network, plan.learning_rate, names),
            "",
            tomli_w.dumps(tail),
        ]
    )
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def network_lines(
    network: Network, learning_rate: float | None, names: Sequence[str] | None = None
) -> list[str]:
    """The lines of a file that hold a network, one per class, and the learning rate.

    ``names`` are those of the whole fleet's classes, where the network has split them.
    """
    table = network.to_table()
    head: dict[str, object] = {key: value for key, value in table.items() if key != "classes"}
    if learning_rate is not None:
        head["learning-rate"] = learning_rate
    if names is not None:
        head["fleet-names"] = list(names)
    rows = [", ".join(_item(key, value) for key, value in row.items()) for row in table["classes"]]
    return [
        tomli_w.dumps(head).rstrip(),
        "",
        "# routing is the probability of each single client of a class.",
        "classes = [",
        *(f"  {{ {row} }}," for row in rows),
        "]",
    ]


def read_plan(path: str | os.PathLike[str], folder: Path | None = None) -> Plan:
    """Read a plan, checking every key and value.

    A learning rate other than the objective's best counts as given. An objective of one's own is
    looked for in ``folder``, by default that of the file.
    """
    table = Table.read(os.fspath(path))
    learning_rate = table.take("learning-rate", float, default=None)
    names = table.take("fleet-names", list, default=None)
    network = Network.from_table(table)
    objective = read_objective(table, Path(path).parent if folder is None else folder)
    # What to run is for `sojourn.strategy` to read.
    for other in ("strategy", "predicted"):
        table.take(other, dict, default=None)
    origin = table.take("provenance", dict, default={})
    evidence = table.take("evidence", dict, default=None)
    table.close()
    if objective is None or evidence is not None:
        raise InvalidFile(
            f"{path}: a strategy, not a plan: it has no [objective]. Read it with Strategy.read."
        )
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


def read_objective(table: Table, folder: Path) -> Objective | None:
    """What a plan in ``table`` was optimised for, with its constants; ``None`` without one."""
    constants = _read_constants(table)
    inner = table.optional_table("objective")
    return None if inner is None else objective_from_table(inner, constants, folder)


def _read_constants(table: Table) -> LearningConstants | None:
    inner = table.optional_table("constants")
    if inner is None:
        return None
    constants = LearningConstants.from_table(inner)
    inner.close()
    return constants


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


def _item(key: str, value: object) -> str:
    return tomli_w.dumps({key: value}).strip()

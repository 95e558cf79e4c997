"""Plans on disk: TOML with one line per class."""

import contextlib
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from sojourn.config import Table
from sojourn.constants import LearningConstants
from sojourn.dispatch import Policy, Routed, as_policy, policy_to_table
from sojourn.errors import InvalidFile, InvalidInput, Unreachable
from sojourn.files import replacing
from sojourn.network import Network
from sojourn.optimize.objectives import Evaluation, Objective
from sojourn.optimize.registry import objective_from_table, objective_to_table
from sojourn.planning.measured import Measured
from sojourn.planning.plan import Plan
from sojourn.rules import Rule, rule_from_table, rule_to_table
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
    tail: dict[str, Any] = {}
    if plan.rule is not None or not plan.policy.routes:
        chosen: dict[str, Any] = {"policy": policy_to_table(plan.policy)}
        if plan.rule is not None:
            chosen["rule"] = rule_to_table(plan.rule)
        tail["strategy"] = chosen
    if plan.evidence:
        tail["evidence"] = {**plan.objective.to_table(), **plan.evidence}
    else:
        tail["objective"] = objective_to_table(plan.objective)
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


def read_plan(path: str | os.PathLike[str], folder: Path | None = None) -> Plan:
    """Read a plan, checking every key and value.

    A learning rate other than the objective's best counts as given. An objective of one's own is
    sought in ``folder``, by default that of the file.
    """
    table = Table.read(os.fspath(path))
    learning_rate = table.take("learning-rate", float, default=None)
    names = table.take("fleet-names", list, default=None)
    network = Network.from_table(table)
    constants = _read_constants(table)
    beside = Path(path).parent if folder is None else folder
    evidence = table.take("evidence", dict, default={})
    objective: Objective
    if evidence:
        objective = Measured.from_table(Table(evidence, f"{path}: [evidence]"), None)
    else:
        objective = objective_from_table(table.table("objective"), constants, beside)
    policy, rule = _read_strategy(table.optional_table("strategy"), beside)
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
        policy=policy,
        rule=rule,
        evidence={k: v for k, v in evidence.items() if k not in ("criterion", "score")},
    )


def _read_strategy(table: Table | None, folder: Path) -> tuple[Policy, Rule | None]:
    if table is None:
        return Routed(), None
    policy = as_policy(
        table.take("policy", (str, dict), default="routed"), f"{table.where}: policy", folder
    )
    given = table.take("rule", (str, dict), default=None)
    rule = None if given is None else rule_from_table(given, f"{table.where}: rule", folder)
    table.close()
    return policy, rule


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


def _item(key: str, value: Any) -> str:
    return tomli_w.dumps({key: value}).strip()

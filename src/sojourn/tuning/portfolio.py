"""The candidates by default: what theory and practice would try, as tables of an experiment."""

from collections.abc import Mapping, Sequence
from typing import Any

from sojourn.errors import InvalidInput
from sojourn.network import Fleet
from sojourn.rules import rule_from_table
from sojourn.rules.memory import check_memory
from sojourn.types import Vector

CAP = 5.0
AVERAGE = 0.2
"""The last fraction of the versions whose mean is delivered: noise averages out, and steps can be larger."""
AVERAGED = {"name": "plain", "average": AVERAGE}
MOMENTUM = {"name": "momentum", "beta": 0.9, "average": AVERAGE}
ADAPTIVE = {"name": "adam", "beta1": 0.0, "beta2": 0.99, "average": AVERAGE}
"""Steps scaled by root mean squares, without momentum: tasks in flight are momentum enough."""

UNIFORM, FEDBUFF, FEDASYNC, FEDAVG = "uniform routing", "FedBuff", "FedAsync", "FedAvg"
BASELINES = (UNIFORM, FEDBUFF, FEDASYNC, FEDAVG)
"""What frameworks ship, and the paper's starting point: what a recommendation has to beat."""


def portfolio(
    fleet: Fleet, weights: Vector, routings: Mapping[str, Sequence[float]]
) -> list[dict[str, Any]]:
    """Strategy tables, the most promising first, so that a small budget drops the last.

    Everybody is kept busy with one task (`sojourn.dispatch.NeverQueue`), which no routing can beat in
    noise and staleness; whether to undo the bias towards fast clients, and how to tame the heavy
    updates that come of it, depends on the data. All but plain ``never-queue`` deliver a mean of their
    last versions. Table rules are left out where their memory would
    not fit. Routings (those of ``routings`` have a probability per client) and the usual rules are
    there to be compared with.
    """
    n = fleet.size
    never = {"policy": "never-queue"}
    capped = {"debias": 1.0, "cap": CAP}

    def sgd(**knobs: Any) -> dict[str, Any]:
        return {"name": "async-sgd", **knobs}

    tables: list[dict[str, Any]] = [
        {"name": "never-queue", "rule": sgd(), **never},
        {"name": "never-queue, unbiased", "rule": sgd(debias=1.0, server=AVERAGED), **never},
        {"name": "never-queue, capped", "rule": sgd(**capped, server=AVERAGED), **never},
        {"name": "never-queue, momentum", "rule": sgd(server=MOMENTUM), **never},
        {"name": "never-queue, adaptive", "rule": sgd(server=ADAPTIVE), **never},
        {"name": UNIFORM, "rule": "async-sgd", "policy": "routed", "routing": "uniform"},
        {"name": FEDBUFF, "rule": "fedbuff", **never},
        {"name": FEDASYNC, "rule": "fedasync", **never},
        {"name": "never-queue, half debiased", "rule": sgd(debias=0.5, server=AVERAGED), **never},
        {"name": "never-queue, capped, momentum", "rule": sgd(**capped, server=MOMENTUM), **never},
        {"name": "ACE", "rule": {"name": "ace", "warm-up": False, "server": AVERAGED}, **never},
        {
            "name": "never-queue, half debiased, adaptive",
            "rule": sgd(debias=0.5, server=ADAPTIVE),
            **never,
        },
        {"name": "never-queue, capped, adaptive", "rule": sgd(**capped, server=ADAPTIVE), **never},
        {"name": FEDAVG, "rule": "fedavg", "concurrency": max(1, min(n, n // 3 or 1))},
        *(
            {
                "name": name,
                "rule": "generalized-async-sgd",
                "policy": "routed",
                "routing": list(probabilities),
            }
            for name, probabilities in routings.items()
        ),
    ]
    return [table for table in tables if _fits(table, n, weights)]


def _fits(table: dict[str, Any], clients: int, weights: Vector) -> bool:
    try:
        check_memory(rule_from_table(table["rule"]), clients, weights)
    except InvalidInput:
        return False
    return True

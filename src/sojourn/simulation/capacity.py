"""What a simulation would take, said before it is begun."""

import os
from pathlib import Path

import numpy as np

from sojourn.errors import InvalidInput
from sojourn.floor import target_rates
from sojourn.network import Network
from sojourn.resources import available_bytes, check_disk_for, check_memory_for
from sojourn.simulation.scenario import Scenario

BYTES_PER_ROUND = 20
"""A client, a dispatch round and a time."""
BYTES_PER_CLIENT = 120
BYTES_PER_TASK = 40
MOST_CLIENTS = 2**31 - 1
"""Clients are numbered with 32 bits in a schedule."""


def check_resources(
    network: Network,
    scenario: Scenario,
    *,
    rounds: int | None,
    time: float | None,
    folder: str | os.PathLike[str] | None = None,
    at_once: int = 1,
) -> None:
    """Raise unless clients, tasks and ``at_once`` schedules fit into this machine."""
    if network.size > MOST_CLIENTS:
        raise InvalidInput(
            f"a simulation has at most {MOST_CLIENTS} clients; the fleet has {network.size}"
        )
    clients = float(BYTES_PER_CLIENT * network.size * at_once)
    tasks = float(BYTES_PER_TASK * scenario.policy.in_flight(network) * at_once)
    check_memory_for(
        f"{network.size:,} clients and {network.concurrency:,} tasks in flight",
        clients + tasks,
        "Simulate fewer of them.",
    )
    left = available_bytes()
    if rounds is None:
        most = float(time or 0.0) * float(network.fleet.total_rate) / scenario.work
        if most * BYTES_PER_ROUND * at_once < 0.1 * left:
            return
        number, how = _expected_rounds(network, scenario, float(time or 0.0)), "about "
    else:
        number, how = float(rounds), ""
    what, needed = f"{how}{number:,.0f} rounds", number * BYTES_PER_ROUND
    if folder is not None:
        check_disk_for(what, needed, Path(folder), "Ask for fewer.")
    else:
        check_memory_for(what, needed * at_once, "Ask for fewer, or write them to a folder.")


def _expected_rounds(network: Network, scenario: Scenario, time: float) -> float:
    if scenario.policy.routes:
        from sojourn.jackson import analyze

        return time * float(analyze(network).throughput) / scenario.work
    rates = target_rates(network.fleet, network.concurrency)
    return time * float(np.dot(network.fleet.counts, rates)) / scenario.work

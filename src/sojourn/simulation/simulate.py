"""The entry point: a network in, a schedule out."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from sojourn._support.checks import check_positive, check_whole
from sojourn._support.memory import available_bytes, check_disk_for, check_memory_for
from sojourn.errors import InvalidInput
from sojourn.figures.timeline import LOOK_AHEAD, TASKS_EACH, Timeline
from sojourn.fleet import Network
from sojourn.simulation.runs import Run, start_run
from sojourn.simulation.scenario import Scenario, ScenarioParts, chosen_scenario
from sojourn.simulation.schedule import Schedule
from sojourn.simulation.storage import ScheduleWriter
from sojourn.simulation.streams import Seed, seed_sequence
from sojourn.theory.floor import target_rates
from sojourn.types import FloatArray, IntArray

CHUNK = 1 << 20
BYTES_PER_ROUND = 20
"""A client, a dispatch round and a time."""
BYTES_PER_CLIENT = 120
BYTES_PER_TASK = 40
MOST_CLIENTS = 2**31 - 1
"""Clients are numbered with 32 bits in a schedule."""


def simulate(
    network: Network,
    scenario: Scenario | None = None,
    *,
    rounds: int | None = None,
    time: float | None = None,
    seed: Seed = 0,
    folder: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **parts: Unpack[ScenarioParts],
) -> Schedule:
    r"""Simulate who finishes when, for a number of ``rounds`` or for a virtual ``time``.

    Client i serves its tasks first in, first out, one at a time, each in ``work`` times (one number,
    or one for each client) a service time of mean :math:`1/\mu_i` and shape ``law`` (see ``Law``; by default the fleet's own). At each
    completion one task is dispatched, as ``policy`` says (see `sojourn.dispatch`): ``routed``,
    ``never-queue``, ``idle``, ``shuffled``, ``synchronous``, ``restart``, ``first-of``, ``attempts``,
    or one's own. Where the network has links and a server that take time, a task travels first, its
    update travels back and queues at the server, and then the round counts; ``link_law`` and
    ``server_law`` are the laws of these times. ``paired``, ``offline``, ``hours`` and ``drift`` are
    explained in `Scenario`. Give a ``scenario``, or its parts (`ScenarioParts`) by name.

    ``start`` is ``"spread"`` (round-robin, m/n tasks per client), ``"stationary"`` (an exact draw
    from the product form, for exponential service; for other laws, where it is unknown, the same
    draw is a good guess) or the number of tasks of each client. The same arguments and ``seed`` give
    the same schedule everywhere. With ``folder`` the schedule goes to disk as it is made, in
    constant memory, and comes back memory-mapped; ``progress`` is then called now and then with the
    rounds done and the rounds expected in all.

    Cost per round: constant for exponential routed, O(log min(n, m)) otherwise; for a policy of one's
    own, which is called from Python, some microseconds.
    Paper: Section 2.3, Algorithm 1.

    >>> from sojourn.fleet import built_in_fleet, uniform_routing
    >>> fleet = built_in_fleet("three-clusters")
    >>> schedule = simulate(Network(fleet, uniform_routing(fleet), 30), time=3000.0, seed=1)
    >>> bool(schedule.rounds > 500 and schedule.time[-1] <= 3000.0)
    True
    """
    scenario = chosen_scenario(network, scenario, parts)
    _check_horizon(rounds, time)
    seed_sequence(seed)
    check_resources(network, scenario, rounds=rounds, time=time, folder=folder)
    run = start_run(network, scenario, seed=seed)
    horizon = None if time is None else float(time)

    def ended(client: NDArray[np.int32], dispatched: IntArray, times: FloatArray) -> Schedule:
        """The schedule of these rounds, the last of which is the last of the run."""
        last = float(times[-1]) if times.size else 0.0
        return Schedule(
            client,
            dispatched,
            times,
            *run.in_flight(),
            network=network,
            scenario=scenario,
            seed=seed,
            horizon=horizon,
            spent=run.spent(last if horizon is None else horizon),
            cut=run.cut,
        )

    if folder is None:
        pieces = zip(*_pieces(run, rounds, time, rounds or CHUNK), strict=True)
        return ended(*(np.concatenate(part) if len(part) > 1 else part[0] for part in pieces))
    done = 0
    with ScheduleWriter(folder) as writer:
        for piece in _pieces(run, rounds, time, CHUNK):
            writer.append(*piece)
            done += piece[0].size
            if progress is not None and done:
                progress(done, rounds or round(done * float(time or 0.0) / piece[2][-1]))
        writer.finish(ended(*piece))
    return Schedule.read(folder)


def _pieces(
    run: Run, rounds: int | None, time: float | None, size: int
) -> Iterator[tuple[NDArray[np.int32], IntArray, FloatArray]]:
    """The schedule in pieces of at most ``size`` rounds; at least one piece, which may be empty."""
    limit = math.inf if time is None else float(time)
    done, ended = 0, False
    while not ended and (rounds is None or done < rounds):
        room = size if rounds is None else min(size, rounds - done)
        client = np.empty(room, dtype=np.int32)
        dispatched = np.empty(room, dtype=np.int64)
        times = np.empty(room)
        written, ended = run.advance(limit, done, (client, dispatched, times))
        yield client[:written], dispatched[:written], times[:written]
        done += written


def _check_horizon(rounds: int | None, time: float | None) -> None:
    if (rounds is None) == (time is None):
        raise InvalidInput("say how long to simulate: either rounds or time, one of the two")
    if rounds is not None:
        check_whole("rounds", rounds)
    if time is not None:
        check_positive("time", time)


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
        most = float(time or 0.0) * float(network.fleet.total_rate) / float(np.min(scenario.work))
        if most * BYTES_PER_ROUND * at_once < 0.1 * left:
            return
        number, how = _expected_rounds(network, scenario, float(time or 0.0)), "about "
    else:
        number, how = float(rounds), ""
    words = f"{number:,.0f}" if number < 1e15 else f"{number:.3g}"
    what, needed = f"{how}{words} rounds", number * BYTES_PER_ROUND
    if folder is not None:
        check_disk_for(what, needed, Path(folder), "Ask for fewer.")
    else:
        check_memory_for(what, needed * at_once, "Ask for fewer, or write them to a folder.")


def _expected_rounds(network: Network, scenario: Scenario, time: float) -> float:
    network = scenario.task_network(network)
    if scenario.policy.routes:
        from sojourn.theory.jackson import analyze

        return time * float(analyze(network).throughput)
    rates = target_rates(network.fleet, network.concurrency)
    return time * float(np.dot(network.fleet.counts, rates))


def previews(
    runs: Mapping[str, tuple[Network, Scenario]],
    *,
    until: float | None = None,
    classes: Sequence[tuple[str, int]] | None = None,
    seed: int = 0,
) -> dict[str, Timeline]:
    """The beginning of each run up to ``until``, as a timeline.

    By default as long as the fastest of them needs for some tasks of every client. ``classes`` are
    the names and sizes of the classes of clients, if they are not to be the networks' own.
    """
    if until is None:
        until = min(
            simulate(network, scenario, rounds=TASKS_EACH * network.size, seed=seed).duration
            for network, scenario in runs.values()
        )
    drawn = {}
    for name, (network, scenario) in runs.items():
        schedule = simulate(network, scenario, time=LOOK_AHEAD * until, seed=seed)
        timeline = schedule.timeline(until)
        drawn[name] = timeline if classes is None else replace(timeline, classes=tuple(classes))
    return drawn

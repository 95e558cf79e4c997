"""The entry point: a network in, a schedule out."""

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.checks import check_positive, check_whole
from sojourn.errors import InvalidInput
from sojourn.network import Network
from sojourn.simulation.capacity import check_resources
from sojourn.simulation.plain import PlainRun
from sojourn.simulation.runs import Run, start_run
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.schedule import Schedule
from sojourn.simulation.storage import ScheduleWriter
from sojourn.simulation.streams import Seed, seed_sequence
from sojourn.types import FloatArray, IntArray

CHUNK = 1 << 20


def simulate(
    network: Network,
    scenario: Scenario | None = None,
    *,
    rounds: int | None = None,
    time: float | None = None,
    seed: Seed = 0,
    folder: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **parts: Any,
) -> Schedule:
    r"""Simulate who finishes when, for a number of ``rounds`` or for a virtual ``time``.

    Client i serves its tasks first in, first out, one at a time, each in ``work`` times a service time of
    mean :math:`1/\mu_i` and shape ``law`` (see ``Law``). At each completion one task is dispatched, as
    ``policy`` says (see `sojourn.dispatch`): ``routed``, ``never-queue``, ``idle``, ``shuffled``,
    ``synchronous``, ``restart``, ``first-of``, ``attempts``, or one's own. Where the network has links and a
    server that take time, a task travels first, its update travels back and queues at the server,
    and then the round counts; ``link_law`` and ``server_law`` are the laws of these times. These six and ``start`` are the parts of a ``scenario``; give
    that, or the parts by their names.

    ``start`` is ``"spread"`` (round-robin, m/n tasks per client), ``"stationary"`` (an exact draw
    from the product form, for exponential service; for other laws, where it is unknown, the same
    draw is a good guess) or the number of tasks of each client. The same arguments and seed give the
    same schedule everywhere. With ``folder`` the schedule goes to disk as it is made, in
    constant memory, and comes back memory-mapped; ``progress`` is then called now and then with the
    rounds done and the rounds expected in all.

    Cost per round: constant for exponential routed, O(log min(n, m)) otherwise; for a policy of one's
    own, which is called from Python, some microseconds.
    Paper: Section 2.3, Algorithm 1.

    >>> from sojourn.network import built_in_fleet, uniform_routing
    >>> fleet = built_in_fleet("three-clusters")
    >>> schedule = simulate(Network(fleet, uniform_routing(fleet), 30), time=3000.0, seed=1)
    >>> bool(schedule.rounds > 500 and schedule.time[-1] <= 3000.0)
    True
    """
    if scenario is None:
        scenario = Scenario.of(network, **parts)
    elif parts:
        raise InvalidInput(f"give a scenario or its parts ({', '.join(parts)}), not both")
    _check_horizon(rounds, time)
    seed_sequence(seed)
    check_resources(network, scenario, rounds=rounds, time=time, folder=folder)
    run = start_run(network, scenario, seed=seed)
    about: dict[str, Any] = {
        "network": network,
        "scenario": scenario,
        "seed": seed,
        "horizon": None if time is None else float(time),
    }
    if folder is not None:
        with ScheduleWriter(folder) as writer:
            done = 0
            for client, dispatched, times in _pieces(run, rounds, time, CHUNK):
                writer.append(client, dispatched, times)
                done += client.size
                if progress is not None and done:
                    progress(done, rounds or round(done * float(time or 0.0) / times[-1]))
                last = float(times[-1]) if times.size else 0.0
            about |= {"spent": run.spent(time or last), "cut": _cut(run)}
            writer.finish(*run.in_flight(), **about)
        return Schedule.read(folder)
    pieces = list(_pieces(run, rounds, time, rounds or CHUNK))
    client, dispatched, times = (
        parts[0] if len(parts) == 1 else np.concatenate(parts)
        for parts in zip(*pieces, strict=True)
    )
    spent = run.spent(float(times[-1]) if time is None else float(time))
    return Schedule(
        client, dispatched, times, *run.in_flight(), **about, spent=spent, cut=_cut(run)
    )


def _cut(run: Run) -> IntArray | None:
    return run.cut if isinstance(run, PlainRun) else None


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
        written, ended = run.advance(limit, done, client, dispatched, times)
        yield client[:written], dispatched[:written], times[:written]
        done += written


def _check_horizon(rounds: int | None, time: float | None) -> None:
    if (rounds is None) == (time is None):
        raise InvalidInput("say how long to simulate: either rounds or time, one of the two")
    if rounds is not None:
        check_whole("rounds", rounds)
    if time is not None:
        check_positive("time", time)

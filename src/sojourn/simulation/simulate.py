"""The entry points: a network in, a schedule out; or what independent replicates say together."""

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from sojourn._support.checks import check_positive, check_whole
from sojourn._support.compiling import njit
from sojourn._support.estimate import Estimate
from sojourn._support.memory import available_bytes, check_disk_for, check_memory_for
from sojourn._support.progress import shown
from sojourn.errors import InvalidInput
from sojourn.figures.timeline import LOOK_AHEAD, TASKS_EACH, Timeline
from sojourn.fleet import Network
from sojourn.simulation.runs import Run, start_run
from sojourn.simulation.scenario import Scenario, ScenarioParts, chosen_scenario
from sojourn.simulation.schedule import Schedule, energy_used, tells_time_spent
from sojourn.simulation.storage import ScheduleWriter
from sojourn.simulation.streams import Seed, seed_sequence, spawned
from sojourn.theory.energy import has_powers
from sojourn.theory.floor import target_rates
from sojourn.types import FloatArray, IntArray

CHUNK = 1 << 20
BYTES_PER_ROUND = 20
"""A client, a dispatch round and a time."""
BYTES_PER_CLIENT = 120
BYTES_PER_TASK = 40
MOST_CLIENTS = 2**31 - 1
"""Clients are numbered with 32 bits in a schedule."""
MOST_ENTRIES = 1 << 20
"""States of classes that the gradient is estimated from, in each replicate."""
MOST_CLASSES_FOR_GRADIENT = 200
BYTES_PER_REPLICATE = 5000
"""A random stream, a place in the queue of the workers and what is found out."""


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

    Client i serves its tasks first in, first out, one at a time, each in ``work`` times (one
    number, or one for each client) a service time of mean :math:`1/\mu_i` and shape ``law`` (see
    ``Law``; by default the fleet's own). At each completion one task is dispatched, as ``policy``
    says (see `sojourn.dispatch`): ``routed``, ``never-queue``, ``idle``, ``shuffled``,
    ``synchronous``, ``restart``, ``first-of``, ``attempts``, or one's own. Where the network has
    links and a server that take time, a task travels first, its update travels back and queues at
    the server, and then the round counts; ``link_law`` and ``server_law`` are the laws of these
    times. ``paired``, ``offline``, ``hours`` and ``drift`` are explained in `Scenario`. Give a
    ``scenario``, or its parts (`ScenarioParts`) by name.

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
    # What is far below the memory there is need not be looked at closely: a short run would notice.
    little = 0.1 * available_bytes()
    if clients + tasks > little:
        check_memory_for(
            f"{network.size:,} clients and {network.concurrency:,} tasks in flight",
            clients + tasks,
            "Simulate fewer of them.",
        )
    most = float(rounds or 0)
    if rounds is None:
        most = float(time or 0.0) * float(network.fleet.total_rate) / float(np.min(scenario.work))
    if most * BYTES_PER_ROUND * at_once < little and (folder is None or rounds is None):
        return
    number, how = most, ""
    if rounds is None:
        number, how = _expected_rounds(network, scenario, float(time or 0.0)), "about "
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


@dataclass(frozen=True, eq=False)
class Estimates:
    """What replicates of a simulation say, per class of the fleet where it makes sense.

    ``rounds`` and ``time`` are those of one replicate; ``throughput`` is in rounds per time unit;
    ``mean_tasks`` is :math:`E[X_i]` of one client per class, ``(k,)``; ``staleness`` the mean
    relative delay of a task sent to such a client, ``(k,)``. ``gradient[a, b]``, ``(k, k)``, is the
    derivative of the relative delays of class a, summed over its clients, with respect to the
    probability of one client of class b (paper, Theorem 3.1: :math:`\\mathrm{Cov}[X_i, X_j]/p_j`); it
    is None unless the policy is routed. With links and server, ``mean_tasks`` counts a client's
    tasks wherever they are: :math:`E[D_i]`. ``energy`` is the clients' energy per round over whole
    replicates, warm-up included; None if the fleet has no powers. ``completed`` are the tasks that
    one client of each class completes per time unit, ``(k,)``.
    """

    network: Network
    replicates: int
    rounds: Estimate
    time: Estimate
    throughput: Estimate
    mean_tasks: Estimate
    staleness: Estimate
    gradient: Estimate | None
    energy: Estimate | None = None
    completed: Estimate | None = None

    def __repr__(self) -> str:
        return f"Estimates({self.replicates} replicates, throughput {self.throughput})"


def replicate(
    network: Network,
    scenario: Scenario | None = None,
    *,
    replicates: int = 20,
    rounds: int | None = None,
    time: float | None = None,
    warm_up: int = 0,
    seed: Seed = 0,
    workers: int | None = None,
    progress: bool | None = None,
    **parts: Unpack[ScenarioParts],
) -> Estimates:
    r"""Simulate ``replicates`` times, independently, and estimate with standard errors.

    Each replicate runs for ``rounds`` or ``time`` as in ``simulate``, leaving out its first ``warm_up``
    rounds, in ``scenario`` or in one made of its parts (`ScenarioParts`, as in ``simulate``).
    Without ``scenario`` and ``start`` it begins with a ``stationary`` draw if the policy is routed,
    else ``spread``. Its random stream is spawned from ``seed``, so the result does not depend on the
    number of ``workers`` (threads; the kernels release Python's lock). ``progress`` shows a bar on
    standard error; by default only on a terminal. The gradient estimator is skipped above 200 classes
    and where tasks are lost.

    Cost: that of the simulations, and O(rounds k^2) for the gradient. Memory: 24 bytes per round and
    worker. Paper: Theorem 3.1, equation (7).

    >>> from sojourn.fleet import built_in_fleet, uniform_routing
    >>> fleet = built_in_fleet("three-clusters")
    >>> replicate(Network(fleet, uniform_routing(fleet), 30), rounds=2000, seed=1)
    Estimates(20 replicates, throughput 0.2... ± 0.00...)
    """
    check_whole("replicates", replicates, least=2)
    threads = os.cpu_count() or 1 if workers is None else check_whole("workers", workers)
    check_memory_for(
        f"{replicates:,} replicates",
        replicates * float(BYTES_PER_REPLICATE + 40 * network.fleet.classes),
        "Ask for fewer.",
    )
    chosen = chosen_scenario(network, scenario, parts)
    if scenario is None and parts.get("start") is None and chosen.policy.routes:
        chosen = replace(chosen, start="stationary")
    check_resources(network, chosen, rounds=rounds, time=time, at_once=threads)
    powered = tells_time_spent(chosen) and has_powers(network.fleet)
    # The gradient is read from schedules that send one task per round; lost tasks are sent anew.
    loses = chosen.offline == "lose" and chosen.has_calendar(network)
    few = network.fleet.classes <= MOST_CLASSES_FOR_GRADIENT
    with_gradient = chosen.policy.routes and few and not loses

    def run(seed: np.random.SeedSequence) -> _Summary:
        schedule = simulate(network, chosen, rounds=rounds, time=time, seed=seed)
        if schedule.rounds <= warm_up:
            raise InvalidInput(
                f"a replicate completed {schedule.rounds} rounds, which leaves none after a "
                f"warm-up of {warm_up}: simulate for longer"
            )
        begun = float(schedule.time[warm_up - 1]) if warm_up else 0.0
        completed = np.bincount(schedule.client[warm_up:], minlength=network.size)
        return _Summary(
            rounds=schedule.rounds - warm_up,
            time=schedule.duration - begun,
            present=_by_class(network, schedule.mean_tasks(warm_up=warm_up)),
            share=_by_class(network, completed / (schedule.rounds - warm_up)),
            moments=_class_moments(schedule, warm_up=warm_up) if with_gradient else None,
            energy=float(energy_used(schedule).sum()) / schedule.rounds if powered else 0.0,
        )

    summaries: list[_Summary] = []
    pool = ThreadPoolExecutor(max_workers=threads)
    try:
        with shown(progress if progress is not None else sys.stderr.isatty()) as bar:
            bar.start("replicates", replicates)
            for summary in pool.map(run, spawned(seed, replicates)):
                summaries.append(summary)
                bar.advance(1)
    finally:
        pool.shutdown(cancel_futures=True)
    return _pool(network, summaries, powered=powered)


class _Summary(NamedTuple):
    rounds: int
    time: float
    present: FloatArray
    share: FloatArray
    moments: tuple[FloatArray, FloatArray] | None
    energy: float


def _pool(network: Network, summaries: list[_Summary], *, powered: bool) -> Estimates:
    rounds = np.array([s.rounds for s in summaries], dtype=np.float64)
    time = np.array([s.time for s in summaries])
    present = np.array([s.present for s in summaries])
    share = np.array([s.share for s in summaries])
    gradient = None
    if all(s.moments is not None for s in summaries):
        first, second = (
            np.array(m) for m in zip(*(s.moments or () for s in summaries), strict=True)
        )
        covariance = _covariance_estimate(first, second)
        per = network.fleet.counts * network.routing
        gradient = Estimate(covariance.mean / per, covariance.standard_error / per)
    return Estimates(
        network=network,
        replicates=len(summaries),
        rounds=Estimate.from_samples(rounds),
        time=Estimate.from_samples(time),
        throughput=Estimate.ratio(rounds, time),
        mean_tasks=Estimate.from_samples(present / network.fleet.counts),
        staleness=Estimate.ratio(present, share),
        gradient=gradient,
        energy=Estimate.from_samples(np.array([s.energy for s in summaries])) if powered else None,
        completed=Estimate.ratio(share * rounds[:, None] / network.fleet.counts, time[:, None]),
    )


def _by_class(network: Network, per_client: FloatArray) -> FloatArray:
    first = np.cumsum(network.fleet.counts) - network.fleet.counts
    return np.asarray(np.add.reduceat(per_client, first))


def _covariance_estimate(first: FloatArray, second: FloatArray) -> Estimate:
    """A covariance matrix from each replicate's mean vectors (R, k) and mean products (R, k, k).

    Replicates may be short compared with the relaxation time of the network, so means are
    taken over all of them together; leaving out one replicate at a time (the jackknife) gives the
    standard error and takes out the bias.
    """
    number = first.shape[0]

    def pooled(mean: FloatArray, products: FloatArray) -> FloatArray:
        return np.asarray(products - mean[..., :, None] * mean[..., None, :])

    whole = pooled(first.mean(axis=0), second.mean(axis=0))
    without = pooled(
        (first.sum(axis=0) - first) / (number - 1), (second.sum(axis=0) - second) / (number - 1)
    )
    mean = number * whole - (number - 1) * without.mean(axis=0)
    error = np.sqrt((number - 1) * without.var(axis=0))
    return Estimate(mean, error)


def _class_moments(schedule: Schedule, *, warm_up: int) -> tuple[FloatArray, FloatArray]:
    """Means of the class totals at the ends of rounds, ``(k,)``, and of their products, ``(k, k)``.

    Every round is used while that takes at most a million entries, else evenly spaced rounds.
    """
    fleet = schedule.network.fleet
    stride = max(1, (schedule.rounds - warm_up) * fleet.classes // MOST_ENTRIES)
    return _sampled_moments(
        np.repeat(np.arange(fleet.classes), fleet.counts),
        fleet.classes,
        schedule.client,
        schedule.dispatched,
        schedule.pending_client,
        schedule.pending_dispatched,
        warm_up,
        stride,
    )


@njit(cache=True, nogil=True)
def _sampled_moments(
    class_of: IntArray,
    classes: int,
    client: NDArray[np.int32],
    dispatched: IntArray,
    pending_client: NDArray[np.int32],
    pending_dispatched: IntArray,
    warm_up: int,
    stride: int,
) -> tuple[FloatArray, FloatArray]:
    """Replay the schedule, tasks counted by class; needs one dispatch per round."""
    rounds = client.size
    sent_to = np.empty(rounds, dtype=np.int32)
    state = np.zeros(classes)
    for t in range(rounds):
        if dispatched[t] == 0:
            state[class_of[client[t]]] += 1.0
        else:
            sent_to[dispatched[t] - 1] = class_of[client[t]]
    for j in range(pending_client.size):
        if pending_dispatched[j] == 0:
            state[class_of[pending_client[j]]] += 1.0
        else:
            sent_to[pending_dispatched[j] - 1] = class_of[pending_client[j]]
    first = np.zeros(classes)
    second = np.zeros((classes, classes))
    samples = 0
    for t in range(rounds):
        state[class_of[client[t]]] -= 1.0
        if t >= warm_up and (t - warm_up) % stride == 0:
            samples += 1
            first += state
            for a in range(classes):
                if state[a] > 0.0:
                    for b in range(classes):
                        second[a, b] += state[a] * state[b]
        state[sent_to[t]] += 1.0
    return first / samples, second / samples

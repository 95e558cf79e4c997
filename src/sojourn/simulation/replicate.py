"""Independent replicates of a simulation, in parallel, and what they say together."""

import dataclasses
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import NamedTuple, Unpack

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sojourn._support.checks import check_whole
from sojourn._support.estimate import Estimate
from sojourn._support.memory import check_memory_for
from sojourn._support.progress import shown
from sojourn.errors import InvalidInput
from sojourn.fleet import Network
from sojourn.simulation.scenario import Scenario, ScenarioParts, chosen_scenario
from sojourn.simulation.schedule import Schedule, energy_used, tells_time_spent
from sojourn.simulation.simulate import check_resources, simulate
from sojourn.simulation.streams import Seed, spawned
from sojourn.theory.energy import POWERS
from sojourn.types import FloatArray, IntArray

_MOST_ENTRIES = 1 << 20
MOST_CLASSES_FOR_GRADIENT = 200
BYTES_PER_REPLICATE = 5000
"""A random stream, a place in the queue of the workers and what is found out."""


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
    replicates, warm-up included; None if the fleet tells no powers. ``completed`` are the tasks that
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
    threads = _processors() if workers is None else check_whole("workers", workers)
    check_memory_for(
        f"{replicates:,} replicates",
        replicates * float(BYTES_PER_REPLICATE + 40 * network.fleet.classes),
        "Ask for fewer.",
    )
    chosen = chosen_scenario(network, scenario, parts)
    if scenario is None and parts.get("start") is None and chosen.policy.routes:
        chosen = dataclasses.replace(chosen, start="stationary")
    check_resources(network, chosen, rounds=rounds, time=time, at_once=threads)
    one = _Replicate(network, chosen, rounds, time, warm_up)
    summaries: list[_Summary | None] = [None] * replicates
    pool = ThreadPoolExecutor(max_workers=threads)
    try:
        with shown(progress if progress is not None else sys.stderr.isatty()) as bar:
            bar.start("replicates", replicates)
            futures: dict[Future[_Summary], int] = {
                pool.submit(one.run, child): r for r, child in enumerate(spawned(seed, replicates))
            }
            for future in as_completed(futures):
                summaries[futures[future]] = future.result()
                bar.advance(1)
    finally:
        pool.shutdown(cancel_futures=True)
    return _pool(network, [s for s in summaries if s is not None], powered=one.powered)


def _processors() -> int:
    return os.cpu_count() or 1


class _Summary(NamedTuple):
    rounds: int
    time: float
    present: FloatArray
    share: FloatArray
    moments: tuple[FloatArray, FloatArray] | None
    energy: float


@dataclass(frozen=True)
class _Replicate:
    """What every replicate simulates, and the summary of it."""

    network: Network
    scenario: Scenario
    rounds: int | None
    time: float | None
    warm_up: int

    @property
    def powered(self) -> bool:
        """Whether the energy can be computed."""
        columns = self.network.fleet.columns
        return tells_time_spent(self.scenario) and any(name in columns for name in POWERS)

    @property
    def with_gradient(self) -> bool:
        """It is read from schedules that send one task per round; lost tasks are sent anew."""
        loses = self.scenario.offline == "lose" and self.scenario.has_calendar(self.network)
        few = self.network.fleet.classes <= MOST_CLASSES_FOR_GRADIENT
        return self.scenario.policy.routes and few and not loses

    def run(self, seed: np.random.SeedSequence) -> _Summary:
        network, warm_up = self.network, self.warm_up
        schedule = simulate(network, self.scenario, rounds=self.rounds, time=self.time, seed=seed)
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
            moments=_class_moments(schedule, warm_up=warm_up) if self.with_gradient else None,
            energy=float(energy_used(schedule).sum()) / schedule.rounds if self.powered else 0.0,
        )


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
    stride = max(1, (schedule.rounds - warm_up) * fleet.classes // _MOST_ENTRIES)
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

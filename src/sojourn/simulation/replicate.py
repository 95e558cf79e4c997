"""Independent replicates of a simulation, in parallel, and what they say together."""

import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sojourn.checks import check_whole
from sojourn.energy import POWERS
from sojourn.errors import InvalidInput
from sojourn.estimate import Estimate
from sojourn.network import Network
from sojourn.progress import shown
from sojourn.resources import check_memory_for
from sojourn.simulation.activity import energy_used, tells_time_spent
from sojourn.simulation.capacity import check_resources
from sojourn.simulation.estimates import Estimates, covariance_estimate
from sojourn.simulation.moments import class_moments
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.simulate import simulate
from sojourn.simulation.streams import Seed, spawned
from sojourn.types import FloatArray

MOST_CLASSES_FOR_GRADIENT = 200
BYTES_PER_REPLICATE = 5000
"""A random stream, a place in the queue of the workers and what is found out."""


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
    **parts: Any,
) -> Estimates:
    r"""Simulate ``replicates`` times, independently, and estimate with standard errors.

    Each replicate runs for ``rounds`` or ``time`` as in ``simulate``, leaving out its first ``warm_up``
    rounds, in ``scenario`` or one made of its parts by name (law, policy, start, work); without
    either it starts from a ``stationary`` draw if the policy is routed, else ``spread``. Its random stream is spawned from ``seed``, so the result does not depend on the number
    of ``workers`` (threads; the kernels release Python's lock). ``progress`` shows a bar on standard error;
    by default only on a terminal. The gradient estimator is skipped above 200 classes and where tasks are lost.

    Cost: that of the simulations, and O(rounds k^2) for the gradient. Memory: 24 bytes per round and
    worker. Paper: Theorem 3.1, equation (7).

    >>> from sojourn.network import built_in_fleet, uniform_routing
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
    chosen = _scenario(network, parts) if scenario is None else scenario
    if scenario is not None and parts:
        raise InvalidInput(f"give a scenario or its parts ({', '.join(parts)}), not both")
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


def _scenario(network: Network, parts: dict[str, Any]) -> Scenario:
    """The scenario of these parts; where nothing is said of the start, from the steady state."""
    made = Scenario.of(network, **parts)
    if parts.get("start") is None and made.policy.routes:
        return Scenario.of(network, **{**parts, "start": "stationary"})
    return made


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
    """What every replicate simulates, and what is kept of it."""

    network: Network
    scenario: Scenario
    rounds: int | None
    time: float | None
    warm_up: int

    @property
    def powered(self) -> bool:
        """Whether energy can be told."""
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
            moments=class_moments(schedule, warm_up=warm_up) if self.with_gradient else None,
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
        covariance = covariance_estimate(first, second)
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

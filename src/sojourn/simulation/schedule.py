"""What happened when: for every completed task its client, its dispatch and its time."""

import os
from dataclasses import dataclass
from html import escape

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sojourn.compiling import Deferring  # noqa: F401
from sojourn.errors import InvalidInput
from sojourn.network import Network
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.storage import ScheduleWriter, read_fields
from sojourn.simulation.streams import Seed
from sojourn.timeline import Timeline
from sojourn.types import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Schedule:
    """The completions of a simulated run, in order of time.

    Round t (0-based) completes a task of ``client[t]`` at ``time[t]``; the task was sent when
    ``dispatched[t]`` rounds had been completed (0 for the tasks in flight at time 0), so with the
    weights after that many rounds. ``pending_client`` and ``pending_dispatched`` are the tasks
    still in flight at the end. Who finishes when does not depend on the weights: one schedule serves
    every model, data set and server rule. ``spent`` is the time spent in every stage where tasks
    travel (see `sojourn.simulation.journeys`); `sojourn.simulation.activity.time_spent` reads it.
    ``cut`` are the rounds whose task the policy cut short, so that they have no result.

    >>> from sojourn.network import built_in_fleet, uniform_routing
    >>> from sojourn.simulation.simulate import simulate
    >>> fleet = built_in_fleet("three-clusters")
    >>> schedule = simulate(Network(fleet, uniform_routing(fleet), 30), rounds=1000, seed=1)
    >>> schedule
    Schedule(1000 rounds in ... units of time, 30 clients, concurrency 30)
    """

    client: NDArray[np.int32]
    dispatched: IntArray
    time: FloatArray
    pending_client: NDArray[np.int32]
    pending_dispatched: IntArray
    network: Network
    scenario: Scenario
    seed: Seed
    horizon: float | None = None
    spent: FloatArray | None = None
    cut: IntArray | None = None

    @property
    def rounds(self) -> int:
        """The number of completed tasks."""
        return int(self.client.size)

    @property
    def in_flight(self) -> int:
        """How many tasks are in flight: m, or fewer if the policy keeps some back."""
        return self.scenario.policy.in_flight(self.network)

    @property
    def shares(self) -> FloatArray | None:
        """Every client's share of the completions in the long run, ``(n,)``; ``None``: unknown."""
        return self.scenario.policy.shares(self.network)

    @property
    def relative_delay(self) -> IntArray:
        """Rounds completed between the dispatch of each task and its completion."""
        return np.arange(self.rounds) - self.dispatched

    @property
    def duration(self) -> float:
        """The virtual time covered: the horizon asked for, or the time of the last round."""
        if self.horizon is not None:
            return self.horizon
        return float(self.time[-1])

    def throughput(self, *, warm_up: int = 0) -> float:
        """Rounds completed per unit of time, leaving out the first ``warm_up`` rounds."""
        self._check_warm_up(warm_up)
        begun = float(self.time[warm_up - 1]) if warm_up else 0.0
        return (self.rounds - warm_up) / (self.duration - begun)

    def mean_tasks(self, *, warm_up: int = 0) -> FloatArray:
        r"""Tasks at each client at the end of a round, averaged over rounds: shape ``(n,)``.

        The task that has just completed is not counted, so the average estimates :math:`E[X_i]`
        (with links and server :math:`E[D_i]`: tasks of the client, wherever they are) and, unless the
        policy waits for cohorts or stops tasks, or tasks are lost, sums to ``m - 1`` exactly. Tasks in
        flight at both ends count for the rounds they saw; tasks that were stopped or lost do not count.
        Cost: O(rounds). Paper: Proposition 1 and equation (6), :math:`E[D_i] = E[X_i]`.
        """
        self._check_warm_up(warm_up)
        seen = np.zeros(self.network.size, dtype=np.int64)
        _add_presence(self.client, self.dispatched, warm_up, seen)
        since = self.rounds - np.maximum(self.pending_dispatched, warm_up)
        np.add.at(seen, self.pending_client, np.maximum(since, 0))
        return seen / (self.rounds - warm_up)

    def staleness(self, *, warm_up: int = 0) -> FloatArray:
        """Mean relative delay of the tasks completed by each client (nan if none): shape ``(n,)``.

        Rounds before ``warm_up`` are left out. In steady state it is ``E[X_i]/p_i``, and its mean over
        tasks is ``m - 1``.
        """
        self._check_warm_up(warm_up)
        total = np.zeros(self.network.size, dtype=np.int64)
        number = np.zeros(self.network.size, dtype=np.int64)
        _add_delays(self.client, self.dispatched, warm_up, total, number)
        mean = np.full(self.network.size, np.nan)
        np.divide(total, number, out=mean, where=number > 0)
        return mean

    def timeline(self, until: float | None = None) -> Timeline:
        """Who computes what when, up to the time ``until``; by default some tasks of every client.

        >>> from sojourn.network import built_in_fleet, uniform_routing
        >>> from sojourn.simulation.simulate import simulate
        >>> fleet = built_in_fleet("three-clusters")
        >>> schedule = simulate(Network(fleet, uniform_routing(fleet), 30), rounds=1000, seed=1)
        >>> schedule.timeline(until=50.0)
        Timeline(... tasks in 50 units of time, 30 clients busy ...% of it, ... tasks waiting)
        """
        return Timeline.from_completions(
            self.client,
            self.dispatched,
            self.time,
            pending=(self.pending_client, self.pending_dispatched),
            classes=_whole_classes(self.network),
            until=until if until is not None or self.rounds else self.duration,
        )

    def plot(self, until: float | None = None) -> Timeline:
        """The same: a timeline shows itself, and is written by its ``save``."""
        return self.timeline(until)

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{self.timeline().to_svg()}"

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write the schedule as a folder of NumPy arrays and ``schedule.json``.

        The folder appears under its name only when it is complete.
        """
        with ScheduleWriter(folder) as writer:
            writer.append(self.client, self.dispatched, self.time)
            writer.finish(
                self.pending_client,
                self.pending_dispatched,
                network=self.network,
                scenario=self.scenario,
                seed=self.seed,
                horizon=self.horizon,
                spent=self.spent,
                cut=self.cut,
            )

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> "Schedule":
        """Read a folder written by ``write``; the arrays stay on disk until they are used."""
        return cls(**read_fields(folder))

    def __repr__(self) -> str:
        return (
            f"Schedule({self.rounds} rounds in {self.duration:.6g} units of time, "
            f"{self.network.size} clients, concurrency {self.network.concurrency})"
        )

    def _check_warm_up(self, warm_up: int) -> None:
        if not 0 <= warm_up < self.rounds:
            raise InvalidInput(
                f"warm_up must leave at least one of the {self.rounds} rounds; it is {warm_up}"
            )


def _whole_classes(network: Network) -> list[tuple[str, int]]:
    """Names and sizes of the classes, those that a plan split put together again."""
    counts = np.bincount(network.parents, weights=network.fleet.counts).astype(int)
    first = [int(np.flatnonzero(network.parents == k)[0]) for k in range(counts.size)]
    return [(network.fleet.label(k), int(n)) for k, n in zip(first, counts, strict=True)]


@njit(cache=True, nogil=True)
def _add_presence(
    client: NDArray[np.int32], dispatched: IntArray, warm_up: int, seen: IntArray
) -> None:
    for t in range(warm_up, client.size):
        seen[client[t]] += t - max(dispatched[t], warm_up)


@njit(cache=True, nogil=True)
def _add_delays(
    client: NDArray[np.int32],
    dispatched: IntArray,
    warm_up: int,
    total: IntArray,
    number: IntArray,
) -> None:
    for t in range(warm_up, client.size):
        total[client[t]] += t - dispatched[t]
        number[client[t]] += 1

"""What happened when: for every completed task its client, its dispatch and its time.

And what follows from it: how long clients computed, received and sent, what energy and bytes it took.
"""

import os
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from sojourn._support.checks import check_number
from sojourn._support.compiling import njit
from sojourn.dispatch import Idle, NeverQueue, Routed, Shuffled, Synchronous
from sojourn.errors import InvalidInput
from sojourn.figures.timeline import Timeline
from sojourn.fleet import Network
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.storage import ScheduleWriter, read_fields
from sojourn.simulation.streams import Seed
from sojourn.theory.energy import powers
from sojourn.types import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Schedule:
    """The completions of a simulated run, in order of time.

    Round t (0-based) completes a task of ``client[t]`` at ``time[t]``; the task was sent when
    ``dispatched[t]`` rounds had been completed (0 for the tasks in flight at time 0), so with the
    weights after that many rounds. ``pending_client`` and ``pending_dispatched`` are the tasks
    still in flight at the end. Who finishes when does not depend on the weights: one schedule serves
    every model, data set and server rule. ``spent`` is the time spent in every stage where tasks
    travel (see `sojourn.simulation.stations`); `time_spent` reads it.
    ``cut`` are the rounds whose task the policy cut short, so that they have no result.

    >>> from sojourn.fleet import built_in_fleet, uniform_routing
    >>> from sojourn.simulation.simulate import simulate
    >>> fleet = built_in_fleet("three-clusters")
    >>> schedule = simulate(Network(fleet, uniform_routing(fleet), 30), rounds=1000, seed=1)
    >>> schedule
    Schedule(1000 rounds in ... time units, 30 clients, concurrency 30)
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
        return self.scenario.shares(self.network)

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
        """Rounds completed per time unit, leaving out the first ``warm_up`` rounds."""
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
        n, client = self.network.size, self.client[warm_up:]
        total = np.bincount(client, weights=self.relative_delay[warm_up:], minlength=n)
        number = np.bincount(client, minlength=n)
        mean: FloatArray = np.divide(total, number, out=np.full(n, np.nan), where=number > 0)
        return mean

    def timeline(self, until: float | None = None) -> Timeline:
        """Who computes what when, up to the time ``until``; by default some tasks of every client.

        >>> from sojourn.fleet import built_in_fleet, uniform_routing
        >>> from sojourn.simulation.simulate import simulate
        >>> fleet = built_in_fleet("three-clusters")
        >>> schedule = simulate(Network(fleet, uniform_routing(fleet), 30), rounds=1000, seed=1)
        >>> schedule.timeline(until=50.0)
        Timeline(... tasks in 50 time units, 30 clients busy ...% of it, ... tasks waiting)
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
            writer.finish(self)

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> "Schedule":
        """Read a folder written by ``write``; the arrays stay on disk until they are used."""
        return cls(**read_fields(folder))

    def __repr__(self) -> str:
        return (
            f"Schedule({self.rounds} rounds in {self.duration:.6g} time units, "
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


KEEPS_TASKS = (Routed, NeverQueue, Idle, Shuffled, Synchronous)
"""Policies that let every task run to its end, so that a schedule says who computed when."""


def tells_time_spent(scenario: Scenario) -> bool:
    """Whether `time_spent` can be had from the schedules of ``scenario``."""
    return isinstance(scenario.policy, KEEPS_TASKS)


def time_spent(schedule: Schedule) -> FloatArray:
    """Time that each client spent computing, receiving and sending, shape ``(n, 3)``.

    Tasks still under way count for what they took until the end. Cost: O(rounds), or O(n) where the
    kernel recorded it.

    >>> from sojourn.fleet import Fleet, Network
    >>> from sojourn.simulation.simulate import simulate
    >>> network = Network(Fleet([1.0, 2.0]), [0.5, 0.5], 1)
    >>> time_spent(simulate(network, time=6.0, law="deterministic", seed=2)).sum()
    np.float64(6.0)
    """
    n = schedule.network.size
    if not tells_time_spent(schedule.scenario):
        raise InvalidInput(
            f"the policy '{schedule.scenario.policy.name}' may stop tasks, whose time a schedule "
            "does not tell"
        )
    if schedule.spent is not None:
        return np.asarray(schedule.spent[:-1].reshape(3, n).T)
    busy = np.zeros((n, 3))
    busy[:, 0] = _computing(
        schedule.client,
        schedule.dispatched,
        schedule.time,
        schedule.pending_client,
        schedule.pending_dispatched,
        n,
        schedule.duration,
    )
    return busy


def energy_used(schedule: Schedule, *, server_power: float = 0.0) -> FloatArray:
    """Energy that each client used over the run, shape ``(n,)``, then the server's.

    As in `sojourn.theory.energy.energy_per_round`, with the times that were simulated.
    """
    fleet = schedule.network.fleet
    compute, uplink, downlink, idle = map(fleet.expand, powers(fleet))
    spent = time_spent(schedule)
    active = compute * spent[:, 0] + downlink * spent[:, 1] + uplink * spent[:, 2]
    clients = active + idle * (schedule.duration - spent[:, 0])
    at_server = 0.0 if schedule.spent is None else float(schedule.spent[-1])
    return np.append(clients, server_power * at_server)


def bytes_moved(schedule: Schedule, model_bytes: float) -> FloatArray:
    """Bytes that each client received and sent over the run, shape ``(n, 2)``.

    Every task sends a model of ``model_bytes`` down, also those still under way, and every completed
    one an update of the same size up. Cost: O(rounds).

    >>> from sojourn.fleet import Fleet, Network
    >>> from sojourn.simulation.simulate import simulate
    >>> network = Network(Fleet([1.0, 2.0]), [0.5, 0.5], 2)
    >>> bytes_moved(simulate(network, rounds=100, seed=2), 10.0).sum(axis=0).tolist()
    [1020.0, 1000.0]
    """
    size = check_number("model_bytes", model_bytes, above=0.0)
    scenario, n = schedule.scenario, schedule.network.size
    loses = scenario.offline == "lose" and scenario.has_calendar(schedule.network)
    if loses or not tells_time_spent(scenario):
        how = "clients that go away lose tasks" if loses else "the policy may stop tasks"
        raise InvalidInput(f"{how}, and a schedule does not tell how many were sent in vain")
    sent = np.bincount(schedule.client, minlength=n)
    received = sent + np.bincount(schedule.pending_client, minlength=n)
    return size * np.stack([received, sent], axis=1).astype(np.float64)


@njit(cache=True, nogil=True)
def _computing(
    client: NDArray[np.int32],
    dispatched: IntArray,
    time: FloatArray,
    pending_client: NDArray[np.int32],
    pending_dispatched: IntArray,
    clients: int,
    end: float,
) -> FloatArray:
    """A task is served from when it was sent, or its client became free, whichever is later."""
    busy = np.zeros(clients)
    free = np.zeros(clients)
    for t in range(client.size):
        i = client[t]
        sent = time[dispatched[t] - 1] if dispatched[t] else 0.0
        busy[i] += time[t] - max(sent, free[i])
        free[i] = time[t]
    begun = np.full(clients, np.inf)
    for j in range(pending_client.size):
        i = pending_client[j]
        sent = time[pending_dispatched[j] - 1] if pending_dispatched[j] else 0.0
        begun[i] = min(begun[i], max(sent, free[i]))
    for i in range(clients):
        if begun[i] < end:
            busy[i] += end - begun[i]
    return busy

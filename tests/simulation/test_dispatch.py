"""Never-queue against its theory, the plain loop against the kernel, and common random numbers."""

from dataclasses import dataclass

import numpy as np
import pytest

from sojourn.dispatch import Chooser, NeverQueue, Policy, View
from sojourn.fleet import Fleet, Network, built_in_fleet, uniform_routing
from sojourn.fleet.laws import Law, Trace
from sojourn.simulation.simulate import simulate
from sojourn.theory.floor import noise_floor, noise_rate, target_rates

FLEETS = {
    "three-clusters": built_in_fleet("three-clusters"),
    "mixed": Fleet([0.3, 1.0, 1.7, 5.0], counts=[3, 2, 4, 1]),
    "alike": Fleet([2.0], counts=[6]),
    "spread": Fleet(np.exp(np.linspace(-3, 3, 9))),
    "one slow": Fleet([0.01, 1.0], counts=[1, 7]),
}
LAWS = [
    Law("exponential"),
    Law("lognormal"),
    Law("gamma"),
    Law("erlang"),
    Law("hyperexponential"),
    Law("weibull"),
    Law("pareto", shape=3.0),
    Trace([1.0, 2.0, 9.0]),
]


@dataclass(frozen=True)
class Plainly(NeverQueue):
    """Never-queue without its compiled form."""


def network_of(fleet: Fleet, tasks: int) -> Network:
    return Network(fleet, uniform_routing(fleet), tasks)


@pytest.mark.parametrize("fleet", FLEETS.values(), ids=FLEETS)
@pytest.mark.parametrize("law", ["erlang", "deterministic", "lognormal"])
def test_the_plain_loop_and_the_kernel_give_the_same_schedule(fleet: Fleet, law: str) -> None:
    for tasks in (1, 2, fleet.size // 2, fleet.size - 1, fleet.size, fleet.size + 5):
        network = network_of(fleet, max(1, tasks))
        fast = simulate(network, rounds=2000, law=law, policy="never-queue", seed=4)
        slow = simulate(network, rounds=2000, law=law, policy=Plainly(), seed=4)
        np.testing.assert_array_equal(fast.client, slow.client)
        np.testing.assert_array_equal(fast.dispatched, slow.dispatched)
        np.testing.assert_allclose(fast.time, slow.time, rtol=1e-12)


@pytest.mark.parametrize("fleet", FLEETS.values(), ids=FLEETS)
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_rates_and_noise_are_what_theory_says_for_every_law(fleet: Fleet, law: Law) -> None:
    """Long runs, cut into 20 pieces whose spread gives the standard errors."""
    pieces, total = 20, 200_000
    for tasks in (1, 3, fleet.size - 1, fleet.size, fleet.size + 5):
        network = network_of(fleet, tasks)
        schedule = simulate(network, rounds=total, law=law, policy="never-queue", seed=tasks)
        rates = target_rates(fleet, tasks)
        edges = np.linspace(0, schedule.duration, pieces + 2)[1:]  # the first piece warms up
        which = np.searchsorted(edges, schedule.time)
        class_of = np.repeat(np.arange(fleet.classes), fleet.counts)[schedule.client]
        counts = np.zeros((pieces + 1, fleet.classes))
        np.add.at(counts, (np.minimum(which, pieces), class_of), 1.0)
        seen = counts[1:] / (edges[1] - edges[0])
        flow = seen.sum(axis=1)
        assert_close(flow, float(fleet.counts @ rates), total)
        for k in range(fleet.classes):
            assert_close(seen[:, k], float(fleet.counts[k] * rates[k]), total)
        noise = np.array(
            [
                noise_rate(fleet, (seen.sum(axis=0) - one) / (pieces - 1) / fleet.counts)
                for one in seen
            ]
        )
        error = np.sqrt((pieces - 1) * noise.var())  # leaving out one piece at a time
        floor = noise_floor(fleet, tasks)
        assert abs(noise.mean() - floor) < 4 * error + 4 * floor / total**0.5


def assert_close(samples: np.ndarray, theory: float, total: int) -> None:
    """Within four standard errors; where times hardly vary, within a few tasks at the edges."""
    error = samples.std(ddof=1) / np.sqrt(samples.size)
    assert abs(samples.mean() - theory) < 4 * error + 4 * theory / total**0.5


def test_regular_times_give_regular_rates() -> None:
    fleet = FLEETS["mixed"]
    for tasks in range(1, fleet.size + 6):
        schedule = simulate(
            network_of(fleet, tasks), rounds=50_000, law="deterministic", policy="never-queue"
        )
        wanted = fleet.expand(target_rates(fleet, tasks)) * schedule.duration
        counts = np.bincount(schedule.client, minlength=fleet.size)
        assert np.abs(counts - wanted).max() <= 0.01 * wanted.max()


def test_nobody_ever_waits() -> None:
    for tasks in (1, 7, 29, 30, 50):
        network = network_of(FLEETS["three-clusters"], tasks)
        schedule = simulate(network, rounds=5000, policy="never-queue", seed=2)
        assert schedule.in_flight == min(tasks, 30)
        assert schedule.pending_client.size == len(set(schedule.pending_client.tolist()))
        sent, before = schedule.dispatched, {}
        for t, client in enumerate(schedule.client.tolist()):
            # A task is sent only after the client's task before was completed, in round before[i].
            assert sent[t] > before.get(client, -1)
            before[client] = t


def test_paired_runs_meet_the_same_service_times() -> None:
    """The j-th task of a client takes the same time under every policy and concurrency."""
    fleet = FLEETS["mixed"]

    def durations(policy: str, tasks: int) -> list[list[float]]:
        schedule = simulate(
            network_of(fleet, tasks), rounds=3000, policy=policy, paired=True, seed=9
        )
        ends: list[list[float]] = [[] for _ in range(fleet.size)]
        took: list[list[float]] = [[] for _ in range(fleet.size)]
        times = np.concatenate([[0.0], schedule.time])
        for t, client in enumerate(schedule.client.tolist()):
            begun = max(times[schedule.dispatched[t]], ends[client][-1] if ends[client] else 0.0)
            took[client].append(float(schedule.time[t] - begun))
            ends[client].append(float(schedule.time[t]))
        return took

    busy, routed = durations("never-queue", 10), durations("routed", 25)
    for client in range(fleet.size):
        number = min(len(busy[client]), len(routed[client]), 40)
        assert number > 20
        np.testing.assert_allclose(busy[client][:number], routed[client][:number], rtol=1e-9)


@dataclass(frozen=True)
class ShortestWait(Policy):
    """To the client with the shortest expected wait."""

    name = "shortest-wait"

    def chooser(self, random: np.random.Generator) -> Chooser:
        class Shortest(Chooser):
            def choose(self, view: View, finisher: int | None) -> int | None:
                return min(view.living, key=lambda i: (view.tasks(i) + 1) / view.rates[i])

        return Shortest()


def test_a_policy_of_ones_own_runs_in_the_plain_loop() -> None:
    network = network_of(FLEETS["mixed"], 8)
    schedule = simulate(network, rounds=5000, policy=ShortestWait(), seed=1)
    slow, fast = np.bincount(schedule.client, minlength=10)[[0, 9]]
    assert fast > 5 * slow
    assert schedule.shares is None

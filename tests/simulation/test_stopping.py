"""Policies that stop tasks, against closed forms for memoryless times and against what they promise."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import kstest

from sojourn.dispatch import Chooser, FirstOf, Policy, Restart, View, as_policy, policy_to_table
from sojourn.errors import InvalidInput
from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.simulation.schedule import Schedule
from sojourn.simulation.simulate import simulate

RATES = np.array([0.2, 0.5, 1.0, 4.0])
FLEET = Fleet(RATES)


def run(policy: Policy, *, rounds: int, fleet: Fleet = FLEET, tasks: int | None = None) -> Schedule:
    network = Network(fleet, uniform_routing(fleet), tasks or fleet.size)
    return simulate(network, rounds=rounds, policy=policy, seed=7)


@pytest.mark.parametrize("limit", [1, 3, 20])
def test_restarts_of_memoryless_tasks_change_nothing_in_law(limit: int) -> None:
    """Client i still completes at rate mu_i, and everything it returns is fresh enough."""
    rounds = 20_000
    schedule = run(Restart(max_staleness=limit), rounds=rounds)
    assert schedule.relative_delay.max() == limit - 1
    shares = RATES / RATES.sum()
    seen = np.bincount(schedule.client, minlength=4) / rounds
    assert (np.abs(seen - shares) < 4 * np.sqrt(shares * (1 - shares) / rounds)).all()
    gaps = np.diff(schedule.time, prepend=0.0) * RATES.sum()
    assert kstest(gaps, "expon").pvalue > 1e-3


def test_a_client_that_always_takes_too_long_is_never_heard() -> None:
    fleet = Fleet([0.01, 1.0], counts=[1, 2])
    network = Network(fleet, uniform_routing(fleet), 3)
    kept = simulate(network, rounds=1000, law="deterministic", policy=Restart(max_staleness=250))
    lost = simulate(network, rounds=1000, law="deterministic", policy=Restart(max_staleness=150))
    assert (kept.client == 0).sum() == 4
    assert (lost.client == 0).sum() == 0
    assert sorted(lost.pending_client.tolist()) == [0, 1, 2]


def test_restarts_leave_duty_cycles_be() -> None:
    """With fewer tasks than clients a restarted client keeps its turn, and so its rate."""
    fleet = Fleet([0.1, 1.0], counts=[3, 3])
    network = Network(fleet, uniform_routing(fleet), 2)
    plain = simulate(network, rounds=20_000, policy="never-queue", seed=1)
    fresh = simulate(network, rounds=20_000, policy=Restart(max_staleness=3), seed=2)
    assert fresh.relative_delay.max() == 2
    counts = [np.bincount(s.client, minlength=6) / s.duration for s in (plain, fresh)]
    np.testing.assert_allclose(counts[0], counts[1], rtol=0.1)


def first_of(rates: np.ndarray, first: int) -> tuple[float, np.ndarray]:
    """Mean time of the first so many of independent exponential times, and who they are: shares."""
    mean, shares = 0.0, np.zeros(rates.size)
    for order in permutations(range(rates.size)):
        left, chance, time = rates.sum(), 1.0, 0.0
        for place, client in enumerate(order):
            chance *= rates[client] / left
            time += 1.0 / left if place < first else 0.0
            left -= rates[client]
        mean += chance * time
        shares[list(order[:first])] += chance / first
    return mean, shares


@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_cohorts_last_as_long_as_their_first_results_take(first: int) -> None:
    cohorts = 5000
    schedule = run(FirstOf(first=first), rounds=cohorts * first)
    clients = schedule.client.reshape(cohorts, first)
    assert all(len(set(cohort)) == first for cohort in clients.tolist())
    assert (schedule.dispatched == np.repeat(np.arange(cohorts) * first, first)).all()
    lasted = np.diff(schedule.time[first - 1 :: first], prepend=0.0)
    mean, shares = first_of(RATES, first)
    assert abs(lasted.mean() - mean) < 4 * lasted.std() / np.sqrt(cohorts)
    seen = np.bincount(schedule.client, minlength=4) / schedule.rounds
    assert (np.abs(seen - shares) <= 4 * np.sqrt(shares * (1 - shares) / cohorts)).all()


def test_equal_clients_take_the_harmonic_sum() -> None:
    """E of the m-th of n exponentials is (1/mu) (1/n + ... + 1/(n-m+1))."""
    assert first_of(np.full(5, 2.0), 3)[0] == pytest.approx((1 / 5 + 1 / 4 + 1 / 3) / 2.0)


def test_the_first_results_of_anybody_come_at_the_rate_of_all() -> None:
    cohorts, size = 2000, 6
    schedule = run(FirstOf(first=size, again=True), rounds=cohorts * size)
    cohort_of = np.arange(schedule.rounds) // size
    assert (schedule.dispatched // size == cohort_of).all()
    shares = RATES / RATES.sum()
    seen = np.bincount(schedule.client, minlength=4) / schedule.rounds
    assert (np.abs(seen - shares) < 4 * np.sqrt(shares * (1 - shares) / schedule.rounds)).all()
    lasted = np.diff(schedule.time[size - 1 :: size], prepend=0.0)
    assert abs(lasted.mean() - size / RATES.sum()) < 4 * lasted.std() / np.sqrt(cohorts)


def test_smaller_cohorts_are_drawn_evenly() -> None:
    fleet = Fleet([1.0], counts=[6])
    schedule = run(FirstOf(first=2), rounds=12_000, fleet=fleet, tasks=3)
    seen = np.bincount(schedule.client, minlength=6) / schedule.rounds
    assert (np.abs(seen - 1 / 6) < 4 * np.sqrt(5 / 36 / 6000)).all()


def test_stopping_policies_are_written_and_read_back() -> None:
    for policy in (Restart(max_staleness=5), FirstOf(first=3, again=True)):
        assert as_policy(policy_to_table(policy)) == policy
    with pytest.raises(InvalidInput, match="waits for the first 5 results of 4 clients"):
        run(FirstOf(first=5), rounds=1)
    with pytest.raises(InvalidInput, match="max_staleness"):
        Restart(max_staleness=0)


@dataclass(frozen=True)
class StopsTheFirst(Policy):
    """Stops client 0 at every completion, whether it has a task or not."""

    name = "stops-the-first"

    def chooser(self, random: np.random.Generator) -> Chooser:
        class Stopping(Chooser):
            def stops(self, view: View, finisher: int) -> Sequence[int]:
                return [0]

            def choose(self, view: View, finisher: int | None) -> int | None:
                return 3

        return Stopping()


def test_a_task_that_is_not_there_cannot_be_stopped() -> None:
    with pytest.raises(InvalidInput, match="stops the task of client 0, which has none"):
        run(StopsTheFirst(), rounds=100)

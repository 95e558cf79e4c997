"""Cohorts that do not wait for stragglers: over-selection and deadlines of the synchronous policy."""

import math

import numpy as np
import pytest

from sojourn.dispatch import Synchronous
from sojourn.errors import InvalidInput
from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.rules import FedAvg
from sojourn.simulation.simulate import simulate
from tests.rules.by_hand import run, versions, weights

COHORT = 8


def network(rate=2.0, clients=20, **links):
    fleet = Fleet([rate], counts=[clients], **links)
    return Network(fleet, uniform_routing(fleet), COHORT)


def cohorts(schedule):
    """The times at which cohorts ended, and how many results each had."""
    had_result = np.ones(schedule.rounds, dtype=bool)
    had_result[[] if schedule.cut is None else schedule.cut] = False
    whole = schedule.rounds // COHORT * COHORT
    ends = schedule.time[:whole].reshape(-1, COHORT)[:, -1]
    return ends, had_result[:whole].reshape(-1, COHORT).sum(axis=1)


def test_over_selection_ends_a_round_at_the_first_results():
    """The k-th of m exponential times has mean sum 1/((m - j) mu)."""
    schedule = simulate(
        network(), rounds=COHORT * 2000, policy=Synchronous(over_selection=0.3), seed=1
    )
    ends, results = cohorts(schedule)
    first = math.ceil(COHORT / 1.3)
    assert set(results.tolist()) == {first}
    lengths = np.diff(ends)
    mean = sum(1.0 / ((COHORT - j) * 2.0) for j in range(first))
    error = lengths.std(ddof=1) / math.sqrt(lengths.size)
    assert abs(lengths.mean() - mean) < 4.0 * error


def test_a_deadline_counts_the_links_and_cuts_those_who_are_late():
    """Down and up and the service: three deterministic unit times, or exponential ones of mean 1."""
    linked = network(1.0, downlink=[1.0], uplink=[1.0])
    on_time = simulate(
        linked,
        rounds=160,
        policy=Synchronous(deadline=3.5),
        law="deterministic",
        link_law="deterministic",
        seed=1,
    )
    assert on_time.cut is None
    assert np.diff(cohorts(on_time)[0]) == pytest.approx(3.0)
    late = simulate(
        linked,
        rounds=160,
        policy=Synchronous(deadline=2.5),
        law="deterministic",
        link_law="deterministic",
        seed=1,
    )
    assert late.cut is not None and late.cut.size == 160
    assert np.diff(cohorts(late)[0]) == pytest.approx(2.5)
    random = simulate(linked, rounds=COHORT * 1000, policy=Synchronous(deadline=3.0), seed=1)
    ends, results = cohorts(random)
    assert np.diff(ends).max() <= 3.0 + 1e-9
    # A sum of three exponential times of mean 1 is below 3 with probability 1 - exp(-3) (1 + 3 + 9/2).
    share = 1.0 - math.exp(-3.0) * 8.5
    error = math.sqrt(share * (1.0 - share) / (COHORT * 1000))
    assert abs(results.mean() / COHORT - share) < 4.0 * error


def test_every_client_is_asked_equally_often_and_nobody_twice_at_once():
    schedule = simulate(
        network(), rounds=COHORT * 1000, policy=Synchronous(over_selection=0.5), seed=2
    )
    asked = np.bincount(schedule.client, minlength=20)
    assert abs(asked / asked.sum() - 0.05).max() < 0.01
    assert all(len(set(own)) == COHORT for own in schedule.client.reshape(-1, COHORT).tolist())


def test_fedavg_averages_those_who_answered():
    # Cohorts of two: both answer; one is cut; both are cut, which changes nothing.
    given = [(2.0, False), (4.0, False), (6.0, False), (0.0, True), (0.0, True), (0.0, True)]
    arrivals = [{"update": update, "cut": cut} for update, cut in given]
    seen, _ = run(FedAvg(), [0.0], arrivals, concurrency=2)
    assert weights(seen) == [[0.0], [3.0], [3.0], [9.0], [9.0], [9.0]]
    assert versions(seen) == [0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("given", [{"over_selection": 0.0}, {"deadline": -1.0}])
def test_what_makes_no_sense_is_refused(given):
    with pytest.raises(InvalidInput, match=next(iter(given))):
        Synchronous(**given)

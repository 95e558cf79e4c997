"""Speeds are learnt while running, and changes of speed are noticed."""

import math

import numpy as np
import pytest

from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.speeds import Deadlines, RateEstimate
from sojourn.rules import GeneralizedAsyncSGD
from tests.deployment.virtual_clock import TICK_SECONDS, VirtualClients

SECONDS = [2.0, 5.0, 20.0]


def dispatcher(**options: object) -> Dispatcher:
    settings = {
        "rule": GeneralizedAsyncSGD(),
        "routing": [1 / 3, 1 / 3, 1 / 3],
        "concurrency": 6,
        "learning_rate": 1e-3,
    }
    return Dispatcher(np.zeros(1), **{**settings, **options})  # type: ignore[arg-type]


def test_rates_are_estimated_within_fifteen_percent_after_two_hundred_completions() -> None:
    world = VirtualClients(dispatcher(), list(SECONDS), seed=3)
    world.begin()
    reached: dict[int, float] = {}
    while len(reached) < 3:
        client = world.step()
        if world.completions[client] == 200:
            reached[client] = float(world.server.service_rates(world.now)[client])
    for client, rate in reached.items():
        assert rate == pytest.approx(1 / SECONDS[client], rel=0.15)


def test_the_error_of_the_estimate_is_what_the_posterior_says() -> None:
    """log(estimate/truth) has standard deviation 1/sqrt(200) over replicates; no bias, |z| < 4."""
    random = np.random.default_rng(11)
    errors = []
    for _ in range(200):
        estimate = RateEstimate.prior(1.0)
        for seconds in random.exponential(7.0, 200):
            estimate.observe(float(seconds))
        errors.append(math.log(estimate.rate() * 7.0))
    spread = 1 / math.sqrt(200)
    assert abs(np.mean(errors)) < 4 * spread / math.sqrt(200) + 1 / 200
    assert np.std(errors) == pytest.approx(spread, rel=4 / math.sqrt(400))


def test_a_running_task_counts_as_censored() -> None:
    estimate = RateEstimate.prior(1.0)
    for _ in range(9):
        estimate.observe(1.0)
    assert estimate.rate() == pytest.approx(1.0)
    assert estimate.rate(running=10.0) == pytest.approx(0.5)


def test_tasks_that_take_no_time_leave_rates_finite() -> None:
    estimate = RateEstimate.prior(0.1, weight=0.1)
    for _ in range(100):
        estimate.observe(0.0)
    assert estimate.rate() == pytest.approx(1e6)
    assert estimate.mean_seconds > 0


@pytest.mark.parametrize("seed", range(5))
def test_steady_speeds_raise_no_alarm(seed: int) -> None:
    """Expected: at most one alarm in e^10 = 22,000 completions; here 2,000 each for 5 seeds."""
    random = np.random.default_rng(seed)
    estimate = RateEstimate.prior(0.2)
    alarms = sum(estimate.observe(float(s)) for s in random.exponential(5.0, 2_000))
    assert alarms == 0


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_tenfold_change_is_noticed_within_a_few_tasks(factor: float) -> None:
    waits = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        estimate = RateEstimate.prior(0.2)
        for seconds in random.exponential(5.0, 300):
            estimate.observe(float(seconds))
        wait = 0
        while not estimate.changes:
            estimate.observe(float(random.exponential(5.0 * factor)))
            wait += 1
        waits.append(wait)
    assert max(waits) <= 30


@pytest.mark.parametrize("seed", range(5))
def test_after_a_tenfold_slowdown_the_routing_moves_within_thirty_completions(seed: int) -> None:
    def balanced(rates: np.ndarray) -> np.ndarray:
        return rates / rates.sum()

    server = dispatcher(replan=balanced, replan_every=20)
    world = VirtualClients(server, [2.0, 2.0, 2.0], seed=seed)
    world.begin()
    for _ in range(300):
        world.step()
    assert server.router.routing[0] == pytest.approx(1 / 3, rel=0.5)
    world.seconds[0] = 20.0
    before = world.completions[0]
    while server.router.routing[0] > 0.1:
        world.step()
        assert world.completions[0] - before <= 30
    counts = server.counts
    assert server.held + len(server.tasks) == 6
    over = counts.used + counts.refused + counts.lost + counts.withdrawn
    assert counts.routed == over + len(server.tasks)


def test_deadlines_follow_the_law_that_is_seen() -> None:
    regular, exponential = Deadlines(), Deadlines()
    random = np.random.default_rng(5)
    for seconds in random.exponential(1.0, 2_000):
        regular.observe(1.0 + 0.2 * (seconds - 1.0))
        exponential.observe(float(seconds))
    assert regular.squared_variation == pytest.approx(0.05, abs=0.01)
    assert exponential.squared_variation == pytest.approx(1.0, rel=0.25)
    quick = regular.allowance(mean_seconds=10.0, tasks=10_000)
    patient = exponential.allowance(mean_seconds=10.0, tasks=10_000)
    assert quick < 25.0
    assert patient == pytest.approx(-10.0 * math.log(1e-4), rel=0.25)


@pytest.mark.slow
def test_deadlines_seldom_strike_a_working_client() -> None:
    """The law asks for one false alarm in 10,000 tasks; estimated from few, it may be ten."""
    alarms = 0
    for seed in range(3):
        world = VirtualClients(dispatcher(), list(SECONDS), seed=seed, ticks=TICK_SECONDS)
        world.begin()
        for _ in range(2_000):
            world.step()
        alarms += sum(event.kind == "overdue" for event in world.events)
    assert alarms <= 6


@pytest.mark.parametrize("tasks", [1, 3, 10, 100])
@pytest.mark.parametrize("seconds", [0.5, 2.0, 4.0])
def test_a_client_of_short_tasks_is_missed_before_flower_misses_it(
    seconds: float, tasks: int
) -> None:
    """Flower takes 47 s; whatever the law, and however little was seen of it."""
    regular, exponential = Deadlines(), Deadlines()
    for relative in np.random.default_rng(7).exponential(1.0, tasks):
        exponential.observe(float(relative))
        regular.observe(1.0)
    for deadlines in (regular, exponential):
        assert deadlines.allowance(mean_seconds=seconds, tasks=tasks) < 40.0
    assert Deadlines().allowance(mean_seconds=None, tasks=0) < 40.0


def test_a_client_known_to_be_slow_is_given_time_for_its_first_task() -> None:
    server = dispatcher(service_rates=[0.5, 0.2, 0.01])
    allowed = [server.allowance(client) for client in server.clients]
    assert allowed == pytest.approx([30.0, 46.05, 921.0])
    assert {dispatcher().allowance(client) for client in dispatcher().clients} == {30.0}


def test_no_deadline_is_longer_than_the_longest() -> None:
    deadlines = Deadlines(longest=25.0)
    assert deadlines.allowance(mean_seconds=None, tasks=0) == 25.0
    assert deadlines.allowance(mean_seconds=60.0, tasks=5) == 25.0

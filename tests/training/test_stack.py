"""Runs that are computed together against the same runs by themselves."""

import numpy as np
import pytest
from torch import nn

from sojourn.errors import InvalidInput
from sojourn.rules import AsyncSGD, FedBuff, GeneralizedAsyncSGD
from sojourn.training.problem.problem import Problem
from sojourn.training.replay.replay import replay, replay_runs
from sojourn.training.replay.run import Replay
from sojourn.training.replay.stack import Stack
from tests.training.small import perceptron, small_problem, small_schedule

RATES = (0.01, 0.05, 0.2)


def together(schedule, problem, rules, *, batched, until=None):
    members = [
        Replay(schedule, problem, rule, learning_rate=rate, seed=3)
        for rule in rules
        for rate in RATES
    ]
    positions = [member.beginning(batched) for member in members]
    stack = Stack(members)
    if until is not None:
        stack.run(positions, until=until, batched=batched)
        assert {position.round for position in positions} == {until}
    stack.run(positions, batched=batched)
    return [m.history(p, m.rule.name, {}) for m, p in zip(members, positions, strict=True)]


def alone(schedule, problem, rules):
    return [
        replay(schedule, problem, rule, learning_rate=rate, seed=3, batched=False)
        for rule in rules
        for rate in RATES
    ]


RULES = [
    (AsyncSGD(), AsyncSGD(debias=0.5), GeneralizedAsyncSGD()),
    (FedBuff(buffer_size=3, local_steps=2),),
    (AsyncSGD(local_steps=2), GeneralizedAsyncSGD(local_steps=2, local_learning_rate=0.1)),
]
KINDS = ["gradients", "differences", "gradients of local steps"]


@pytest.mark.parametrize("rules", RULES, ids=KINDS)
@pytest.mark.parametrize("until", [None, 37])
def test_one_by_one_members_are_solo_runs_to_the_bit(rules, until):
    schedule = small_schedule(rounds=80, work=rules[0].local_steps)
    problem = small_problem()
    for a, b in zip(
        together(schedule, problem, rules, batched=False, until=until),
        alone(schedule, problem, rules),
        strict=True,
    ):
        np.testing.assert_array_equal(a.weights, b.weights)
        np.testing.assert_array_equal(a.test_loss, b.test_loss)
        np.testing.assert_array_equal(a.staleness, b.staleness)


@pytest.mark.parametrize("rules", RULES, ids=KINDS)
def test_stacked_members_are_solo_runs_up_to_rounding(rules):
    schedule = small_schedule(rounds=80, work=rules[0].local_steps)
    problem = small_problem()
    for a, b in zip(
        together(schedule, problem, rules, batched=True),
        alone(schedule, problem, rules),
        strict=True,
    ):
        np.testing.assert_allclose(a.weights, b.weights, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(a.test_loss, b.test_loss, rtol=1e-4)


SCHEDULES = {
    "queues": {},
    "tasks that begin anew": {"policy": {"name": "restart", "max-staleness": 4}},
    "local steps": {"work": 2},
}
OWN_STEPS = AsyncSGD(local_steps=2, local_learning_rate=0.1)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_replay_at_several_rates_is_that_of_each(schedule, batched):
    """Rows between rows, clients that count by size and a rate that diverges included."""
    problem, rates = small_problem(), (*RATES, 1e30)
    rule = OWN_STEPS if "work" in schedule else AsyncSGD()
    options = {"seed": 3, "refine": True, "evaluate_every": 20, "batched": batched}
    options |= {"client_weights": problem.train_sizes, "strategy": "one of several"}
    parts = small_schedule(rounds=80, concurrency=4, **schedule), problem, rule
    given = {k: v for k, v in options.items() if k not in ("batched", "strategy")}
    runs = [Replay(*parts, learning_rate=rate, **given) for rate in rates]
    found = replay_runs(runs, [options["strategy"]] * len(runs), batched=batched)
    assert [history.diverged_at is None for history in found] == [True, True, True, False]
    for rate, history in zip(rates, found, strict=True):
        solo = replay(*parts, learning_rate=rate, **{**options, "batched": False})
        if not batched:
            assert repr(history.to_records()) == repr(solo.to_records())
            np.testing.assert_array_equal(history.weights, solo.weights)
        assert history.strategy == "one of several"
        assert history.diverged_at == solo.diverged_at
        np.testing.assert_allclose(history.test_loss, solo.test_loss, rtol=1e-4)
        np.testing.assert_array_equal(history.round, solo.round)


def test_a_member_that_diverges_leaves_the_others_alone():
    schedule, problem = small_schedule(rounds=60), small_problem()
    members = [
        Replay(schedule, problem, AsyncSGD(), learning_rate=rate, seed=3) for rate in (0.05, 1e30)
    ]
    positions = [member.beginning(False) for member in members]
    Stack(members).run(positions, batched=False)
    assert positions[0].diverged_at is None
    assert positions[0].round == 60
    assert positions[1].diverged_at is not None
    solo = replay(schedule, problem, AsyncSGD(), learning_rate=0.05, seed=3, batched=False)
    np.testing.assert_array_equal(positions[0].state.weights, solo.weights)


def test_members_must_share_what_clients_do():
    schedule, problem = small_schedule(rounds=20), small_problem()
    gradient = Replay(schedule, problem, AsyncSGD(), learning_rate=0.1, seed=1)
    difference = Replay(schedule, problem, FedBuff(), learning_rate=0.1, seed=1)
    with pytest.raises(
        InvalidInput, match="must share model, loss, batch size, and what clients send"
    ):
        Stack([gradient, difference])


def test_rows_at_given_times_reach_the_horizon():
    schedule, problem = small_schedule(rounds=60), small_problem()
    end = float(schedule.time[-1])
    times = np.linspace(0, end * 1.1, 12)
    history = replay(
        schedule, problem, AsyncSGD(), learning_rate=0.1, seed=1, evaluate_at=times, batched=False
    )
    np.testing.assert_array_equal(history.time, times)
    np.testing.assert_array_equal(
        history.round, np.searchsorted(schedule.time, times, side="right")
    )
    whole = replay(
        schedule, problem, AsyncSGD(), learning_rate=0.1, seed=1, evaluate_every=1, batched=False
    )
    np.testing.assert_array_equal(history.test_loss, whole.test_loss[history.round])


def abreast(problem, seeds=(1, 2, 3)):
    """Runs along three schedules of different lengths, whose gradients can be computed together."""
    schedules = [small_schedule(rounds=40 + 20 * k, seed=seed) for k, seed in enumerate(seeds)]
    rules = AsyncSGD(), GeneralizedAsyncSGD(), AsyncSGD(debias=0.5)
    return [
        Replay(schedule, problem, rule, learning_rate=0.05, seed=3)
        for schedule, rule in zip(schedules, rules, strict=True)
    ]


def test_runs_abreast_are_solo_runs_up_to_rounding():
    problem = small_problem()
    runs = abreast(problem)
    heard = []
    found = replay_runs(
        runs, ["a", "b", "c"], batched=True, progress=lambda *counts: heard.append(counts)
    )
    assert [history.strategy for history in found] == ["a", "b", "c"]
    assert heard[-1] == (180, 180)
    for run, history in zip(runs, found, strict=True):
        solo = replay(run.schedule, problem, run.rule, learning_rate=0.05, seed=3, batched=False)
        np.testing.assert_array_equal(history.round, solo.round)
        np.testing.assert_array_equal(history.staleness, solo.staleness)
        np.testing.assert_allclose(history.weights, solo.weights, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(history.test_loss, solo.test_loss, rtol=1e-4)


def test_who_runs_abreast_changes_results_by_rounding_alone():
    problem = small_problem()
    three = replay_runs(abreast(problem), "abc", batched=True)
    two = replay_runs(abreast(problem)[1:], "bc", batched=True)
    for a, b in zip(three[1:], two, strict=True):
        np.testing.assert_allclose(a.weights, b.weights, rtol=1e-4, atol=1e-5)


def test_one_that_diverges_leaves_those_abreast_alone():
    problem = small_problem()
    runs = abreast(problem)
    runs[0] = Replay(runs[0].schedule, problem, AsyncSGD(), learning_rate=1e30, seed=3)
    wild, *others = replay_runs(runs, "abc", batched=True)
    assert wild.diverged_at is not None
    assert [history.diverged_at for history in others] == [None, None]
    assert [int(history.round[-1]) for history in others] == [60, 80]


def test_runs_on_other_data_under_another_seed_go_abreast_too():
    one = small_problem()
    other = Problem(perceptron(), one.train_sets[::-1], one.test_set, batch_size=8)
    mine, theirs = abreast(one), abreast(other, seeds=(4, 5, 6))
    theirs = [Replay(run.schedule, other, run.rule, learning_rate=0.05, seed=9) for run in theirs]
    mixed = [mine[0], theirs[0], mine[1], theirs[1], mine[2], theirs[2]]
    found = replay_runs(mixed, "abcdef", batched=True)
    for run, history in zip(mixed, found, strict=True):
        solo = replay(
            run.schedule, run.problem, run.rule, learning_rate=0.05, seed=run.seed, batched=False
        )
        np.testing.assert_array_equal(history.staleness, solo.staleness)
        np.testing.assert_allclose(history.weights, solo.weights, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(history.test_loss, solo.test_loss, rtol=1e-4)


def test_runs_abreast_must_share_model_batch_size_and_work():
    problem = small_problem()
    first, other, _ = abreast(problem)
    for unlike in (small_problem(batch_size=4), small_problem(loss=nn.CrossEntropyLoss())):
        with pytest.raises(InvalidInput, match="must share model"):
            Stack([first, *abreast(unlike)])
    buffered = FedBuff(local_steps=1)
    differences = Replay(other.schedule, problem, buffered, learning_rate=0.05, seed=3)
    with pytest.raises(InvalidInput, match="must share model"):
        Stack([other, differences])


@pytest.mark.parametrize("rules", RULES, ids=KINDS)
def test_runs_along_their_own_schedules_one_by_one_are_solo_runs_to_the_bit(rules):
    problem, work = small_problem(), rules[0].local_steps
    schedules = [small_schedule(rounds=30 + 20 * k, seed=k, work=work) for k in range(2)]
    runs = [
        Replay(schedule, problem, rules[0], learning_rate=0.05, seed=3) for schedule in schedules
    ]
    for run, history in zip(runs, replay_runs(runs, "ab", batched=False), strict=True):
        solo = replay(run.schedule, problem, rules[0], learning_rate=0.05, seed=3, batched=False)
        np.testing.assert_array_equal(history.weights, solo.weights)
        np.testing.assert_array_equal(history.test_loss, solo.test_loss)


def test_runs_that_share_a_schedule_must_stand_at_the_same_round():
    schedule, problem = small_schedule(rounds=20), small_problem()
    runs = [Replay(schedule, problem, AsyncSGD(), learning_rate=0.1, seed=1) for _ in range(2)]
    positions = [run.beginning(False) for run in runs]
    Stack(runs[:1]).run(positions[:1], until=5, batched=False)
    with pytest.raises(InvalidInput, match="must stand at the same round"):
        Stack(runs).run(positions, batched=False)
    with pytest.raises(InvalidInput, match="no runs are given"):
        Stack([])

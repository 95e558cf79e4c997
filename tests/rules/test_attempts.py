"""MindFlayer and Shadowheart, their policy and their constants, worked by hand: eta = .5."""

import dataclasses

import numpy as np
import pytest
import torch

from sojourn.dispatch import Attempts, FirstOf, Restart, as_policy, policy_to_table
from sojourn.errors import InvalidInput
from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.rules import (
    AsyncSGD,
    MindFlayer,
    Rennala,
    Ringmaster,
    Shadowheart,
    check_pair,
    equilibrium_time,
    mindflayer_attempts,
    rule_from_table,
    rule_to_table,
    shadowheart_numbers,
)
from sojourn.simulation.schedule import Schedule
from sojourn.simulation.simulate import simulate
from sojourn.testing import check_policy_conforms, check_rule_conforms
from sojourn.training.replay.replay import replay
from tests.rules.by_hand import run, uses, versions, weights
from tests.training.small import small_problem


def network(rates, tasks=None):
    fleet = Fleet(rates)
    return Network(fleet, uniform_routing(fleet), tasks or fleet.size)


# The rules.


def test_mindflayer_divides_by_the_attempts_that_should_succeed():
    # of 3 attempts half should succeed: rounds of (2 + 4)/1.5, 3/1.5, none, (1 + 2 + 3)/1.5
    given = [2.0, None, 4.0, None, 3.0, None, None, None, None, 1.0, 2.0, 3.0]
    arrivals = [{"update": g or 0.0, "cut": g is None} for g in given]
    seen, state = run(MindFlayer(attempts=3, success=0.5), [8.0], arrivals)
    assert weights(seen)[2::3] == [[6.0], [5.0], [5.0], [3.0]]
    assert versions(seen) == [0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3]
    assert state.numbers == {"buffered": 0, "over": 0}


def test_mindflayer_drops_what_was_taken_at_older_weights():
    arrivals = [{"update": 2.0}, {"update": 99.0, "staleness": 1}, {"update": 4.0}]
    seen, _ = run(MindFlayer(), [8.0], arrivals, clients=2)
    assert weights(seen) == [[8.0], [8.0], [6.5]]
    assert uses(seen) == [True, False, True]


def test_shadowheart_weighs_by_gradients_and_messages():
    # Without compression w = 1/k: client 0 (b = 2, k = 1) has w = 1, client 1 (b = 1, k = 2) 1/2.
    # So w k = 1 for both, and a step is the mean of the three: 3, then 2.
    rule = Shadowheart(gradients=(2, 1), messages=(1, 2))
    given = [(0, 2.0), (1, 3.0), (0, 4.0), (1, 0.0), (0, 1.0), (0, 5.0)]
    arrivals = [{"client": client, "update": g} for client, g in given]
    seen, _ = run(rule, [8.0], arrivals, clients=2)
    assert weights(seen) == [[8.0], [8.0], [6.5], [6.5], [6.5], [5.5]]
    assert versions(seen) == [0, 0, 1, 1, 1, 2]


def test_shadowheart_counts_compression_in_its_weights():
    # d = 2, c = 1: omega = 1; w = 1/(b + 2 + 2k) = 1/6 (b = 2, k = 1) and 1/7 (b = 1, k = 2).
    # Compressing twice may show both coordinates once, or one of them twice.
    rule = Shadowheart(gradients=(2, 1), messages=(1, 2), coordinates=1, noise=2.0)
    state = rule.begin(np.zeros(2), 2)
    total = 2 / 6 + 2 / 7
    sums = []
    for seed in range(1000):
        seeded = dataclasses.replace(rule, seed=seed)
        updates = [[1.0, 2.0], [3.0, 6.0], [7.0, -7.0]]
        arrivals = [{"client": c, "update": g} for c, g in zip((0, 0, 1), updates, strict=True)]
        seen, _ = run(seeded, [0.0, 0.0], arrivals, clients=2, learning_rate=1.0)
        sums.append(weights(seen)[-1])
    assert state.version == 0
    sums = np.array(sums)
    # client 0 shows 2 * 4 or 2 * 8 of its sum; client 1 shows (14, -14), (28, 0) or (0, -28)
    kinds = {
        (x0 / 6 + x1 / 7, y0 / 6 + y1 / 7)
        for x0, y0 in ((8.0, 0.0), (0.0, 16.0))
        for x1, y1 in ((14.0, -14.0), (28.0, 0.0), (0.0, -28.0))
    }
    expected = np.array(sorted(kinds)) / -total
    found = np.unique(sums.round(9), axis=0)
    np.testing.assert_allclose(found, np.unique(expected.round(9), axis=0), atol=2e-9)
    mean = -(np.array([4.0, 8.0]) / 6 + 2 * np.array([7.0, -7.0]) / 7) / total
    z = (sums.mean(axis=0) - mean) / (sums.std(axis=0, ddof=1) / np.sqrt(len(sums)))
    assert np.abs(z).max() < 4


def test_shadowheart_says_what_does_not_fit():
    for knobs, message in (
        ({"gradients": (1, 2, 3)}, "gradients .* one for each of the 2 clients; there are 3"),
        ({"coordinates": 5}, "coordinates .* at most the 1 that there are; it is 5"),
        ({"messages": (0, 0)}, "needs a client with gradients and messages"),
    ):
        with pytest.raises(InvalidInput, match=message):
            run(Shadowheart(**knobs), [8.0], [], clients=2)


def test_rules_and_policies_can_be_written_down():
    for rule in (MindFlayer(attempts=9, success=0.4), Shadowheart(gradients=(2, 1), noise=3.0)):
        assert rule_from_table(rule_to_table(rule)) == rule
    for policy in (
        Attempts(attempts=(2, 0), patience=0.5),
        Attempts(attempts=3, sending=(1.0, 2.0)),
    ):
        assert as_policy(policy_to_table(policy)) == policy
    assert as_policy({"name": "attempts", "attempts": [2, 1], "patience": 2}) == Attempts(
        attempts=(2, 1), patience=2
    )


@pytest.mark.parametrize(
    "rule", [MindFlayer(success=0.5), Shadowheart(coordinates=2, messages=3)], ids=repr
)
def test_rules_conform(rule):
    check_rule_conforms(rule)


# The policy.


@pytest.mark.parametrize(
    "policy", [Attempts(attempts=3), Attempts(attempts=2, patience=0.7, sending=0.5)], ids=repr
)
def test_policies_conform(policy):
    check_policy_conforms(policy)


def test_rounds_end_when_all_attempts_are_over():
    # Means 1, 2 and 4: two tasks of 1, one of 2; nobody asks the third. Rounds begin at 0, 2, 4.
    policy = Attempts(attempts=(2, 1, 0))
    schedule = simulate(network([1.0, 0.5, 0.25]), rounds=7, policy=policy, law="deterministic")
    assert schedule.in_flight == 2
    assert schedule.client.tolist() == [0, 1, 0, 0, 1, 0, 0]
    assert schedule.dispatched.tolist() == [0, 0, 1, 3, 3, 4, 6]
    assert schedule.time.tolist() == [1.0, 2.0, 2.0, 3.0, 4.0, 4.0, 5.0]
    assert schedule.cut is None


def test_attempts_are_cut_short_and_the_last_is_followed_by_sending():
    # Client 1 takes 2, but only 1.5 of it is waited for; client 0 sends for 2 after its second.
    policy = Attempts(attempts=(2, 1), patience=(1.0, 0.75), sending=(2.0, 0.0))
    schedule = simulate(network([1.0, 0.5]), rounds=6, policy=policy, law="deterministic")
    assert schedule.client.tolist() == [0, 1, 0, 0, 1, 0]
    assert schedule.time.tolist() == [1.0, 1.5, 4.0, 5.0, 5.5, 8.0]
    assert schedule.cut.tolist() == [1, 4]


def test_with_fewer_tasks_clients_take_turns():
    schedule = simulate(
        network([1.0, 1.0, 1.0], 2), rounds=9, policy=Attempts(), law="deterministic"
    )
    rounds = schedule.client.reshape(3, 3)
    assert np.array_equal(np.sort(rounds, axis=1), [[0, 1, 2]] * 3)
    assert schedule.time.tolist() == [1.0, 1.0, 2.0, 3.0, 3.0, 4.0, 5.0, 5.0, 6.0]


def test_success_is_the_law_at_the_patience():
    policy = Attempts(attempts=2, patience=0.5)
    schedule = simulate(network([0.2, 1.0, 5.0]), rounds=20_000, policy=policy, seed=4)
    p = 1.0 - np.exp(-0.5)
    failed = np.isin(np.arange(20_000), schedule.cut)
    z = (failed.mean() - (1 - p)) / np.sqrt(p * (1 - p) / 20_000)
    assert abs(z) < 4
    assert np.bincount(schedule.client).tolist() == pytest.approx([20_000 / 3] * 3, abs=2)


def test_cut_rounds_are_kept_on_disk(tmp_path):
    policy = Attempts(patience=0.5)
    made = [
        simulate(network([1.0, 2.0]), rounds=100, policy=policy, seed=1, folder=folder)
        for folder in (None, tmp_path / "whole")
    ]
    made[0].write(tmp_path / "again")
    for schedule in (made[1], Schedule.read(tmp_path / "again")):
        assert schedule.scenario.policy == policy
        assert schedule.cut.tolist() == made[0].cut.tolist()


def test_a_replay_steps_at_the_end_of_rounds_and_uses_no_cut_gradient():
    policy = Attempts(attempts=2, patience=1.0)
    schedule = simulate(network([1.0, 2.0, 3.0, 4.0]), rounds=160, policy=policy, seed=2)
    problem = small_problem(clients=4, dtype=torch.float64)
    rule = MindFlayer(attempts=8, success=1 - np.exp(-1.0))
    options = {"learning_rate": 0.1, "seed": 3, "evaluate_every": 80}
    histories = [replay(schedule, problem, rule, batched=b, **options) for b in (False, True)]
    assert histories[0].updates.tolist() == [0, 10, 20]
    assert histories[0].staleness[1:].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(histories[0].weights, histories[1].weights, rtol=1e-9)
    w = problem.initial_weights().numpy()
    cut, counts = set(schedule.cut.tolist()), [0] * 4
    for first in range(0, 160, 8):
        total = np.zeros_like(w)
        for t in range(first, first + 8):
            client = int(schedule.client[t])
            _, gradient = problem.loss_and_array(w, client, counts[client], 3)
            counts[client] += 1
            total += 0 if t in cut else gradient
        w = w - 0.1 * total / (8 * rule.success)
    np.testing.assert_allclose(histories[0].weights, w, rtol=1e-12)


def test_other_rules_do_not_hear_of_cut_tasks():
    policy = Attempts(patience=0.5)
    schedule = simulate(network([1.0, 2.0, 3.0, 4.0]), rounds=80, policy=policy, seed=2)
    options = {"learning_rate": 0.1, "seed": 3, "evaluate_every": 80, "batched": False}
    history = replay(schedule, small_problem(clients=4), AsyncSGD(), **options)
    assert history.updates[-1] == 80 - len(schedule.cut) > 0


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"attempts": 0}, "attempts must not all be 0"),
        ({"attempts": (1, -1)}, "attempts must be a whole number of at least 0; it is -1"),
        ({"patience": 0.0}, "patience must be above 0"),
        ({"sending": -1.0}, "sending must be at least 0"),
        ({"attempts": (1, 1, 1)}, "attempts of the policy .* each of the 2 clients; there are 3"),
    ],
)
def test_bad_knobs_are_refused(knobs, message):
    with pytest.raises(InvalidInput, match=message):
        simulate(network([1.0, 2.0]), rounds=5, policy=Attempts(**knobs))


@pytest.mark.parametrize(
    ("rule", "policy", "message"),
    [
        (MindFlayer(attempts=5), Attempts(attempts=(2, 4)), "waits for 5 attempts, .* makes 6"),
        (MindFlayer(), Attempts(attempts=3), "waits for 2 attempts, .* makes 6"),
        (Shadowheart(gradients=2), Attempts(), "waits for 4 gradients .* asks for 2"),
        (Rennala(batch_size=3), FirstOf(first=2, again=True), "collects 3 .* stops after 2"),
        (Ringmaster(max_staleness=3), Restart(max_staleness=4), "drops what is 3 versions old"),
    ],
    ids=str,
)
def test_rules_and_policies_have_to_agree(rule, policy, message):
    with pytest.raises(InvalidInput, match=message):
        check_pair(rule, policy, 2)
    schedule = simulate(network([1.0, 2.0]), rounds=9, policy=policy)
    with pytest.raises(InvalidInput, match=message):
        replay(schedule, small_problem(clients=2), rule, learning_rate=0.1, seed=0)


# Their constants.


def test_mindflayer_attempts_by_hand():
    # S + sum p over sum p/T: 4.5/.5 = 9, 5/.75 = 6.67, 5.5/.755 = 7.28; so two clients
    found = mindflayer_attempts([2.0, 100.0, 1.0], [0.5, 0.5, 0.5], noise=4.0)
    assert found.tolist() == [3, 0, 6]
    # p matters with its own client: .9/1 and .1/2 (the authors' code would mix them up)
    durations = [(1 + 0.9) / 0.9, (1 + 1.0) / (0.9 + 0.05)]
    assert mindflayer_attempts([2.0, 1.0], [0.1, 0.9], noise=0.0).tolist() == [
        int(np.ceil(min(durations) / 2 - 1)),
        int(np.ceil(min(durations) - 1)),
    ]


def test_equilibrium_time_solves_its_equation():
    h, tau = np.array([1.0, 2.0, 50.0]), np.array([0.5, 1.0, 1.0])
    t = equilibrium_time(h, tau, omega=1.0, noise=1.0)

    def inverse(s, j):
        return np.sum(1 / (2 * tau[:j] + 4 * tau[:j] * h[:j] / s + 2 * h[:j]))

    assert inverse(t, 2) == pytest.approx(1 / t, rel=1e-12)
    assert t > 2.0  # the second client's gradient
    assert equilibrium_time([3.0], [0.0], omega=0.0, noise=0.0) == 3.0
    assert equilibrium_time([1.0, 1.0], [0.0, 0.0], omega=0.0, noise=8.0) == pytest.approx(8.0)
    b, k = shadowheart_numbers(h, tau, omega=1.0, noise=1.0)
    assert b.tolist() == [int(t), int(t / 2), 0]
    assert k.tolist() == [int(t / 0.5), int(t), 0]

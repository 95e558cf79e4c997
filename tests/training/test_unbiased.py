"""Quadratic client losses with different optima: whose optimum does the server find?"""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from sojourn.dispatch import FirstOf, Restart
from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.rules import (
    ACE,
    AREA,
    CA2FL,
    Arrival,
    AsyncSGD,
    GeneralizedAsyncSGD,
    Malenia,
    MSynchronousSGD,
    Rennala,
    Ringleader,
    Ringmaster,
    RoutedSAGA,
)
from sojourn.simulation.simulate import simulate
from sojourn.training import Problem
from sojourn.training.replay.replay import replay
from sojourn.training.replay.state import shares_and_divisors

OPTIMA = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 8.0]])
ROUTING = np.array([0.55, 0.25, 0.15, 0.05])


class Point(nn.Module):
    """The model is one point; its output does not depend on the input."""

    def __init__(self):
        super().__init__()
        self.point = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x):
        return self.point.expand(len(x), 2)


def half_square(outputs, y):
    return 0.5 * (outputs - y).square().sum(dim=1).mean()


def quadratic_problem():
    sets = [
        (torch.zeros(4, 1, dtype=torch.float64), torch.tensor(np.tile(optimum, (4, 1))))
        for optimum in OPTIMA
    ]
    return Problem(Point(), sets, sets[0], half_square, batch_size=2)


def long_run_means(rule, *, replicates=12):
    """The mean of the weights near the end of each replicate."""
    problem = quadratic_problem()
    network = Network(Fleet([1.0, 2.0, 3.0, 4.0]), ROUTING, 5)
    return np.array(
        [
            replay(
                simulate(network, rounds=400, seed=seed),
                problem,
                rule,
                learning_rate=0.03,
                seed=seed,
                evaluate_every=400,
                batched=False,
            ).weights
            for seed in range(replicates)
        ]
    )


def z_scores(means, expected):
    error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
    return (means.mean(axis=0) - expected) / error


def test_dividing_by_n_p_finds_the_optimum_of_the_average():
    means = long_run_means(GeneralizedAsyncSGD())
    assert np.abs(z_scores(means, OPTIMA.mean(axis=0))).max() < 4


@pytest.mark.slow
def test_without_it_the_server_finds_what_the_routing_prefers():
    means = long_run_means(AsyncSGD())
    biased = ROUTING @ OPTIMA
    assert np.abs(z_scores(means, biased)).max() < 4
    missed_by = np.linalg.norm(biased - OPTIMA.mean(axis=0))
    assert missed_by > 2
    assert np.linalg.norm(means.mean(axis=0) - OPTIMA.mean(axis=0)) > 0.9 * missed_by


# Data that go with speed: the faster a client, the further its optimum, in the plain loop.

FLEET = Fleet([0.1, 0.5, 2.0], counts=[3, 2, 2])
SPEEDS = FLEET.expand(FLEET.service_rates)
CENTRES = np.stack([np.log10(SPEEDS), np.arange(7) % 2 - 0.5], axis=1)
AVERAGE = CENTRES.mean(axis=0)


class Learned(NamedTuple):
    """The weights after every round, and how many updates of each client were used."""

    weights: np.ndarray
    used: np.ndarray

    @property
    def second_half(self):
        return self.weights[len(self.weights) // 2 :].mean(axis=0)


def learn(rule, *, learning_rate, rounds, policy=None, tasks=FLEET.size, seed=0):
    """A schedule followed with the exact gradients of |w - c_i|^2/2, one arrival at a time."""
    network = Network(FLEET, uniform_routing(FLEET), tasks)
    schedule = simulate(network, rounds=rounds, policy=policy or rule.policy, seed=seed)
    shares, divisors = shares_and_divisors(schedule, rule)
    state = rule.begin(np.zeros(2), FLEET.size)
    weights, versions = [state.weights], [0]
    used = np.zeros(FLEET.size)
    for t in range(rounds):
        client, sent = int(schedule.client[t]), weights[schedule.dispatched[t]]
        gradient = sent - CENTRES[client]
        arrival = Arrival(
            gradient if rule.sends == "gradient" else -rule.local_learning_rate * gradient,
            sent,
            client=client,
            staleness=state.version - versions[schedule.dispatched[t]],
            share=shares[t],
            divisor=divisors[t],
            round=t,
        )
        state, taken = rule.apply(
            state,
            arrival,
            learning_rate=learning_rate,
            clients=FLEET.size,
            concurrency=schedule.in_flight,
        )
        used[client] += taken
        weights.append(state.weights)
        versions.append(state.version)
    return Learned(np.array(weights), used)


@pytest.mark.parametrize(
    ("rule", "rate", "policy", "tasks"),
    [
        (ACE(), 0.02, None, 7),
        (ACE(), 0.02, "never-queue", 4),
        (RoutedSAGA(), 0.01, "never-queue", 7),
        (RoutedSAGA(), 0.01, "never-queue", 4),
        (RoutedSAGA(), 0.01, "routed", 7),
        (Ringleader(), 0.05, None, 7),
        (Malenia(), 0.5, None, 7),
        (Malenia(batch_size=20), 0.5, None, 7),
        (AREA(local_learning_rate=0.3), 1.0, None, 7),
        (CA2FL(buffer_size=3, local_learning_rate=0.05), 1.0, "never-queue", 7),
    ],
    ids=str,
)
def test_rules_that_hear_everybody_alike_end_at_the_optimum_of_the_average(
    rule, rate, policy, tasks
):
    """They remember every client: at the optimum nothing moves, so exact gradients lead there."""
    made = learn(rule, learning_rate=rate, rounds=12_000, policy=policy, tasks=tasks)
    assert np.linalg.norm(made.weights[-1] - AVERAGE) < 1e-6
    assert np.linalg.norm(AVERAGE) > 0.1


@pytest.mark.parametrize("tasks", [7, 4, 2])
def test_weights_by_share_find_the_optimum_of_the_average(tasks):
    r"""Steps add up to little, so :math:`\sum_i s_i v_i (E[w \mid i] - c_i) = 0`, v = 1/(n s).

    What client i was sent is what its own last step of length eta v_i moved; so the mean misses
    the optimum by about :math:`\eta \sum_i s_i v_i^2 (c_i - \bar c)`, and twice that is allowed.
    """
    rate, rule = 0.002, GeneralizedAsyncSGD()
    runs = [
        learn(rule, learning_rate=rate, rounds=15_000, policy="never-queue", tasks=tasks, seed=s)
        for s in range(8)
    ]
    means = np.array([run.second_half for run in runs])
    shares = sum(run.used for run in runs) / sum(run.used.sum() for run in runs)
    missed = rate * (1 / (49 * shares)) @ np.abs(CENTRES - AVERAGE)
    error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
    assert (np.abs(means.mean(axis=0) - AVERAGE) < 2 * missed + 4 * error).all()
    assert (2 * missed + 4 * error).max() < 0.3 * np.linalg.norm(AVERAGE - shares @ CENTRES)


@pytest.mark.parametrize(
    "rule",
    [
        AsyncSGD(),
        Ringmaster(max_staleness=5),
        Ringmaster(max_staleness=40),
        Rennala(batch_size=4),
        MSynchronousSGD(first=3),
    ],
    ids=str,
)
def test_rules_that_hear_the_fast_more_often_end_where_their_used_updates_pull(rule):
    r"""The optimum of :math:`\sum_i s_i f_i`, with :math:`s_i` the share of used updates.

    The mean of ``sent - c_i`` over used updates is what all steps add up to, over eta; the weights
    that were used differ from the mean weights by a step or so.
    """
    rate = 0.01
    batch = getattr(rule, "batch_size", getattr(rule, "first", 1))
    runs = [
        learn(rule, learning_rate=rate * batch, rounds=10_000, policy="never-queue", seed=s)
        for s in range(4)
    ]
    shares = sum(run.used for run in runs) / sum(run.used.sum() for run in runs)
    pulled = shares @ CENTRES
    means = np.array([run.second_half for run in runs])
    error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
    step = rate * batch * shares @ np.abs(CENTRES - pulled)
    assert (np.abs(means.mean(axis=0) - pulled) < 2 * step + 4 * error).all()
    assert np.linalg.norm(pulled - AVERAGE) > 0.25
    assert np.linalg.norm(means.mean(axis=0) - AVERAGE) > 0.8 * np.linalg.norm(pulled - AVERAGE)


def test_everybody_busy_is_heard_in_proportion_to_speed():
    run = learn(AsyncSGD(), learning_rate=0.01, rounds=10_000, policy="never-queue")
    shares = SPEEDS / SPEEDS.sum()
    spread = np.sqrt(shares * (1 - shares) / 10_000)
    assert (np.abs(run.used / 10_000 - shares) < 4 * spread).all()


def test_stopping_makes_every_arrival_count_and_hears_slow_clients_again():
    """Ringmaster, m-synchronous and Rennala with stops of calculations; memoryless times."""
    rounds = 6000
    settings = [
        (Ringmaster(max_staleness=5), Restart(max_staleness=5)),
        (MSynchronousSGD(first=3), FirstOf(first=3)),
        (Rennala(batch_size=4), FirstOf(first=4, again=True)),
    ]
    for rule, policy in settings:
        stopped = learn(rule, learning_rate=0.01, rounds=rounds, policy=policy)
        ignored = learn(rule, learning_rate=0.01, rounds=rounds, policy="never-queue")
        assert stopped.used.sum() == rounds
        assert ignored.used.sum() < rounds
        slow_stopped, slow_ignored = (
            run.used[:3].sum() / run.used.sum() for run in (stopped, ignored)
        )
        assert slow_stopped > 2 * slow_ignored

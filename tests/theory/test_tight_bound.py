"""The tighter bound and the server's buffer: formulas, gradients, and quadratics that keep to it."""

import math

import numpy as np
import pytest

import sojourn as sj
from sojourn._support.configuration import Table
from sojourn._support.estimate import Estimate
from sojourn.planning.objectives import objective_from_table, objective_to_table
from sojourn.simulation.simulate import simulate
from sojourn.theory.bounds import Form, penalties

CONSTANTS = sj.LearningConstants(15.0, 1.0, 3.0, 10.0)
FLEET = sj.Fleet([0.3, 1.0, 4.0], counts=[2, 5, 3])
NETWORK = sj.Network(FLEET, sj.square_root_routing(FLEET), 9)
FORMS = [Form("tight"), Form("paper", 4), Form("tight", 4)]


def test_values_are_those_of_the_formula() -> None:
    s, n, m = penalties(NETWORK), 10, 9
    for form in FORMS:
        k, eta = form.buffer, 0.02
        found = sj.per_round_bound(
            NETWORK, CONSTANTS, learning_rate=eta, rounds=99, bound=form.bound, buffer=k
        )
        each = eta / k
        noise = 209.0 * (m + k - 1) if form.bound == "paper" else 9.0 + 200.0 * (m + k - 2)
        staleness = each**2 / n**2 * noise * (s.staleness + (k - 1) / 2 * s.routing)
        expected = 15.0 / (each * 100) + each * 209.0 / n**2 * s.routing + staleness
        assert found.value == pytest.approx(expected, rel=1e-12)
    plain = sj.per_round_bound(NETWORK, CONSTANTS, learning_rate=0.02, rounds=99)
    tight = sj.per_round_bound(NETWORK, CONSTANTS, learning_rate=0.02, rounds=99, bound="tight")
    assert tight.value < plain.value
    assert tight.terms["noise"] == plain.terms["noise"]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_gradients_are_those_of_differences(form: Form) -> None:
    objectives = [
        sj.PerRound(CONSTANTS, 0.02, 100, form),
        sj.PerTime(CONSTANTS, None, 100, form),
        sj.TimeToAccuracy(CONSTANTS, 0.5, form=form),
        sj.TimeToAccuracy(CONSTANTS, 0.5, guaranteed=True, form=form),
        sj.TimeBudget(CONSTANTS, 300.0, form=form),
    ]
    for objective in objectives:
        gradient = objective.evaluate(NETWORK).log_gradient
        for a, b in ((0, 1), (1, 2)):
            step = 1e-6 * NETWORK.routing[a]
            move = np.zeros(3)
            move[a], move[b] = step / FLEET.counts[a], -step / FLEET.counts[b]
            logs = [
                math.log(
                    objective.evaluate(sj.Network(FLEET, NETWORK.routing + sign * move, 9)).value
                )
                for sign in (1.0, -1.0)
            ]
            slope = float((FLEET.counts * gradient) @ move)
            assert (logs[0] - logs[1]) / 2.0 == pytest.approx(slope, rel=2e-4), objective.name
        table = Table(objective_to_table(objective), "plan.toml")
        assert objective_from_table(table, CONSTANTS) == objective


def _waiting(schedule: sj.Schedule, per_task: np.ndarray) -> np.ndarray:
    """The sum over the tasks under way at the end of every round, before the next is sent."""
    change = np.zeros((schedule.rounds + 1, per_task.shape[1]))
    # Task t is under way after the rounds from its dispatch to the one before its completion.
    np.add.at(change, schedule.dispatched, per_task)
    np.add.at(change, np.arange(schedule.rounds), -per_task)
    return np.cumsum(change, axis=0)[:-1]


def test_the_noise_of_tasks_under_way_is_orthogonal() -> None:
    """E|w^ - w|^2 = gamma^2 sigma^2 S_2/n^2 without gradients; the paper's form has m times as much."""
    weights = 1.0 / (10 * NETWORK.client_routing)
    seen = []
    for seed in range(20):
        run = simulate(NETWORK, rounds=20_000, start="stationary", seed=seed)
        noise = np.random.default_rng(seed).normal(0.0, 3.0, (run.rounds, 1))
        under_way = _waiting(run, noise * weights[run.client][:, None])
        seen.append(float((under_way[500:-2000] ** 2).mean()))
    found = Estimate.from_samples(np.array(seen))
    theory = 9.0 * penalties(NETWORK).staleness / 100.0
    assert abs(found.z_scores(theory)) < 4.0
    assert found.mean < 0.2 * 9 * theory


@pytest.mark.parametrize("buffer", [1, 4])
@pytest.mark.parametrize("heterogeneity", [0.0, 1.0])
def test_quadratics_keep_to_the_bound(buffer: int, heterogeneity: float) -> None:
    """f_i(w) = |w - c_i|^2/2 with |c_i - mean| = M: L = 1, and gradient noise of variance sigma^2."""
    random = np.random.default_rng(1)
    centres = heterogeneity * np.where(np.arange(10) % 2, 1.0, -1.0)
    constants = sj.LearningConstants(0.5 * 3.0**2, 1.0, 1.0, heterogeneity)
    form, rounds = Form("tight", buffer), 4000
    eta = sj.max_learning_rate(NETWORK, constants, form)
    weights = 1.0 / (10 * NETWORK.client_routing)
    means = []
    for seed in range(3):
        run = simulate(NETWORK, rounds=rounds, start="stationary", seed=seed)
        noise = random.normal(0.0, 1.0, rounds)
        # w[k] is what a task sent after k rounds gets; a step is made when the buffer is full.
        w, collected, current = np.empty(rounds + 1), 0.0, 3.0
        w[0] = current
        for t in range(rounds):
            i = run.client[t]
            collected += weights[i] * (w[run.dispatched[t]] - centres[i] + noise[t])
            if (t + 1) % buffer == 0:
                current -= eta / buffer * collected
                collected = 0.0
            w[t + 1] = current
        means.append(float((w[:-1] ** 2).mean()))
    bound = sj.per_round_bound(
        NETWORK, constants, learning_rate=eta, rounds=rounds - 1, bound="tight", buffer=buffer
    )
    assert np.mean(means) <= 8.0 * bound.value


@pytest.mark.parametrize("buffer", [2, 5])
@pytest.mark.parametrize("server_rate", [None, 3.0])
def test_staleness_in_versions_is_divided_by_the_buffer(
    buffer: int, server_rate: float | None
) -> None:
    """A version is made of every K updates: versions between a task's dispatch and its use."""
    fleet = sj.Fleet(FLEET.service_rates, FLEET.counts, uplink=[1.0, 0.0, 2.0])
    network = sj.Network(fleet, sj.uniform_routing(fleet), 9, server_rate=server_rate)
    theory = sj.analyze(network).staleness / buffer
    runs = []
    for seed in range(20):
        run = simulate(network, rounds=10_000, start="stationary", seed=seed)
        versions = np.arange(run.rounds) // buffer - run.dispatched // buffer
        kind = np.repeat(np.arange(3), fleet.counts)[run.client]
        runs.append([versions[200:][kind[200:] == k].mean() for k in range(3)])
    scores = Estimate.from_samples(np.array(runs)).z_scores(theory)
    assert np.abs(scores).max() < 4.0


def test_the_best_buffer() -> None:
    twenty = sj.built_in_fleet("twenty")
    objective = sj.PerRound(CONSTANTS, 0.1, 1000)
    network = sj.Network(twenty, sj.uniform_routing(twenty), 20)
    values = [
        sj.PerRound(CONSTANTS, 0.1, 1000, Form(buffer=k)).evaluate(network).value
        for k in range(1, 80)
    ]
    asked = {"concurrency": 20, "routing": "uniform"}
    found = sj.optimize_buffer(twenty, objective, **asked)
    assert found.objective.form.buffer == 1 + int(np.argmin(values))
    free = sj.optimize_buffer(twenty, sj.PerRound(CONSTANTS, None, 1000), **asked)
    assert free.objective.form.buffer == 1
    with pytest.raises(sj.InvalidInput, match="does not depend on how many updates"):
        sj.optimize_buffer(twenty, sj.Throughput(), concurrency=3)


def test_a_plan_keeps_its_form(tmp_path) -> None:
    objective = sj.TimeToAccuracy(CONSTANTS, 0.5, form=Form("tight", 3))
    plan = sj.plan(FLEET, objective, concurrency=5)
    plan.write(tmp_path / "plan.toml")
    again = sj.Plan.read(tmp_path / "plan.toml")
    assert again.objective == objective
    assert again.value == pytest.approx(plan.value, rel=1e-12)
    paper = sj.plan(FLEET, sj.TimeToAccuracy(CONSTANTS, 0.5), concurrency=5)
    assert sj.plan(FLEET, sj.TimeToAccuracy(CONSTANTS, 0.5, form=Form("tight")), concurrency=5).value < paper.value  # fmt: skip
    for wrong in ({"bound": "loose"}, {"buffer": 0}, {"buffer": 1.5}):
        with pytest.raises(sj.InvalidInput):
            Form(**wrong)

"""The replay against the paper's algorithms read literally, and its bookkeeping."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import sojourn as sj
from sojourn.errors import InvalidInput
from sojourn.rules import (
    RULES,
    AsyncSGD,
    FedAvg,
    FedBuff,
    GeneralizedAsyncSGD,
    MinibatchSGD,
    Plain,
    Ringmaster,
    ServerState,
)
from sojourn.rules.weighting import task_ordinals
from sojourn.training import Problem, evaluation_spacing
from sojourn.training.replay.replay import replay
from sojourn.training.replay.run import Replay
from sojourn.training.replay.stack import Stack
from sojourn.training.replay.state import last_uses, run_end
from tests.reference.async_sgd import batch_gradient, generalized_async_sgd
from tests.training.small import perceptron, small_problem, small_schedule

ROUTING = [0.1, 0.2, 0.3, 0.4]


def literal_weights(problem, schedule, *, seed, dtype):
    gradient = batch_gradient(
        perceptron(dtype=dtype),
        torch.nn.functional.cross_entropy,
        lambda client, ordinal: problem.batch(client, ordinal, seed),
    )
    return generalized_async_sgd(schedule, gradient, problem.initial_weights(), 0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("law", ["exponential", "deterministic"])
def test_the_plain_replay_is_the_papers_algorithm_to_the_bit(dtype, law):
    problem = small_problem(dtype=dtype)
    schedule = small_schedule(routing=ROUTING, law=law)
    history = replay(
        schedule, problem, GeneralizedAsyncSGD(), learning_rate=0.05, seed=9, batched=False
    )
    literal = literal_weights(problem, schedule, seed=9, dtype=dtype)
    assert not np.array_equal(history.weights, literal[-2].numpy())
    assert np.array_equal(history.weights, literal[-1].numpy())


def test_every_row_is_the_model_of_its_round():
    problem, schedule = small_problem(), small_schedule(routing=ROUTING)
    history = replay(
        schedule,
        problem,
        GeneralizedAsyncSGD(),
        learning_rate=0.05,
        seed=9,
        batched=False,
        evaluate_every=60,
    )
    literal = literal_weights(problem, schedule, seed=9, dtype=torch.float32)
    assert history.round.tolist() == [0, 60, 120, 180, 200]
    assert history.time.tolist() == [0.0, *schedule.time[[59, 119, 179, 199]].tolist()]
    for row, done in enumerate(history.round):
        assert history.test_loss[row] == problem.evaluate(literal[done])[0]
    delays = schedule.relative_delay
    assert history.staleness[1:3].tolist() == [delays[:60].mean(), delays[60:120].mean()]
    assert math.isnan(history.staleness[0])
    assert math.isnan(history.train_loss[0])
    assert history.gradients.tolist() == history.updates.tolist() == history.round.tolist()


def test_an_average_of_versions_is_evaluated_and_delivered_but_not_sent():
    problem, schedule = small_problem(dtype=torch.float64), small_schedule(routing=ROUTING)
    history = replay(
        schedule,
        problem,
        GeneralizedAsyncSGD(server=Plain(average=1.0)),
        learning_rate=0.05,
        seed=9,
        batched=False,
        evaluate_every=60,
    )
    literal = literal_weights(problem, schedule, seed=9, dtype=torch.float64)
    versions = torch.stack([torch.as_tensor(w) for w in literal])
    np.testing.assert_allclose(history.weights, versions[1:].mean(dim=0).numpy(), rtol=1e-10)
    for row, done in enumerate(history.round):
        mean = versions[1 : done + 1].mean(dim=0) if done else versions[0]
        assert history.test_loss[row] == pytest.approx(problem.evaluate(mean)[0], rel=1e-10)


def test_versions_are_kept_no_longer_than_tasks_in_flight_need_them():
    alive = []

    class Counting(GeneralizedAsyncSGD):
        def take(self, *given):
            alive.append(len(position.live))
            return super().take(*given)

    run = Replay(
        small_schedule(concurrency=7, rounds=300),
        small_problem(),
        Counting(),
        learning_rate=0.01,
        seed=1,
    )
    position = run.beginning(False)
    Stack([run]).run([position], batched=False)
    assert len(alive) == 300
    assert max(alive) <= 7
    assert position.live == {}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_learns_under_its_own_policy(name):
    rule = RULES[name]()
    problem = small_problem()
    schedule = small_schedule(concurrency=4, rounds=400, policy=rule.policy)
    history = replay(schedule, problem, rule, learning_rate=0.1, seed=1)
    assert history.test_loss[-1] < history.test_loss[0]
    assert history.strategy == name
    assert history.gradients[-1] == 400
    assert history.updates[-1] <= 400


def test_a_buffer_makes_versions_only_when_it_is_emptied():
    problem, schedule = small_problem(), small_schedule(rounds=205)
    history = replay(schedule, problem, FedBuff(buffer_size=10), learning_rate=0.1, seed=1)
    assert history.updates[-1] == 20
    assert history.staleness[-1] < schedule.relative_delay.mean() / 5


def test_synchronous_rules_make_one_version_per_cohort_and_are_never_stale():
    schedule = small_schedule(concurrency=4, rounds=200, policy="synchronous")
    gradient = replay(schedule, small_problem(), MinibatchSGD(), learning_rate=0.1, seed=1)
    model = replay(schedule, small_problem(), FedAvg(), learning_rate=0.1, seed=1)
    for history in (gradient, model):
        assert history.updates[-1] == 50
        assert set(history.staleness[1:]) == {0.0}
    # One local step at the same rate is the same thing.
    np.testing.assert_allclose(gradient.weights, model.weights, rtol=1e-4, atol=1e-6)


def test_gradients_thrown_away_are_counted_as_computed():
    schedule = small_schedule(rounds=200)
    history = replay(
        schedule, small_problem(), Ringmaster(max_staleness=5), learning_rate=0.1, seed=1
    )
    assert history.gradients[-1] == 200
    assert 0 < history.updates[-1] < 200
    assert np.nanmax(history.staleness) < 5


def test_local_steps_cost_local_steps():
    rule, problem = FedBuff(local_steps=3), small_problem()
    schedule = small_schedule(rounds=60, work=3.0)
    history = replay(schedule, problem, rule, learning_rate=0.1, seed=1)
    assert history.gradients[-1] == 180
    with pytest.raises(InvalidInput, match="simulate with work=3"):
        replay(small_schedule(rounds=60), problem, rule, learning_rate=0.1, seed=1)


def test_a_rule_of_gradients_gets_the_sum_of_those_of_the_local_steps():
    problem = small_problem(dtype=torch.float64)
    schedule = small_schedule(concurrency=1, rounds=7, work=3.0)
    rule = AsyncSGD(local_steps=3, local_learning_rate=0.2, proximal=0.5)
    history = replay(schedule, problem, rule, learning_rate=0.05, seed=1)
    weights, done = problem.initial_weights(), [0] * problem.clients
    for client in schedule.client.tolist():
        local, total = weights, torch.zeros_like(weights)
        for step in range(3):
            gradient = problem.gradient(local, client, 3 * done[client] + step, 1)
            gradient = gradient + 0.5 * (local - weights)
            local, total = local - 0.2 * gradient, total + gradient
        weights = weights - 0.05 * total
        done[client] += 1
    np.testing.assert_allclose(history.weights, weights, rtol=1e-12, atol=1e-14)
    assert history.gradients[-1] == 21


def test_at_the_local_rate_a_rule_of_gradients_moves_as_the_client_did():
    problem = small_problem(dtype=torch.float64)
    schedule = small_schedule(concurrency=4, rounds=200, policy="synchronous", work=4.0)
    rules = (MinibatchSGD(local_steps=4), FedAvg(local_steps=4))
    gradients, differences = (
        replay(schedule, problem, rule, learning_rate=0.1, seed=1) for rule in rules
    )
    np.testing.assert_allclose(gradients.weights, differences.weights, rtol=1e-10, atol=1e-12)


def test_strategies_see_the_same_batches():
    seen = []
    for concurrency in (4, 12):
        problem = small_problem()
        batch = problem.batch
        calls = {}
        problem.batch = lambda client, number, seed, batch=batch, calls=calls: calls.setdefault(
            (client, number), batch(client, number, seed)
        )
        schedule = small_schedule(concurrency=concurrency, rounds=100)
        replay(schedule, problem, AsyncSGD(), learning_rate=0.1, seed=4, batched=False)
        seen.append(calls)
    shared = set(seen[0]) & set(seen[1])
    assert len(shared) > 50
    assert all(torch.equal(seen[0][key][0], seen[1][key][0]) for key in shared)


def test_a_learning_rate_that_diverges_ends_the_run_and_keeps_its_rows():
    problem, schedule = small_problem(), small_schedule()
    history = replay(schedule, problem, AsyncSGD(), learning_rate=1e30, seed=1, evaluate_every=1)
    assert history.diverged_at is not None
    assert 1 <= history.diverged_at < 200
    assert history.rows >= 1
    assert np.isfinite(history.test_loss).all()
    assert history.round[-1] < history.diverged_at + 1


def test_progress_is_told_to_the_end():
    calls = []
    replay(
        small_schedule(),
        small_problem(),
        AsyncSGD(),
        learning_rate=0.1,
        seed=1,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls[-1] == (200, 200)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_the_bar_is_quiet_when_not_on_a_terminal(capfd):
    replay(
        small_schedule(rounds=20),
        small_problem(),
        AsyncSGD(),
        learning_rate=0.1,
        seed=1,
        progress=True,
    )
    assert capfd.readouterr() == ("", "")


def test_replay_is_a_public_name():
    history = sj.replay(
        small_schedule(rounds=20), small_problem(), AsyncSGD(), learning_rate=0.1, seed=1
    )
    assert history.provenance["inputs"]["rule"] == {"name": "async-sgd"}


def test_looking_at_the_package_does_not_import_torch():
    code = "import sojourn, sys; sojourn.training; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"learning_rate": math.nan}, "learning_rate must be positive"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"evaluate_every": 0}, "evaluate_every must be a whole number"),
    ],
)
def test_wrong_options_are_refused(options, words):
    given = {"learning_rate": 0.1, "seed": 1, **options}
    with pytest.raises(InvalidInput, match=words):
        replay(small_schedule(rounds=5), small_problem(), AsyncSGD(), **given)


def test_a_problem_of_another_fleet_is_refused():
    with pytest.raises(InvalidInput, match="data for 3 clients, but the schedule is of 4"):
        replay(
            small_schedule(rounds=5),
            small_problem(clients=3),
            AsyncSGD(),
            learning_rate=0.1,
            seed=1,
        )


@pytest.mark.parametrize(
    ("rounds", "test", "samples", "rows"),
    [
        (10**6, 10_000, 640, 100),
        (10_000, 360, 32, 100),
        (7_040, 10_000, 128, 20),
        (3000, 10_000, 128, 10),
        (200, 360, 32, 10),
        (55, 10_000, 128, 11),
        (13, 10_000, 1, 13),
        (3, 10_000, 1, 3),
    ],
)
def test_ten_to_a_hundred_evaluations_as_many_as_a_tenth_of_the_time_affords(
    rounds, test, samples, rows
):
    assert math.ceil(rounds / evaluation_spacing(rounds, test, samples)) == rows


def test_a_slow_strategy_is_seen_ten_times():
    x, y = torch.zeros(5000, 6), torch.zeros(5000, dtype=torch.long)
    problem = small_problem()
    problem = Problem(problem.model, problem.train_sets, (x, y))
    history = replay(small_schedule(rounds=40), problem, AsyncSGD(), learning_rate=0.1, seed=1)
    assert history.rows == 1 + 10


def test_a_numpy_learning_rate_keeps_single_precision():
    for rule in (GeneralizedAsyncSGD(), FedBuff(buffer_size=2)):
        plain, numpy = (
            replay(small_schedule(rounds=30), small_problem(), rule, learning_rate=rate, seed=1)
            for rate in (0.1, np.float64(0.1))
        )
        assert numpy.weights.dtype == np.float32
        assert np.array_equal(plain.weights, numpy.weights)
        assert type(numpy.learning_rate) is float


def test_a_rule_of_ones_own_trains():
    class Own:
        name, sends, policy = "own", "gradient", "routed"
        local_steps, local_learning_rate, proximal = 1, None, 0.0

        def begin(self, weights, clients):
            return ServerState(weights)

        def apply(self, state, arrival, *, learning_rate, clients, concurrency):
            return state.updated(state.weights - learning_rate * arrival.update), True

    options = {"learning_rate": 0.1, "seed": 1, "batched": False}
    own = replay(small_schedule(rounds=30), small_problem(), Own(), **options)
    plain = replay(small_schedule(rounds=30), small_problem(), AsyncSGD(), **options)
    assert own.provenance["inputs"]["rule"] == {"name": "own"}
    np.testing.assert_allclose(own.weights, plain.weights, rtol=1e-5)


def test_what_is_no_rule_is_refused():
    with pytest.raises(InvalidInput, match="rule must be a rule"):
        replay(small_schedule(rounds=5), small_problem(), "async-sgd", learning_rate=0.1, seed=1)


class Watching(AsyncSGD):
    """Keeps the arrivals that it saw."""

    def apply(self, state, arrival, **run):
        self.__dict__.setdefault("seen", []).append(arrival)
        return super().apply(state, arrival, **run)


def watched(debias=1.0, cap=None, **options):
    schedule, rule = small_schedule(**options), Watching(debias=debias, cap=cap)
    options = {"learning_rate": 1e-3, "seed": 1, "batched": False, "evaluate_every": 1000}
    replay(schedule, small_problem(), rule, **options)
    return schedule, rule.seen


def test_arrivals_say_how_far_the_run_is():
    _, seen = watched(rounds=4)
    assert [arrival.round for arrival in seen] == [0, 1, 2, 3]
    assert [arrival.progress for arrival in seen] == [0.0, 0.25, 0.5, 0.75]
    network = small_schedule(rounds=1).network
    schedule, rule = sj.simulate(network, time=10.0, seed=1), Watching()
    replay(schedule, small_problem(), rule, learning_rate=1e-3, seed=1)
    assert [arrival.progress for arrival in rule.seen] == (schedule.time / 10.0).tolist()


def test_a_schedule_where_everybody_is_busy_weighs_by_speed():
    schedule, seen = watched(policy="never-queue", concurrency=4, rounds=40)
    rates = schedule.network.fleet.service_rates
    for arrival in seen:
        share = rates[arrival.client] / rates.sum()
        assert arrival.share == pytest.approx(share)
        assert arrival.divisor == pytest.approx(4 * share)


@pytest.mark.parametrize("policy", ["idle"])
@pytest.mark.parametrize(("debias", "cap"), [(0.0, None), (0.5, None), (1.0, None), (1.0, 1.5)])
def test_where_shares_are_unknown_they_are_counted_at_dispatch(policy, debias, cap):
    schedule, seen = watched(debias, cap, policy=policy, concurrency=3, rounds=60)
    tasks = [*zip(schedule.dispatched, schedule.client, range(60), strict=True)]
    tasks += [*zip(schedule.pending_dispatched, schedule.pending_client, [99] * 9, strict=False)]
    counts = np.ones(4)
    for _, client, completion in sorted(tasks):
        shares = counts / counts.sum()
        counts[client] += 1
        if completion < 60:
            arrival = seen[completion]
            weights = (4 * shares) ** -debias
            weights = np.minimum(weights / (shares @ weights), cap or np.inf)
            assert arrival.share == pytest.approx(shares[client])
            assert arrival.divisor == pytest.approx(1 / weights[client])


def test_an_empty_schedule_is_refused():
    network = small_schedule(rounds=1).network
    schedule = sj.simulate(network, time=1e-12)
    assert schedule.rounds == 0
    with pytest.raises(InvalidInput, match="no task completes in its time"):
        replay(schedule, small_problem(), AsyncSGD(), learning_rate=0.1, seed=1)


def test_the_order_of_a_schedule_against_its_definition():
    schedule = small_schedule(rounds=500)
    client, dispatched = schedule.client, schedule.dispatched
    ordinals, last = task_ordinals(client), last_uses(dispatched)
    for t in range(500):
        assert ordinals[t] == (client[:t] == client[t]).sum()
        uses = np.flatnonzero(dispatched == t)
        assert last[t] == (uses[-1] if uses.size else -1)
    start = 0
    while start < 500:
        end = run_end(dispatched, start, limit=1000)
        assert (dispatched[start:end] <= start).all()
        assert end == 500 or dispatched[end] > start
        assert run_end(dispatched, start, limit=3) == min(end, start + 3)
        start = end

"""Local work per client: in schedules, in training, in strategy files and in a deployment."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import sojourn as sj
from sojourn._support.configuration import Table
from sojourn._support.extensions import load_extension
from sojourn.deployment.client import compute
from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.guard import Guard
from sojourn.deployment.inprocess import InProcessTransport
from sojourn.deployment.run import serve
from sojourn.deployment.settings import read_settings
from sojourn.deployment.transport import Request
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.rules import AsyncSGD, FedBuff, epoch_steps
from sojourn.runs.history import History
from sojourn.simulation.scenario import Scenario
from sojourn.simulation.simulate import simulate
from sojourn.strategy import Choices, Strategy
from sojourn.testing import check_rule_conforms
from sojourn.training import Problem
from sojourn.training.experiment.experiment import Experiment, experiment_from_table
from sojourn.training.experiment.jobs import at_seed, schedule_of
from sojourn.training.replay.replay import replay, replay_runs
from sojourn.training.replay.run import Replay
from tests.extending.test_extending import DOCS
from tests.training.small import perceptron, ran, small_problem

RATE, STEPS = 0.05, (1, 2, 3, 4)


def network(concurrency=4, clients=4):
    fleet = Fleet(np.exp(np.arange(clients) / 3))
    return Network(fleet, uniform_routing(fleet), concurrency)


def busy(rounds=60, work=STEPS, **options):
    return simulate(network(), rounds=rounds, policy="never-queue", work=work, seed=3, **options)


def test_a_task_takes_as_many_service_times_as_its_client_takes_steps():
    schedule = busy(law="deterministic")
    rates = np.exp(np.arange(4) / 3)
    for client, steps in enumerate(STEPS):
        times = schedule.time[np.asarray(schedule.client) == client]
        np.testing.assert_allclose(np.diff(times), steps / rates[client])


def test_training_takes_every_clients_own_steps_as_a_plain_loop_does():
    steps = (2, 5)
    fleet = Fleet([1.0, 2.0])
    schedule = simulate(Network(fleet, [0.5, 0.5], 1), rounds=9, work=steps, seed=1)
    problem = small_problem(clients=2, optimizer=torch.optim.SGD)
    rule = FedBuff(buffer_size=1, local_steps=steps)
    history = replay(schedule, problem, rule, learning_rate=RATE, seed=3)
    model = problem.trained_model(problem.initial_weights()).train()
    optimizer, done = torch.optim.SGD(model.parameters(), lr=RATE), [0, 0]
    for client in schedule.client.tolist():
        for _ in range(steps[client]):
            x, y = problem.batch(client, done[client], 3)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            done[client] += 1
    expected = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
    np.testing.assert_array_equal(history.weights.astype(np.float32), expected)
    assert history.gradients[-1] == sum(done)


@pytest.mark.parametrize("rule", [AsyncSGD(local_steps=STEPS), FedBuff(local_steps=STEPS)])
def test_stacked_tasks_of_different_length_are_the_same_to_rounding(rule):
    schedule, problem = busy(), small_problem()
    runs = [
        replay_runs(
            [Replay(schedule, problem, rule, learning_rate=RATE, seed=1)], ["x"], batched=batched
        )[0]
        for batched in (False, True)
    ]
    np.testing.assert_allclose(runs[0].weights, runs[1].weights, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(runs[0].train_loss, runs[1].train_loss, rtol=1e-5)
    assert not np.array_equal(runs[0].weights, problem.initial_weights().numpy())


def test_steps_of_the_rule_must_be_those_of_the_schedule():
    with pytest.raises(InvalidInput, match="simulate with work="):
        replay(busy(work=2.0), small_problem(), FedBuff(local_steps=STEPS), learning_rate=1, seed=1)
    with pytest.raises(InvalidInput, match="one for each of the 4 clients; there are 2"):
        rule = FedBuff(local_steps=(1, 2))
        replay(busy(), small_problem(), rule, learning_rate=1, seed=1)


class Spy:
    """Notes what arrives at a rule."""

    def __init__(self, rule):
        self.rule, self.seen = rule, []

    def __getattr__(self, name):
        return getattr(self.rule, name)

    def apply(self, state, arrival, **options):
        self.seen.append((arrival.client, arrival.loss, arrival.steps))
        return self.rule.apply(state, arrival, **options)


def scaffold(**parameters):
    return load_extension("scaffold:Scaffold", "rule", DOCS / "examples")(**parameters)


def deployed(rule, problem, order, local_epochs=None):
    """The dispatcher after the answers of clients in ``order``, computed as clients compute them."""
    dispatcher = Dispatcher(
        problem.initial_weights().numpy(),
        rule=rule,
        routing=np.full(4, 0.25),
        concurrency=4,
        learning_rate=RATE,
        policy="never-queue",
        guard=Guard(screens=()),
    )
    own = [{} for _ in range(4)]
    for client in range(4):
        dispatcher.joined(client, now=0.0)
    dispatcher.start(now=0.0)
    for turn, client in enumerate(order, 1):
        task = dispatcher.tasks[dispatcher.clients[client].out[0]]
        request = Request.of(
            *(task, rule), clients=4, seed=1, learning_rate=RATE, local_epochs=local_epochs
        )
        weights = dispatcher.weights_of(task)
        found = compute(problem, request, weights, client, own[client], DOCS / "examples")
        dispatcher.completed(
            *(task.number, found.update), now=float(turn), loss=found.loss, steps=found.steps
        )
    return dispatcher


def momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


@pytest.mark.parametrize("optimizer", [None, momentum], ids=["plain", "momentum"])
def test_a_deployed_rule_is_told_what_a_simulated_one_is(optimizer):
    problem = small_problem(optimizer=optimizer, optimizer_state="client")
    schedule = busy(rounds=20)
    simulated, real = (Spy(FedBuff(buffer_size=2, local_steps=STEPS)) for _ in range(2))
    position = ran(Replay(schedule, problem, simulated, learning_rate=RATE, seed=1))
    dispatcher = deployed(real, problem, schedule.client.tolist())
    if optimizer is None:
        assert real.seen == simulated.seen
    for one, other in zip(real.seen, simulated.seen, strict=True):
        assert (one[0], one[2]) == (other[0], other[2])
        assert one[1] == pytest.approx(other[1], rel=1e-5)
    assert {steps for _, _, steps in real.seen} == set(STEPS)
    tolerance = (
        0 if optimizer is None else 1e-6
    )  # A replay has the server's weights in double precision.
    np.testing.assert_allclose(dispatcher.state.weights, position.state.weights, atol=tolerance)
    assert sum(client.gradients for client in dispatcher.clients) == sum(
        steps for _, _, steps in real.seen
    )


def test_scaffold_is_worked_out_by_hand():
    """Losses (w - 1)^2 and (w - 3)^2, two steps of 0.1 from w = c = 0."""
    sets = [(torch.ones(4, 1), torch.full((4, 1), wanted)) for wanted in (1.0, 3.0)]
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    sets = [(x.double(), y.double()) for x, y in sets]
    problem = Problem(model, sets, sets[0], nn.functional.mse_loss, batch_size=2)
    schedule = sj.Schedule(
        np.array([0, 1, 0], dtype=np.int32),
        np.array([0, 0, 1]),
        np.array([1.0, 2.0, 3.0]),
        pending_client=np.array([1], dtype=np.int32),
        pending_dispatched=np.array([2]),
        network=network(2, clients=2),
        scenario=Scenario(work=2),
        seed=0,
    )
    run = Replay(schedule, problem, scaffold(local_steps=2), learning_rate=0.1, seed=0)
    position = ran(run)
    # Client 0: 0 -> 0.2 -> 0.36, so c_0 = -1.8, w = 0.18, c = -0.9. Client 1: 0 -> 0.6 -> 1.08, so
    # c_1 = -5.4, w = 0.72, c = -3.6. Client 0 again, from 0.18 with c = -0.9: 0.18 -> 0.254 -> 0.3132.
    assert position.state.weights == pytest.approx([0.72 + 0.1332 / 2])
    assert position.state.arrays["c"] == pytest.approx([-3.483])
    assert position.clients[0]["rule/c"] == pytest.approx([-1.566])
    assert position.clients[1]["rule/c"] == pytest.approx([-5.4])


def test_scaffold_conforms_and_deployed_clients_have_the_same_state():
    check_rule_conforms(scaffold())
    problem, schedule = small_problem(), busy(rounds=12, work=5)
    position = ran(Replay(schedule, problem, scaffold(), learning_rate=RATE, seed=1))
    dispatcher = deployed(scaffold(), problem, schedule.client.tolist())
    np.testing.assert_allclose(dispatcher.state.weights, position.state.weights, atol=1e-6)
    np.testing.assert_allclose(dispatcher.state.arrays["c"], position.state.arrays["c"], atol=1e-5)


def test_a_client_by_epochs_takes_as_many_steps_as_its_samples_need():
    problem = small_problem()  # 5, 12, 19 and 26 samples in batches of 8
    spy = Spy(FedBuff(buffer_size=1))
    deployed(spy, problem, [0, 1, 2, 3], local_epochs=2.0)
    assert [steps for _, _, steps in spy.seen] == [2, 4, 6, 8]
    assert [epoch_steps(2.0, size, 8) for size in problem.train_sizes] == [2, 4, 6, 8]


FLEET = "name,service_rate,count,uplink\nslow,1,2,2\nfast,4,2,2\n"
EXPERIMENT = {
    "fleet": "fleet.csv",
    "rounds": 30,
    "concurrency": 4,
    "learning-rate": 0.05,
    "seeds": 1,
}


def test_one_strategy_file_goes_through_simulate_train_and_the_dispatcher(tmp_path):
    (tmp_path / "fleet.csv").write_text(FLEET)
    choices = Choices(
        concurrency=4,
        rule="fedbuff",
        policy="never-queue",
        local_steps="theory",
        learning_rate=0.05,
    )
    strategy = Strategy.read("fleet.csv", choices, folder=tmp_path)
    expected = (2, 2, 8, 8)
    strategy.write(tmp_path / "strategy.toml")
    again = Strategy.read(tmp_path / "strategy.toml")
    assert again.rule.local_steps == again.scenario.work == expected
    table = Table({**EXPERIMENT, "strategies": ["strategy.toml"]}, "experiment")
    experiment = experiment_from_table(table, tmp_path)
    assert experiment.strategies[0].rule.local_steps == expected
    assert schedule_of(experiment, experiment.strategies[0], 0).scenario.work == expected
    settings = read_settings({"clients": 4, "updates": 10, "strategy": "strategy.toml"}, tmp_path)
    assert settings.strategy.rule.local_steps == expected
    rehearsed = {"clients": 2, "updates": 10, "strategy": "strategy.toml", "rehearse": True}
    assert read_settings(rehearsed, tmp_path).strategy.rule.local_steps == (2, 8)


def test_local_epochs_of_an_experiment_become_steps_with_the_samples_of_a_seed(tmp_path):
    (tmp_path / "fleet.csv").write_text(FLEET)
    values = {**EXPERIMENT, "partition": "dirichlet", "model": "linear", "batch-size": 64}
    table = Table({**values, "rule": "fedbuff", "strategies": ["uniform"], "policy": "routed"}, "x")
    table.values["local-epochs"] = 1.0
    experiment = experiment_from_table(table, tmp_path)
    strategy = experiment.strategies[0]
    assert strategy.local_epochs == 1.0
    found = at_seed(experiment, strategy, 0)
    assert isinstance(found.rule.local_steps, tuple)
    assert found.scenario.work == found.rule.local_steps
    written = experiment_from_table(Table(experiment.to_table(), "x"), tmp_path)
    assert written.strategies[0].local_epochs == 1.0
    with pytest.raises(InvalidFile, match="both say how much"):
        Choices.take(
            Table({"local-steps": 2, "local-epochs": 1.0}, "x"),
            *(Fleet([1.0]), None, ("local-steps", "local-epochs")),
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("guess", "theory"),
        ([1, 2, 3], "3 numbers"),
        ({"by": "speed", "most": 0}, "steps"),
        (0, "local-steps"),
    ],
)
def test_local_steps_that_cannot_be_are_refused_in_a_sentence(given, message):
    fleet = Fleet([1.0, 2.0], counts=[2, 2])
    with pytest.raises((InvalidInput, InvalidFile), match=message):
        Strategy.resolve(
            Choices(rule="fedbuff", local_steps=given, concurrency=2), fleet=fleet, name="x"
        )


def test_steps_are_given_per_class_or_as_one_number():
    fleet = Fleet([1.0, 2.0], counts=[2, 2])
    chosen = Choices(rule="fedbuff", local_steps=[3, 5], concurrency=2)
    assert Strategy.resolve(chosen, fleet=fleet, name="x").rule.local_steps == (3, 3, 5, 5)
    same = Choices(rule="fedbuff", local_steps=[4, 4], concurrency=2)
    assert Strategy.resolve(same, fleet=fleet, name="x").rule.local_steps == 4


def test_the_published_comparison_reads_and_learns():
    folder = DOCS.parent / "experiments" / "local-work"
    experiment = Experiment.read(folder / "local-work.toml")
    assert len(experiment.strategies) == 10
    assert len(experiment.seeds) == 5
    assert {len(strategy.learning_rates) for strategy in experiment.strategies} == {4}
    steps = {strategy.name: strategy.rule.local_steps for strategy in experiment.strategies}
    assert steps.pop("delayed Nesterov, DyLU") == (1, 1, 1, 1, 2, 2, 4, 4)
    assert set(steps.values()) == {4}
    problem = load_extension("characters:problem", "problem", folder)(8, 0)
    weights = problem.initial_weights().numpy()
    _, move, _ = problem.train_client(weights, 0, 0, 1, 20, 0.01)
    after = (weights + move.numpy()).astype(np.float32)
    assert problem.measures(after).loss < problem.measures(weights).loss - 0.5


def four_clients(clients, seed):
    return small_problem()


@pytest.mark.parametrize("alone", [False, True], ids=["whole problem", "own samples only"])
def test_a_deployment_by_epochs_counts_the_steps_of_its_clients(tmp_path, alone):
    """The server's problem may have the samples of all clients, or not."""
    small = small_problem()

    def own_samples(clients, seed, client=0):
        pair = small.train_sets[client or 0]
        return Problem(perceptron(), [pair], small.test_set, batch_size=8)

    given = {
        "clients": 4,
        "updates": 12,
        "learning-rate": RATE,
        "rule": "fedbuff",
        "policy": "never-queue",
        "local-epochs": 2.0,
        "run-folder": str(tmp_path / "run"),
    }
    settings = read_settings(given, tmp_path)
    assert settings.strategy.local_epochs == 2.0
    function = own_samples if alone else four_clients
    with InProcessTransport(function, [lambda: 0.0] * 4) as transport:
        assert serve(transport, function, settings, depth=1)
    histories = {h.strategy: h for h in History.read(tmp_path / "run" / "history.jsonl")}
    clients = json.loads((tmp_path / "run" / "status.json").read_text())["clients"]
    expected = sum(client["used"] * (2, 4, 6, 8)[client["number"]] for client in clients)
    assert histories["deployed"].gradients[-1] == expected
    assert ("predicted" in histories) == (not alone)
    if not alone:
        predicted = histories["predicted"]
        assert 2 * predicted.round[-1] < predicted.gradients[-1] < 8 * predicted.round[-1]

"""Independent gradients together: the same as one by one, up to rounding."""

import numpy as np
import pytest
import torch
from torch import nn

from sojourn.errors import InvalidInput
from sojourn.rules import FedAsync, FedBuff, GeneralizedAsyncSGD
from sojourn.training.problem import gradients as work
from sojourn.training.replay.replay import replay
from tests.training.small import CLASSES, perceptron, samples, small_problem, small_schedule

ROUTING = [0.1, 0.2, 0.3, 0.4]


def distance(first, second):
    return np.linalg.norm(first - second) / np.linalg.norm(second)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(
    "rule",
    [
        GeneralizedAsyncSGD(),
        GeneralizedAsyncSGD(local_steps=3, proximal=0.1),
        FedBuff(local_steps=2),
        FedAsync(local_steps=2, proximal=0.1),
    ],
    ids=repr,
)
def test_after_200_rounds_the_weights_agree(rule, dtype, tolerance):
    problem = small_problem(dtype=dtype)
    schedule = small_schedule(
        concurrency=40, rounds=200, routing=ROUTING, work=float(rule.local_steps)
    )
    runs = [
        replay(schedule, problem, rule, learning_rate=0.05, seed=9, batched=batched)
        for batched in (True, False)
    ]
    assert 0 < distance(runs[0].weights, runs[1].weights) < tolerance
    assert runs[0].provenance["inputs"]["batched"] is True
    assert runs[1].provenance["inputs"]["batched"] is False
    np.testing.assert_allclose(runs[0].train_loss, runs[1].train_loss, rtol=tolerance)


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES)
    )


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.outer = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.outer(x + torch.tanh(self.inner(x)))


class Skipping(nn.Sequential):
    """A sequence by type, not by what it does."""

    def forward(self, x):
        return x + super().forward(x)


def with_a_skip():
    return nn.Sequential(Skipping(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, CLASSES))


class Negated(nn.Sequential):
    def forward(self, x):
        return super().forward(-x)


def with_a_parameter_of_its_own():
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, CLASSES))
    model.unused = nn.Parameter(torch.ones(6, 6))
    return model


def hooked():
    model = nn.Sequential(nn.Linear(6, CLASSES), nn.Tanh())
    model[0].register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    return model


def patched():
    model = nn.Sequential(nn.Linear(6, CLASSES), nn.Tanh())
    model.forward = lambda x: model[0](x).exp()
    return model


def tied():
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, CLASSES))


@pytest.mark.parametrize(
    ("model", "shape", "dense"),
    [
        (perceptron, (6,), True),
        (perceptron, (2, 3), True),
        (lambda: nn.Linear(6, CLASSES, bias=False), (6,), True),
        (
            lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.GELU()), nn.Linear(5, 3)),
            (6,),
            1,
        ),
        (convolutional, (1, 6, 6), False),
        (Residual, (6,), False),
        (with_a_skip, (6,), False),
        (lambda: Negated(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES)), (6,), False),
        (with_a_parameter_of_its_own, (6,), False),
    ],
)
@pytest.mark.parametrize(
    "loss",
    [
        nn.functional.cross_entropy,
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(ignore_index=1),
    ],
    ids=["function", "module", "smoothed", "ignoring"],
)
def test_stacked_gradients_are_those_of_each_task(model, shape, dense, loss):
    problem = small_problem(model=model().double(), dtype=torch.float64, shape=shape, loss=loss)
    gradients = work.stacked_gradients(problem)
    assert isinstance(gradients, work._DenseGradients) == bool(dense)
    weights = [problem.initial_weights() + 0.1 * i for i in range(3)]
    tasks = [(0, 0), (3, 1), (2, 7)]
    losses, together = gradients(torch.stack(weights), *problem.stacked_batches(tasks, 5))
    for i, (client, number) in enumerate(tasks):
        loss_of_one, one = problem.loss_and_gradient(weights[i], client, number, 5)
        assert losses[i] == pytest.approx(loss_of_one, rel=1e-12)
        torch.testing.assert_close(together[i], one, rtol=1e-11, atol=1e-14)


def test_a_linear_layer_on_the_last_of_several_dimensions_is_not_mistaken_for_a_flat_one():
    model = nn.Sequential(nn.Linear(3, 4), nn.Flatten(), nn.Linear(8, CLASSES))
    problem = small_problem(model=model, shape=(2, 3))
    assert isinstance(work.stacked_gradients(problem), work._VectorizedGradients)


def test_models_that_draw_random_numbers_are_run_one_by_one():
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    problem, schedule = small_problem(model=model), small_schedule(rounds=100)
    assert work.stacked_gradients(problem) is None
    options = {"learning_rate": 0.1, "seed": 1}
    rule = GeneralizedAsyncSGD()
    by_choice = replay(schedule, problem, rule, **options)
    plain = replay(schedule, problem, rule, batched=False, **options)
    assert np.array_equal(by_choice.weights, plain.weights)
    with pytest.raises(InvalidInput, match="cannot be computed together"):
        replay(schedule, problem, rule, batched=True, **options)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


def counting_loss(outputs, y):
    """Cross-entropy that looks at a value, which ``vmap`` cannot."""
    return nn.functional.cross_entropy(outputs, y) * (2.0 if int(y.max()) > 9 else 1.0)


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (Branching, nn.functional.cross_entropy),
        (tied, nn.functional.cross_entropy),
        (hooked, nn.functional.cross_entropy),
        (patched, nn.functional.cross_entropy),
        (perceptron, counting_loss),
        (Residual, counting_loss),
    ],
)
def test_what_vmap_cannot_run_is_run_one_by_one(model, loss):
    problem = small_problem(model=model(), loss=loss)
    assert work.stacked_gradients(problem) is None
    history = replay(
        small_schedule(rounds=50), problem, GeneralizedAsyncSGD(), learning_rate=0.1, seed=1
    )
    assert history.provenance["inputs"]["batched"] is False


class Clock:
    """Every run costs ``seconds`` per task of the way that computed it."""

    def __init__(self, monkeypatch, plain, together):
        self.now = 0.0
        monkeypatch.setattr(work.time, "thread_time", lambda: self.now)
        self.seconds = {"alone": plain, "together": together}
        self.tasks = {"alone": 0, "together": 0}
        monkeypatch.setattr(
            work.Workers, "_one_by_one", lambda workers, groups: self.take("alone", groups)
        )
        monkeypatch.setattr(
            work.Workers, "_stacked", lambda workers, groups, copies: self.take("together", groups)
        )

    def take(self, way, groups):
        (tasks,) = (tasks for _, tasks in groups)
        self.now += self.seconds[way] * len(tasks)
        self.tasks[way] += len(tasks)
        return iter([(0.0, None)] * len(tasks))


def groups_of(count):
    """So many tasks, which nobody computes."""
    return [(None, [None] * count)]


@pytest.mark.parametrize(("together", "chosen"), [(0.5, True), (0.84, True), (0.9, False)])
def test_the_faster_way_is_chosen_on_the_first_runs(monkeypatch, together, chosen):
    clock = Clock(monkeypatch, plain=0.001, together=0.001 * together)
    workers = work.Workers(small_problem(), None)
    runs = 0
    while workers.batched is None:
        assert len(list(workers.results(groups_of(8)))) == 8
        runs += 1
    assert workers.batched is chosen
    assert runs == 2 * (work.TRIAL_ROUNDS + 1) + 1
    way = "together" if chosen else "alone"
    before = clock.tasks[way]
    list(workers.results(groups_of(8)))
    assert clock.tasks[way] == before + 8


def test_heavy_tasks_are_not_tried_together(monkeypatch):
    clock = Clock(monkeypatch, plain=2 * work.HEAVY_TASK, together=0.0)
    workers = work.Workers(small_problem(), None)
    for _ in range(2):
        list(workers.results(groups_of(8)))
    assert workers.batched is False
    assert clock.tasks["together"] == 0


def test_the_first_run_may_compile_and_does_not_decide(monkeypatch):
    clock = Clock(monkeypatch, plain=0.0001, together=0.00005)

    def compiling(workers, groups):
        if not clock.tasks["alone"]:
            clock.now += 100 * work.HEAVY_TASK * 8
        return clock.take("alone", groups)

    monkeypatch.setattr(work.Workers, "_one_by_one", compiling)
    workers = work.Workers(small_problem(), None)
    while workers.batched is None:
        list(workers.results(groups_of(8)))
    assert workers.batched is True


def test_short_runs_are_never_stacked(monkeypatch):
    clock = Clock(monkeypatch, plain=1.0, together=0.1)
    workers = work.Workers(small_problem(), True)
    list(workers.results(groups_of(work.SHORTEST_RUN - 1)))
    assert clock.tasks["together"] == 0


def test_a_schedule_of_short_runs_only_is_settled_too(monkeypatch):
    clock = Clock(monkeypatch, plain=1.0, together=0.1)
    workers = work.Workers(small_problem(), None)
    for _ in range(work.LONGEST_TRIAL + 1):
        list(workers.results(groups_of(1)))
    assert workers.batched is False
    assert clock.tasks["together"] == 0


def test_the_choice_does_not_change_what_is_learned():
    problem = small_problem(dtype=torch.float64)
    schedule = small_schedule(concurrency=40, rounds=600)
    rule = GeneralizedAsyncSGD()
    options = {"learning_rate": 0.05, "seed": 9}
    chosen = replay(schedule, problem, rule, **options)
    plain = replay(schedule, problem, rule, batched=False, **options)
    assert distance(chosen.weights, plain.weights) < 1e-12


def test_float_targets_use_the_loss_given():
    generator = torch.Generator().manual_seed(1)
    x, _ = samples(30, generator, dtype=torch.float64)
    y = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    from sojourn.training.problem.problem import Problem

    model = nn.Linear(6, 2).double()
    problem = Problem(model, [(x, y)], (x, y), nn.functional.mse_loss, batch_size=5)
    gradients = work.stacked_gradients(problem)
    weights = problem.initial_weights()
    _, together = gradients(
        weights.expand(2, -1).contiguous(), *problem.stacked_batches([(0, 0), (0, 1)], 1)
    )
    torch.testing.assert_close(together[1], problem.gradient(weights, 0, 1, 1), rtol=1e-12, atol=0)

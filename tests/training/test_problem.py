"""Problems: batches, gradients, local steps, evaluation, and what is refused."""

import copy
import pickle

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from sojourn.errors import InvalidInput
from sojourn.training.data.sets import CropAndFlip
from sojourn.training.problem.batches import BLOCK, Batches
from sojourn.training.problem.problem import Problem
from tests.training.small import CLASSES, perceptron, small_problem


def test_batches_do_not_depend_on_what_was_asked_before():
    fresh = Batches(7, [50, 60].__getitem__, 8, [0, 50])
    walked = Batches(7, [50, 60].__getitem__, 8, [0, 50])
    for number in range(3 * BLOCK):
        walked.indices(1, number)
    for client, number in [(0, 5), (1, 70), (1, 3), (0, 99)]:
        assert fresh.indices(client, number).tolist() == walked.indices(client, number).tolist()
    other_seed = Batches(8, [50, 60].__getitem__, 8, [0, 50])
    assert fresh.indices(0, 0).tolist() != other_seed.indices(0, 0).tolist()
    assert fresh.indices(0, 0).tolist() != fresh.indices(0, 1).tolist()


@pytest.mark.parametrize("size", [8, 9, 15, 16, 500])
def test_a_batch_has_no_sample_twice(size):
    batches = Batches(1, [3, size].__getitem__, 8, [0, 3])
    for number in range(2 * BLOCK):
        chosen = batches.indices(1, number).tolist()
        assert len(set(chosen)) == 8
        assert set(chosen) <= set(range(3, 3 + size))


def test_a_client_with_few_samples_repeats_them():
    chosen = Batches(1, [3].__getitem__, 8).indices(0, 0)
    assert chosen.shape == (8,)
    assert set(chosen.tolist()) <= {0, 1, 2}


@pytest.mark.parametrize("size", [3, 10, 40])
def test_every_sample_is_equally_likely(size):
    batches = Batches(2, [size].__getitem__, 8)
    drawn = np.stack([batches.indices(0, number).numpy() for number in range(4000)])
    for place in (0, 7):
        counts = np.bincount(drawn[:, place], minlength=size)
        assert stats.chisquare(counts).pvalue > 1e-4


def test_the_gradient_is_that_of_the_batch():
    problem = small_problem()
    weights = problem.initial_weights() + 0.1
    model = problem.trained_model(weights)
    x, y = problem.batch(2, 5, seed=1)
    nn.functional.cross_entropy(model(x), y).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.equal(problem.gradient(weights, 2, 5, 1), expected)
    assert torch.equal(problem.gradient(weights.numpy(), 2, 5, 1), expected)


def test_the_model_given_is_not_changed():
    model = perceptron()
    before = copy.deepcopy(model.state_dict())
    problem = small_problem(model=model)
    problem.gradient(problem.initial_weights() + 1, 0, 0, 1)
    problem.evaluate(problem.initial_weights() + 2)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_local_steps_by_hand():
    problem = small_problem(dtype=torch.float64)
    start = problem.initial_weights()
    first = start - 0.1 * problem.gradient(start, 1, 6, 4)
    pulled = problem.gradient(first, 1, 7, 4) + 0.5 * (first - start)
    expected = (first - 0.1 * pulled) - start
    _, moved = problem.loss_and_difference(start, 1, 3, 4, 2, 0.1, proximal=0.5)
    torch.testing.assert_close(moved, expected, rtol=1e-12, atol=0)


def test_evaluation_is_the_mean_over_the_whole_test_set(monkeypatch):
    problem = small_problem(dtype=torch.float64)
    weights = problem.initial_weights()
    x, y = problem.test_set
    outputs = problem.trained_model(weights)(x).detach()
    loss = float(nn.functional.cross_entropy(outputs, y))
    accuracy = float((outputs.argmax(1) == y).double().mean())
    monkeypatch.setattr("sojourn.training.problem.problem.EVALUATION_CHUNK", 7)
    assert problem.evaluate(weights) == pytest.approx((loss, accuracy), rel=1e-12)


def test_regression_has_no_accuracy():
    x, y = torch.randn(20, 2), torch.randn(20, 1)
    problem = Problem(nn.Linear(2, 1), [(x, y)], (x, y), nn.functional.mse_loss)
    loss, accuracy = problem.evaluate(problem.initial_weights())
    assert loss > 0
    assert np.isnan(accuracy)


def test_accuracy_over_sequences_of_labels_is_a_share_of_all_labels():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 2)

        def forward(self, x):
            return self.layer(x.unsqueeze(2)).transpose(1, 2)

    x = torch.tensor([[1.0, 1.0, -1.0, 1.0]] * 3)
    problem = Problem(Tagger(), [(x, (x > 0).long())], (x, (x > 0).long()), batch_size=2)
    always_one = torch.tensor([0.0, 0.0, 0.0, 1.0])
    assert problem.evaluate(always_one)[1] == 0.75


def with_dropout():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, CLASSES))


def test_dropout_depends_on_the_task_alone_and_leaves_torch_as_it_was():
    problem = small_problem(model=with_dropout())
    weights = problem.initial_weights()
    assert problem.uses_dropout
    assert not small_problem().uses_dropout
    state = torch.random.get_rng_state()
    first = problem.gradient(weights, 1, 0, 5)
    other = problem.gradient(weights, 1, 1, 5)
    assert torch.equal(problem.gradient(weights, 1, 0, 5), first)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert problem.evaluate(weights) == problem.evaluate(weights)


def test_augmentation_depends_on_the_task_alone():
    def jitter(x, generator):
        return x + torch.randn(x.shape, generator=generator)

    problem = small_problem(augment=jitter)
    (first, _), (again, _) = problem.batch(2, 0, 5), problem.batch(2, 0, 5)
    assert torch.equal(first, again)
    stacked, labels = problem.stacked_batches([(2, 0), (1, 4)], 5)
    assert torch.equal(stacked[0], first)
    assert torch.equal(labels[1], problem.batch(1, 4, 5)[1])
    plain, _ = small_problem().batch(2, 0, 5)
    assert not torch.equal(plain, first)


def test_augmentation_that_draws_first_changes_a_stack_as_it_changes_each_batch():
    shape = (1, 4, 4)
    model = perceptron(features=16)
    crop = CropAndFlip((0.0,), padding=1)
    problem = small_problem(model=model, shape=shape, augment=crop)
    plainly = small_problem(model=model, shape=shape, augment=lambda x, g: crop(x, g))
    tasks = [(2, 0), (1, 4), (2, 0), (3, 33)]
    for one in (problem, problem, plainly):
        stacked, _ = one.stacked_batches(tasks, 5)
        for x, (client, number) in zip(stacked, tasks, strict=True):
            assert torch.equal(x, plainly.batch(client, number, 5)[0])
    assert not torch.equal(stacked[0], small_problem(shape=shape, model=model).batch(2, 0, 5)[0])


def test_parameters_that_need_no_gradient_stay():
    model = perceptron()
    model[1].weight.requires_grad_(False)
    problem = small_problem(model=model)
    assert problem.dimension == sum(p.numel() for p in model.parameters()) - 48
    moved = problem.trained_model(problem.initial_weights() + 1)
    assert torch.equal(moved[1].weight, model[1].weight)


def test_a_problem_survives_pickling_and_copying():
    problem = small_problem()
    weights = problem.initial_weights()
    problem.evaluate(weights + 3)
    for other in (pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):
        assert torch.equal(other.initial_weights(), weights)
        assert torch.equal(other.gradient(weights, 3, 2, 1), problem.gradient(weights, 3, 2, 1))
        assert not torch.equal(
            other.gradient(weights + 1, 3, 2, 1), other.gradient(weights, 3, 2, 1)
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"model": nn.Flatten()}, "must have trainable parameters"),
        ({"model": perceptron().half()}, "all float32 or all float64"),
        ({"model": nn.Linear(7, 3)}, "cannot take a batch of x"),
        ({"loss": lambda outputs, y: outputs}, "one number per batch"),
    ],
)
def test_what_cannot_be_trained_is_refused(change, words):
    with pytest.raises(InvalidInput, match=words):
        small_problem(**change)


def test_wrong_data_is_refused():
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    for sets, words in [
        ([], "train_sets is empty"),
        ([(x, y), (x[:0], y[:0])], "the train set of client 1 is empty"),
        ([(x, y[:3])], "4 inputs but 3 labels"),
        ([x], "must be a pair"),
        ([(x.numpy(), y.numpy())], "of tensors"),
    ]:
        with pytest.raises(InvalidInput, match=words):
            Problem(perceptron(), sets, (x, y))
    with pytest.raises(InvalidInput, match="seed must be a whole number"):
        small_problem().gradient(small_problem().initial_weights(), 0, 0, -1)


def test_a_hook_on_the_model_is_called():
    model, calls = perceptron(), []
    model[1].register_forward_hook(lambda module, inputs, outputs: calls.append(1))
    problem = small_problem(model=model)
    calls.clear()
    problem.gradient(problem.initial_weights(), 0, 0, 1)
    assert calls == [1]
    assert torch.equal(
        problem.gradient(problem.initial_weights(), 0, 0, 1),
        small_problem().gradient(problem.initial_weights(), 0, 0, 1),
    )


def test_a_parameter_that_is_not_used_has_no_gradient():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(6, CLASSES)
            self.idle = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return self.used(x)

    problem = small_problem(model=Idle())
    gradient = problem.gradient(problem.initial_weights(), 0, 0, 1)
    assert problem.dimension == 23
    assert (gradient == 0).sum() == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_samples_that_no_learning_rate_helps_are_refused(value):
    x, y = torch.ones(6, 4), torch.zeros(6, dtype=torch.long)
    wrong = x.clone()
    wrong[2, 1] = value
    model = nn.Linear(4, 2)
    with pytest.raises(InvalidInput, match=r"client 1 has values in x.* the first in sample 2"):
        Problem(model, [(x, y), (wrong, y)], (x, y), batch_size=2)

    class Imputing(nn.Linear):
        def forward(self, x):
            return super().forward(torch.nan_to_num(x, posinf=0.0))

    Problem(Imputing(4, 2), [(x, y), (wrong, y)], (x, y), batch_size=2)
    with pytest.raises(InvalidInput, match="client 0 is inf before the first step"):
        Problem(
            model, [(x, y)], (x, y), batch_size=2, loss=lambda a, b: (a.sum() - a.sum() + 1.0) / 0.0
        )

"""What is right and wrong for labels of every shape, and metrics of one's own in a history."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import sojourn as sj
from sojourn.errors import InvalidInput
from sojourn.rules import AsyncSGD
from sojourn.runs.history import History
from sojourn.runs.measure import LOSS
from sojourn.training import Problem, metrics

from .small import perceptron, samples, small_problem, small_schedule


class Scores(nn.Module):
    """Outputs that are given, whatever the input; one weight, so that there is something to train."""

    def __init__(self, shape, wanted):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(()))
        self.register_buffer("wanted", wanted)
        self.shape = shape

    def forward(self, x):
        return self.wanted[x[:, 0].long()] + self.table


def problem(outputs, y, loss):
    """Sample k has the outputs ``outputs[k]``."""
    x = torch.arange(len(y), dtype=torch.float32)[:, None]
    return Problem(Scores(outputs.shape, outputs), [(x, y)], (x, y), loss, batch_size=len(y))


def by_place(outputs, y):
    return functional.cross_entropy(outputs.flatten(0, -2), y.flatten())


@pytest.mark.parametrize("time", [4, 5])  # 5: as many places as classes
@pytest.mark.parametrize("classes_last", [True, False])
def test_sequences_are_judged_place_by_place(time, classes_last):
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(5, (7, time), generator=generator)
    scores = torch.randn(7, time, 5, generator=generator)
    scores[:5].scatter_add_(2, y[:5, :, None], torch.full((5, time, 1), 9.0))  # mostly right
    right = float((scores.argmax(-1) == y).double().mean())
    outputs = scores if classes_last else scores.transpose(1, 2)
    made = problem(outputs, y, by_place if classes_last else functional.cross_entropy)
    assert made.evaluate(made.initial_weights())[1] == pytest.approx(right, abs=1e-12)


def test_padding_is_not_counted():
    scores = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(2))
    y = scores.argmax(-1)
    y[:, 2] = -100
    made = problem(scores, y, by_place)
    assert made.evaluate(made.initial_weights())[1] == 1.0


@pytest.mark.parametrize("shape", [(8,), (8, 1), (8, 3)])
@pytest.mark.parametrize("logits", [True, False])
def test_yes_and_no(shape, logits):
    generator = torch.Generator().manual_seed(3)
    y = torch.randint(2, shape, generator=generator).float()
    scores = torch.randn(shape, generator=generator)
    outputs = scores if logits else torch.sigmoid(scores)
    loss = (
        functional.binary_cross_entropy_with_logits if logits else functional.binary_cross_entropy
    )
    made = problem(outputs, y, loss)
    right = float(((scores > 0) == (y > 0.5)).double().mean())
    assert made.evaluate(made.initial_weights())[1] == pytest.approx(right, abs=1e-12)


def test_one_output_for_whole_labels():
    y = torch.tensor([0, 1, 1, 0])
    scores = torch.tensor([[-1.0], [2.0], [-3.0], [1.0]])

    def loss(outputs, y):
        return functional.binary_cross_entropy_with_logits(outputs[:, 0], y.float())

    made = problem(scores, y, loss)
    assert made.evaluate(made.initial_weights())[1] == 0.5


def test_one_hot_classes():
    y = functional.one_hot(torch.tensor([0, 1, 2, 2])).float()
    scores = torch.tensor([[1.0, 2, 3], [1, 3, 2], [3, 1, 2], [-3, -2, -1]])
    made = problem(scores, y, functional.cross_entropy)
    assert made.evaluate(made.initial_weights())[1] == 0.5


@pytest.mark.parametrize("y", [torch.zeros(6, 1), torch.linspace(0, 1, 6)[:, None].round()])
def test_a_squared_error_has_no_accuracy_even_of_zeros_and_ones(y):
    made = problem(torch.rand(6, 1), y, functional.mse_loss)
    assert np.isnan(made.evaluate(made.initial_weights())[1])
    assert made.measure is LOSS


def test_a_test_set_that_does_not_fit_is_said_at_once():
    x, y = torch.randn(8, 6), torch.zeros(8, dtype=torch.long)
    with pytest.raises(InvalidInput, match="cannot take samples of the test set"):
        Problem(perceptron(), [(x, y)], (torch.randn(8, 5), y))


def test_parameter_hooks_are_refused_by_name():
    model = perceptron()
    model[1].weight.register_hook(lambda gradient: 0 * gradient)
    with pytest.raises(InvalidInput, match=r"'1\.weight' has a hook"):
        small_problem(model=model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": {"loss": metrics.auc}}, "cannot be called 'loss'"),
        ({"metrics": {"a b": metrics.auc}}, "cannot be called 'a b'"),
        ({"metrics": {"auc": 3}}, "must be a function"),
        ({"primary": "auc"}, "one of accuracy, loss"),
    ],
)
def test_metrics_that_cannot_be(options, message):
    with pytest.raises(InvalidInput, match=message):
        small_problem(**options)


def worst(outputs, y):
    return float(functional.cross_entropy(outputs, y, reduction="none").max())


def test_metrics_are_columns_of_the_history_and_decide(tmp_path):
    options = {"primary": "worst", "higher_is_better": False}
    made = small_problem(metrics={"worst": worst, "one": lambda o, y: len(y)}, **options)
    history = sj.replay(small_schedule(), made, AsyncSGD(), learning_rate=0.1, seed=1)
    assert history.metrics["one"].tolist() == [40.0] * history.rows
    assert history.measure.name == "worst"
    assert history.final == history.metrics["worst"][-1]
    target = float(history.metrics["worst"].min())
    assert history.time_to(target) == history.time[history.metrics["worst"].argmin()]
    History.write(tmp_path / "h.jsonl", [history])
    (again,) = History.read(tmp_path / "h.jsonl")
    assert again.metrics["worst"].tolist() == history.metrics["worst"].tolist()
    assert again.measure == history.measure
    assert again.to_pandas()["worst"].tolist() == history.metrics["worst"].tolist()
    assert "worst" in repr(again)


def test_metrics_see_the_whole_test_set_at_once():
    generator = torch.Generator().manual_seed(4)
    test = samples(2500, generator)
    seen = []

    def size(outputs, y):
        seen.append((len(outputs), len(y)))
        return 0.0

    made = Problem(perceptron(), [samples(20, generator)], test, metrics={"size": size})
    made.measures(made.initial_weights())
    assert seen[-1] == (2500, 2500)


def test_a_checkpoint_keeps_metrics(tmp_path):
    made = small_problem(metrics={"worst": worst}, primary="worst", higher_is_better=False)
    options = {"learning_rate": 0.1, "seed": 1, "refine": True, "batched": False}
    schedule = small_schedule()
    History.write(tmp_path / "whole", [sj.replay(schedule, made, AsyncSGD(), **options)])
    for _ in range(2):
        kept = sj.replay(schedule, made, AsyncSGD(), checkpoint=tmp_path / "c", **options)
        History.write(tmp_path / "kept", [kept])
        assert (tmp_path / "kept").read_bytes() == (tmp_path / "whole").read_bytes()


def test_client_weights_scale_what_a_client_sends():
    schedule = small_schedule(rounds=1, concurrency=1)
    client = int(schedule.client[0])
    made = small_problem()
    options = {"learning_rate": 0.1, "seed": 1}
    plain, sized = (
        sj.replay(schedule, made, AsyncSGD(), client_weights=weights, **options).weights
        for weights in (None, made.train_sizes)
    )
    first = made.initial_weights().numpy()
    scale = made.train_sizes[client] / np.mean(made.train_sizes)
    np.testing.assert_allclose(sized - first, scale * (plain - first), rtol=1e-4, atol=1e-7)
    with pytest.raises(InvalidInput, match="client_weights must be 4 positive numbers"):
        sj.replay(schedule, made, AsyncSGD(), client_weights=[1, 2], **options)

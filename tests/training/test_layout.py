"""Images laid out channels last: the same gradients up to rounding, chosen by measurement."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sojourn._support.configuration import Table
from sojourn.training.experiment import preflight as before
from sojourn.training.experiment.engines import LocalEngine
from sojourn.training.experiment.experiment import Experiment, experiment_from_table
from sojourn.training.experiment.preflight import preflight
from sojourn.training.experiment.run import run_experiment
from sojourn.training.problem import gradients
from sojourn.training.problem.gradients import channels_last_pays
from sojourn.training.problem.problem import Problem
from sojourn.training.replay.checkpoint import problem_digest

MODULE = """
import torch
from torch import nn
from sojourn.training import Problem

def build(clients, seed):
    torch.manual_seed(seed)
    x, y = torch.randn(clients, 12, 2, 8, 8), torch.randint(3, (clients, 12))
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    return Problem(model, list(zip(x, y)), (x[0], y[0]), batch_size=4)
"""


CONVOLUTIONS = {
    "plain": lambda: (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)),
    "grey": lambda: (nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)),
    "in a sequence": lambda: (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), nn.Conv2d(8, 8, 3)),
    "groups, steps and gaps": lambda: (
        nn.Conv2d(3, 8, 3, padding="same", bias=False),
        nn.Conv2d(8, 8, 3, stride=2, padding=3, dilation=2, groups=4),
        nn.Conv2d(8, 8, 2, padding=1, padding_mode="reflect"),
        nn.Upsample(8),
    ),
}


def images(kind: str = "plain") -> Problem:
    generator = torch.Generator().manual_seed(3)
    layers = CONVOLUTIONS[kind]()
    x = torch.randn(40, 1 if kind == "grey" else 3, 12, 12, generator=generator)
    y = torch.arange(40) % 4
    model = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 4))
    return Problem(model, [(x[:20], y[:20]), (x[20:], y[20:])], (x, y), batch_size=16)


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_gradients_and_evaluations_are_the_same_up_to_rounding(kind: str) -> None:
    problem = images(kind)
    weights = problem.initial_weights().numpy()
    usual = problem.loss_and_array(weights, 1, 0, seed=5), problem.evaluate(weights)
    last = problem.variant(channels_last=True)
    other = last.loss_and_array(weights, 1, 0, seed=5), last.evaluate(weights)
    assert other[0][0] == pytest.approx(usual[0][0], rel=1e-5)
    np.testing.assert_allclose(other[0][1], usual[0][1], rtol=1e-4, atol=1e-6)
    assert other[1] == pytest.approx(usual[1], rel=1e-5)


class Looking(nn.Module):
    """Notes how the images that pass are laid out."""

    def __init__(self) -> None:
        super().__init__()
        self.last: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last.append(x.is_contiguous(memory_format=torch.channels_last))
        return x


def test_convolutions_of_grey_images_are_laid_out_too() -> None:
    """One channel has the same strides in either layout: the weights of the next layer tell them apart."""
    x, y = torch.randn(8, 1, 6, 6), torch.arange(8) % 2
    layers = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), Looking(), nn.Flatten(), nn.Linear(16, 2)
    for last in (False, True):
        problem = Problem(
            nn.Sequential(*layers), [(x, y)], (x, y), batch_size=4, channels_last=last
        )
        looking = next(part for part in problem.model.modules() if isinstance(part, Looking))
        looking.last.clear()
        problem.loss_and_array(problem.initial_weights().numpy(), 0, 0, seed=0)
        problem.evaluate(problem.initial_weights())
        assert looking.last == [last] * 2


@pytest.mark.parametrize(("slower", "pays"), [(True, False), (False, True)])
def test_the_faster_layout_is_chosen(
    monkeypatch: pytest.MonkeyPatch, slower: bool, pays: bool
) -> None:
    problem, clock = images(), [0.0]
    real = Problem.loss_and_array

    def timed(problem: Problem, *args: object, **more: object) -> object:
        clock[0] += 2.0 if problem.channels_last is slower else 1.0
        return real(problem, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Problem, "loss_and_array", timed)
    monkeypatch.setattr(gradients.time, "thread_time", lambda: clock[0])
    assert channels_last_pays(problem) is pays


def test_models_without_convolutions_of_images_are_not_tried() -> None:
    x, y = torch.randn(8, 4), torch.arange(8) % 2
    assert not channels_last_pays(Problem(nn.Linear(4, 2), [(x, y)], (x, y)))


def test_a_layout_is_part_of_what_a_checkpoint_is_for() -> None:
    problem = images()
    assert problem_digest(problem) != problem_digest(problem.variant(channels_last=True))


def experiment(folder: Path, **more: object) -> Experiment:
    (folder / "convolution_of_a_test.py").write_text(MODULE)
    values = {
        "fleet": "three-clusters",
        "problem": "convolution_of_a_test:build",
        "rounds": 6,
        "seeds": 1,
        "learning-rate": 0.01,
        "strategies": ["uniform"],
        **more,
    }
    return experiment_from_table(Table(values, "test"), folder)


def test_the_choice_is_made_once_and_kept_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before, "channels_last_pays", lambda problem: True)
    asked = experiment(tmp_path)
    run_experiment(asked, tmp_path / "out", LocalEngine())
    assert Experiment.read(tmp_path / "out" / "experiment.toml").channels_last is True
    monkeypatch.setattr(before, "channels_last_pays", lambda problem: False)
    more = experiment(tmp_path, seeds=2)
    run_experiment(more, tmp_path / "out", LocalEngine(), resume=True)
    assert Experiment.read(tmp_path / "out" / "experiment.toml").channels_last is True
    assert preflight(asked).channels_last is False
    assert preflight(experiment(tmp_path, **{"channels-last": True})).channels_last is True

"""The network of the full-size files computes what the built-in network does."""

import tomllib
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from sojourn._support.extensions import load_extension
from sojourn.training.experiment.models import grayscale_network, initialize

PAPER = Path(__file__).parents[2] / "experiments" / "paper"
FULL_SIZE = PAPER / "full-size"


@pytest.fixture(scope="module")
def fourier():
    return load_extension("fourier:FourierNetwork", "problem", FULL_SIZE)


@pytest.mark.parametrize(
    ("file", "kept"),
    [
        ("kmnist-three-clusters", "kmnist-three-clusters-3000-units"),
        ("fashion-mnist-dirichlet", "fashion-mnist-dirichlet-3000-rounds"),
    ],
)
def test_the_files_are_those_of_the_kept_runs_but_for_the_way_it_is_computed(file, kept):
    asked = tomllib.loads((FULL_SIZE / f"{file}.toml").read_text())
    ran = tomllib.loads((PAPER / "results" / kept / "experiment.toml").read_text())
    problem = asked.pop("problem")
    cell = load_extension("fourier:CELL", "problem", FULL_SIZE)
    assert problem == f"fourier:{ran['data'].replace('-', '_')}"
    assert cell == {key: ran[key] for key in cell}
    for key in ("fleet", "time", "rounds", "evaluate-every", "targets"):
        assert asked.get(key) == ran.get(key)
    routings = {strategy["name"]: strategy["routing"] for strategy in ran["strategy"]}
    assert routings.items() <= {s["name"]: s["routing"] for s in asked["strategy"]}.items()
    assert {(s["concurrency"], s["learning-rate"]) for s in ran["strategy"]} == {
        (asked["concurrency"], asked["learning-rate"])
    }


def loss_and_gradient(model, images, labels):
    loss = functional.cross_entropy(model(images), labels)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return loss.detach(), torch.cat([gradient.flatten() for gradient in gradients])


def network_and_batch(size, seed):
    generator = torch.Generator().manual_seed(seed)
    network = grayscale_network(10)
    initialize(network, generator)
    images = torch.rand(size, 1, 28, 28, generator=generator)
    images[:, :, :6, :6] = 0  # As in the corners of the data sets: values that are exactly alike.
    return network, images, torch.randint(10, (size,), generator=generator)


@pytest.mark.parametrize(("size", "seed"), [(1, 1), (130, 2)])
def test_in_double_precision_loss_and_gradient_are_those_of_the_built_in_network(
    fourier, size, seed
):
    network, images, labels = network_and_batch(size, seed)
    network, images = network.double(), images.double()
    loss, gradient = loss_and_gradient(network, images, labels)
    found, found_gradient = loss_and_gradient(fourier(network), images, labels)
    assert float(abs(found - loss) / loss) < 1e-13
    assert float((found_gradient - gradient).norm() / gradient.norm()) < 1e-12


def test_in_single_precision_it_is_as_exact_as_the_built_in_network(fourier):
    network, images, labels = network_and_batch(512, 3)
    double = grayscale_network(10).double()
    double.load_state_dict(network.state_dict())
    exact = loss_and_gradient(double, images.double(), labels)

    def error(model):
        loss, gradient = loss_and_gradient(model, images, labels)
        off = (gradient.double() - exact[1]).norm() / exact[1].norm()
        return float(abs(loss.double() - exact[0]) / exact[0]), float(off)

    loss, gradient = error(fourier(network))
    assert loss < 1e-6
    assert gradient < max(1e-6, error(network)[1])

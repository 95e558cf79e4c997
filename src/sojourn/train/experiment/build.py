"""The learning problem of one seed: the same data, partition, batches and first weights for all."""

import inspect
import math
import random
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

from sojourn.errors import InvalidInput
from sojourn.extensions import load_extension
from sojourn.resources import check_memory_for
from sojourn.train.data.partition import Partition, make_partition
from sojourn.train.data.sets import CropAndFlip, Dataset, load_dataset
from sojourn.train.experiment.experiment import Experiment
from sojourn.train.naming import split_parameter
from sojourn.train.replay.batches import check_seed
from sojourn.train.replay.checkpoint import digest
from sojourn.train.replay.problem import Problem
from sojourn.types import FloatArray

MODELS = ("mlp", "linear", "cnn")
SMALL_MODELS = ("mlp", "linear")
GROUPS = 8
COPIES = 4
"""Vectors as long as the model that any run needs: weights, a task's, a gradient, one to spare."""


def build_model(
    text: str, *, shape: tuple[int, ...], classes: int, generator: torch.Generator
) -> nn.Module:
    """The model called ``text`` for images of ``shape``, with weights drawn from ``generator``.

    ``mlp`` (one hidden layer; ``mlp(64)`` sets its width), ``linear``, or ``cnn``, the paper's
    network for this shape of image (``cnn(4)`` sets the groups of its normalisation for CIFAR).
    All return logits; the paper's softmax belongs to the cross-entropy.

    >>> model = build_model(
    ...     "mlp", shape=(1, 8, 8), classes=10, generator=torch.Generator().manual_seed(1)
    ... )
    >>> sum(parameter.numel() for parameter in model.parameters())
    2410
    """
    name, parameter = parse_model(text)
    inputs = math.prod(shape)
    if name == "mlp" and parameter is not None:
        weights = float(parameter) * (inputs + classes)
        check_memory_for(
            f"model '{text}', with {weights:,.0f} weights in float32, and its gradient",
            COPIES * 4.0 * weights,
            "Choose a narrower one.",
        )
    with torch.device("meta"):
        if name == "linear":
            model = nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))
        elif name == "mlp":
            model = perceptron(inputs, parameter or (32 if inputs <= 64 else 64), classes)
        elif shape == (1, 28, 28):
            model = grayscale_network(classes)
        elif shape == (3, 32, 32):
            model = colour_network(classes, groups=parameter or GROUPS)
        else:
            raise InvalidInput(
                f"the model cnn is for images of 1 x 28 x 28 or 3 x 32 x 32; these are "
                f"{' x '.join(map(str, shape))}. Use mlp or linear."
            )
    model.to_empty(device="cpu")
    initialize(model, generator)
    return model


def parse_model(text: str) -> tuple[str, int | None]:
    """The name of a built-in model and its parameter, or ``InvalidInput``.

    >>> parse_model("mlp(128)"), parse_model("linear")
    (('mlp', 128), ('linear', None))
    """
    name, given = split_parameter("model", text, MODELS)
    if given is None:
        return name, None
    if name == "linear":
        raise InvalidInput(f"model '{text}': linear takes no parameter")
    if not given.isdecimal() or len(given) > 18 or int(given) < 1:
        raise InvalidInput(f"model '{text}': '{given}' is not a whole number of at least 1")
    parameter = int(given)
    if name == "cnn" and 32 % parameter:
        raise InvalidInput(
            f"model '{text}': the groups must divide 32 channels: 1, 2, 4, 8, 16, 32"
        )
    return name, parameter


def perceptron(inputs: int, hidden: int, classes: int) -> nn.Sequential:
    """One hidden layer with ReLU."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def grayscale_network(classes: int) -> nn.Sequential:
    """The paper's network for Fashion-MNIST and KMNIST (appendix, "Neural Networks Architectures").

    Two 7x7 convolutions without padding, 20 and 40 channels, each followed by ReLU; one 2x2 max
    pool after the second; one linear layer from 40 x 8 x 8.
    """
    return nn.Sequential(
        nn.Conv2d(1, 20, 7),
        nn.ReLU(),
        nn.Conv2d(20, 40, 7),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(40 * 8 * 8, classes),
    )


def colour_network(classes: int, *, groups: int = GROUPS) -> nn.Sequential:
    """The paper's network for CIFAR-10 and CIFAR-100 (appendix, "Neural Networks Architectures").

    Three blocks of two 3x3 convolutions (padding 1) of 32, 64 and 128 channels, each followed by
    ReLU and group normalisation, then 2x2 max pool and dropout 0.25; linear layers of 128 and
    ``classes`` neurons with dropout 0.25 between them.
    """
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        for _ in range(2):
            layers += [
                nn.Conv2d(channels, width, 3, padding=1),
                nn.ReLU(),
                nn.GroupNorm(groups, width),
            ]
            channels = width
        layers += [nn.MaxPool2d(2), nn.Dropout(0.25)]
    layers += [
        nn.Flatten(),
        nn.Linear(128 * 4 * 4, 128),
        nn.Dropout(0.25),
        nn.Linear(128, classes),
    ]
    return nn.Sequential(*layers)


def initialize(model: nn.Module, generator: torch.Generator) -> None:
    r"""Draw every weight anew: what PyTorch does by default, from an explicit generator.

    Linear and convolutional weights and biases are uniform on :math:`\pm 1/\sqrt{\text{fan-in}}`;
    normalisations begin as the identity.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(module.weight[0].numel())
            nn.init.uniform_(module.weight, -bound, bound, generator=generator)
            if module.bias is not None:
                nn.init.uniform_(module.bias, -bound, bound, generator=generator)
        elif isinstance(module, nn.GroupNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


_PARTITION, _WEIGHTS = 0, 1
AUGMENTED = ("cifar-10", "cifar-100")

dataset = lru_cache(maxsize=1)(load_dataset)
"""`load_dataset`, keeping the last data set for the next seed."""


class _Last(threading.local):
    """The problem that this thread built last: the strategies of one seed share it."""

    key: tuple[object, ...] | None = None
    problem: Problem | None = None


_last = _Last()


def build_problem(experiment: Experiment, seed: int) -> Problem:
    """What every strategy of an experiment learns under ``seed``.

    The partition and the first weights are functions of the seed alone, from streams of their own.
    """
    check_seed(seed)
    key = (
        *(experiment.data, experiment.data_dir, experiment.partition),
        tuple(_service_rates(experiment).tolist()),
        *(experiment.model, experiment.batch_size, experiment.problem, experiment.folder, seed),
        tuple(experiment.extensions.codes().items()),
    )
    if _last.key != key:
        _last.key = _last.problem = None
        _last.problem, _last.key = _built(experiment, seed), key
    assert _last.problem is not None
    return _last.problem


def _built(experiment: Experiment, seed: int) -> Problem:
    if experiment.problem is not None:
        return _users_problem(experiment, experiment.problem, seed)
    data = dataset(experiment.data, experiment.data_dir)
    images, labels = data.train
    held = [torch.from_numpy(indices) for indices in partition_of(experiment, data, seed).clients]
    generator = torch.Generator().manual_seed(_stream(seed, _WEIGHTS))
    model = build_model(
        experiment.model, shape=data.shape, classes=data.classes, generator=generator
    )
    return Problem(
        model,
        [(images[indices], labels[indices]) for indices in held],
        data.test,
        batch_size=experiment.batch_size,
        augment=CropAndFlip(data.black) if data.name in AUGMENTED else None,
    )


def partition_of(experiment: Experiment, data: Dataset, seed: int) -> Partition:
    """Who holds what under ``seed``."""
    generator = np.random.default_rng(_stream(seed, _PARTITION))
    return make_partition(
        experiment.partition,
        data.train_labels,
        experiment.fleet.size,
        generator,
        service_rates=_service_rates(experiment),
    )


def _service_rates(experiment: Experiment) -> FloatArray:
    """Of every client, which the partition may go by."""
    return experiment.fleet.expand(experiment.fleet.service_rates)


def partition_notes(experiment: Experiment) -> tuple[str, ...]:
    """What is worth saying about the partitions of the final seeds."""
    if experiment.problem is not None:
        return ()
    data = dataset(experiment.data, experiment.data_dir)
    notes: dict[str, list[int]] = {}
    for seed in experiment.seeds:
        for note in partition_of(experiment, data, seed).notes:
            notes.setdefault(note, []).append(seed)
    everyone = list(experiment.seeds)
    return tuple(
        note if seeds == everyone else f"seed {', '.join(map(str, seeds))}: {note}"
        for note, seeds in notes.items()
    )


def _stream(seed: int, purpose: int) -> int:
    """A seed for one purpose, unrelated to those for batches and schedules."""
    sequence = np.random.SeedSequence(seed, spawn_key=(0x50524F42, purpose))
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def _users_problem(experiment: Experiment, text: str, seed: int) -> Problem:
    """What ``package.module:function`` returns for ``(clients, seed)``."""
    clients = experiment.fleet.size
    function = load_extension(text, "problem", experiment.folder)
    if not callable(function):
        raise InvalidInput(f"problem '{text}': it must be a function of (clients, seed)")
    try:
        inspect.signature(function).bind(clients, seed)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"problem '{text}': it must be a function of two arguments, the number of clients and a "
            f"seed ({error})"
        ) from error
    problem = _seeded(function, clients, seed)
    if not isinstance(problem, Problem):
        raise InvalidInput(
            f"problem '{text}': the function must return a sojourn.train.Problem; it returned a "
            f"{type(problem).__name__}"
        )
    if problem.clients != clients:
        raise InvalidInput(
            f"problem '{text}': it has data for {problem.clients} clients; the fleet has {clients}"
        )
    again = _seeded(function, clients, seed)
    for what, one, other in zip(_PARTS, _digests(problem), _digests(again), strict=True):
        if one != other:
            raise InvalidInput(
                f"problem '{text}': called twice with seed {seed} it gives different {what}, so "
                "strategies could not be compared. PyTorch's, NumPy's and Python's own generators "
                "are seeded before the call: let others, such as numpy.random.default_rng(seed) or "
                "torch.Generator().manual_seed(seed), start from the seed too."
            )
    return problem


_PARTS = ("first weights", "training samples", "test samples")


def _digests(problem: Problem) -> tuple[str, str, str]:
    held = [part for samples in problem.train_sets for part in samples]
    return digest(problem.initial_weights()), digest(*held), digest(*problem.test_set)


def _seeded(function: Callable[[int, int], Any], clients: int, seed: int) -> Any:
    """What the user's function returns, all generators that it may use without asking seeded.

    They are put back afterwards: what is drawn elsewhere does not depend on it, nor it on that.
    """
    state, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    start = _stream(seed, _WEIGHTS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(start)
        random.seed(start)
        np.random.set_state(np.random.RandomState(start % 2**32).get_state())  # noqa: NPY002
        try:
            return function(clients, seed)
        finally:
            random.setstate(state)
            np.random.set_state(legacy)  # noqa: NPY002

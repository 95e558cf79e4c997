"""The built-in models: the paper's two convolutional networks, a perceptron, and a linear model; weights to load."""

import math
import os

import torch
from torch import Tensor, nn

from sojourn._support.arrays import read_tensors
from sojourn._support.extensions import split_parameter
from sojourn._support.memory import check_memory_for
from sojourn.errors import InvalidInput

MODELS = ("mlp", "linear", "cnn")
SMALL_MODELS = ("mlp", "linear")
GROUPS = 8
COPIES = 4
"""Vectors as long as the model that any run needs: weights, a task's, a gradient, one to spare."""


def build_model(
    text: str,
    *,
    shape: tuple[int, ...],
    classes: int,
    generator: torch.Generator,
    averaged: int = 1,
) -> nn.Module:
    """The model called ``text`` for images of ``shape``, with weights drawn from ``generator``.

    ``mlp`` (one hidden layer; ``mlp(64)`` sets its width), ``linear``, or ``cnn``, the paper's
    network for this shape of image (``cnn(4)`` sets the groups of its normalisation for CIFAR).
    All return logits; the paper's softmax belongs to the cross-entropy. Where ``averaged`` pixels in a
    row have become one, at the length of the image, the first layer begins as small as that for whole
    images: what it makes of an image, and how fast it learns, is then what it would be for a whole one
    that shows no more.

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
    if averaged > 1:
        first = next(layer for layer in model if isinstance(layer, nn.Linear))
        with torch.no_grad():
            for tensor in first.parameters():
                tensor.div_(averaged)
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


def load_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The ``state_dict`` in a file: ``model.load_state_dict(load_weights(path))``.

    The file is in the safetensors format: ``safetensors.torch.load_file`` reads it as well.
    """
    return {name: torch.from_numpy(array) for name, array in read_tensors(path).items()}

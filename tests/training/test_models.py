"""The built-in models: the paper's sizes, and weights from a generator alone."""

import pytest
import torch
from torch import nn

from sojourn.errors import InvalidInput, UnknownName
from sojourn.training.experiment.models import build_model, initialize


def built(text, shape=(1, 28, 28), classes=10, seed=1, averaged=1):
    generator = torch.Generator().manual_seed(seed)
    return build_model(text, shape=shape, classes=classes, generator=generator, averaged=averaged)


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_papers_grayscale_network():
    model = built("cnn")
    assert size(model) == (49 * 20 + 20) + (49 * 20 * 40 + 40) + (40 * 8 * 8 * 10 + 10)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("classes", [10, 100])
def test_the_papers_colour_network(classes):
    model = built("cnn", (3, 32, 32), classes)
    convolutions, normalisations, channels = 0, 0, 3
    for width in (32, 32, 64, 64, 128, 128):
        convolutions += 9 * channels * width + width
        normalisations += 2 * width
        channels = width
    dense = 128 * 4 * 4 * 128 + 128 + 128 * classes + classes
    assert size(model) == convolutions + normalisations + dense
    kinds = [type(layer) for layer in model]
    assert kinds.count(nn.Dropout) == 4
    assert {layer.p for layer in model if isinstance(layer, nn.Dropout)} == {0.25}
    assert {layer.num_groups for layer in model if isinstance(layer, nn.GroupNorm)} == {8}
    block = [nn.Conv2d, nn.ReLU, nn.GroupNorm]
    assert kinds[:8] == [*block, *block, nn.MaxPool2d, nn.Dropout]
    assert model.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, classes)


def test_parameters_of_models():
    assert size(built("mlp", (1, 8, 8))) == 64 * 32 + 32 + 32 * 10 + 10
    assert size(built("mlp(128)")) == 784 * 128 + 128 + 128 * 10 + 10
    assert size(built("linear")) == 7850
    groups = [m.num_groups for m in built("cnn(4)", (3, 32, 32)) if isinstance(m, nn.GroupNorm)]
    assert groups == [4] * 6


@pytest.mark.parametrize("text", ["mlp", "linear", "cnn"])
def test_weights_come_from_the_generator_and_from_nothing_else(text):
    before = torch.get_rng_state()
    first, second, other = built(text), built(text), built(text, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_initialisation_has_the_law_of_pytorchs_default():
    layer = nn.Linear(100, 2000)
    default = (layer.weight.abs().max().item(), layer.weight.std().item())
    initialize(layer, torch.Generator().manual_seed(5))
    assert layer.weight.abs().max().item() == pytest.approx(default[0], rel=1e-3)
    assert layer.weight.std().item() == pytest.approx(default[1], rel=1e-2)
    assert layer.bias.abs().max().item() == pytest.approx(0.1, rel=1e-2)


def test_models_that_cannot_be():
    with pytest.raises(UnknownName, match="did you mean 'linear'"):
        built("liner")
    with pytest.raises(InvalidInput, match=r"these are 1 x 8 x 8. Use mlp or linear"):
        built("cnn", (1, 8, 8))
    with pytest.raises(InvalidInput, match="not a whole number"):
        built("mlp(0)")
    with pytest.raises(InvalidInput, match="must divide 32"):
        built("cnn(5)")
    with pytest.raises(InvalidInput, match="takes no parameter"):
        built("linear(3)")


@pytest.mark.parametrize("text", ["mlp(16)", "linear"])
def test_averaged_images_are_learned_as_whole_ones_that_show_no_more(text):
    """One step on images of single-coloured blocks, whole and averaged: the same outputs."""
    blocks, labels = (
        torch.randn(6, 2, 4, 4, generator=torch.Generator().manual_seed(3)),
        torch.arange(6) % 3,
    )
    whole = built(text, (2, 8, 8), classes=3)
    small = built(text, (2, 4, 4), classes=3, averaged=2)
    first, averaged = (next(m for m in net if isinstance(m, nn.Linear)) for net in (whole, small))
    with torch.no_grad():
        parts = first.weight.view(-1, 2, 4, 2, 4, 2)
        averaged.weight.copy_(parts.sum(dim=(3, 5)).flatten(1) / 2.0)
        for mine, theirs in zip(small[1:].parameters(), whole[1:].parameters(), strict=True):
            if mine is not averaged.weight:
                mine.copy_(theirs)
    images = blocks.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    outputs = []
    for net, x in ((whole, images), (small, 2.0 * blocks)):
        nn.functional.cross_entropy(net(x), labels).backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad
        outputs.append(net(x))
    torch.testing.assert_close(*outputs)


def test_the_first_layer_for_averaged_images_begins_as_that_for_whole_ones():
    averaged, whole = built("mlp(64)", (1, 14, 14), averaged=2), built("mlp(64)", (1, 28, 28))
    assert float(averaged[1].weight.detach().abs().max()) == pytest.approx(1 / 28, rel=1e-3)
    assert float(whole[1].weight.detach().abs().max()) == pytest.approx(1 / 28, rel=1e-3)
    assert float(averaged[3].weight.detach().abs().max()) == pytest.approx(1 / 8, rel=0.02)

"""One forward and backward pass, without what calling a module and ``backward`` costs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear

from sojourn.errors import InvalidInput


class GradientSink:
    """Where large dense layers of a sequence put the gradients of their weights while it is open.

    ``places`` are the tensors for them; ``filled`` the parameters whose gradients are there since it was
    opened.
    """

    def __init__(self) -> None:
        self.places: dict[nn.Parameter, Tensor] = {}
        self.filled: set[nn.Parameter] = set()
        self._open = False

    def __enter__(self) -> None:
        self.filled.clear()
        self._open = True

    def __exit__(self, *_: object) -> None:
        self._open = False

    def take(self, weight: nn.Parameter, outward: Tensor, inputs: Tensor) -> bool:
        """Whether the gradient of a layer's weights was put into its place."""
        place = self.places.get(weight) if self._open and not torch.is_grad_enabled() else None
        if place is None or inputs.shape[0] == 1:  # A single product may be -0.
            return False
        if weight in self.filled:  # The layer is there twice.
            place.add_(outward.t().mm(inputs))
        else:
            torch.mm(outward.t(), inputs, out=place)
            self.filled.add(weight)
        return True


def forward_steps(
    model: nn.Module, *, channels_last: bool = False, sink: GradientSink | None = None
) -> list[Callable[[Tensor], Tensor]]:
    """The model as functions to call one after the other.

    To call ``forward`` of a sequence's layers saves what calling a module costs, a tenth of the
    gradient of a small perceptron; a model with hooks is called as a whole. With ``channels_last`` the
    convolutions of a sequence lay out their weights so, too; with a ``sink`` its large dense layers
    put gradients there.
    """
    if altered(model):
        return [model]
    if type(model) is nn.Sequential:
        return [
            step
            for child in model
            for step in forward_steps(child, channels_last=channels_last, sink=sink)
        ]
    if sink is not None and type(model) is nn.Linear and model.weight.numel() >= LARGE_LAYER:
        return [partial(_dense, model, sink)]
    if channels_last and type(model) is nn.Conv2d and model.padding_mode == "zeros":
        return [partial(_convolve_channels_last, model)]
    return [model.forward]


def _convolve_channels_last(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Images of one channel have the same strides either way: it is the weights that tell torch."""
    weight = layer.weight.contiguous(memory_format=torch.channels_last)
    return conv2d(x, weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)


LARGE_LAYER = 2**19
"""Weights of a dense layer whose gradient is worth putting where it is wanted instead of copying it."""


class _Dense(torch.autograd.Function):
    """What torch makes of a dense layer, to the bit, but for where the gradient of its weights goes."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: nn.Parameter, bias: Tensor | None, sink: GradientSink
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.weight, ctx.sink, ctx.biased = weight, sink, bias is not None
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, outward: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        inward = outward.mm(weight) if ctx.needs_input_grad[0] else None
        gradient = None
        if ctx.needs_input_grad[1] and not ctx.sink.take(ctx.weight, outward, x):
            gradient = outward.t().mm(x)
        return inward, gradient, outward.sum(0) if ctx.biased else None, None


def _dense(layer: nn.Linear, sink: GradientSink, x: Tensor) -> Tensor:
    if x.dim() != 2:
        return layer.forward(x)
    made: Tensor = _Dense.apply(x, layer.weight, layer.bias, sink)  # type: ignore[no-untyped-call]
    return made


def altered(model: nn.Module) -> bool:
    """Whether a module does something else than its class: it has hooks, or a ``forward`` of its own."""
    return any(
        m._forward_hooks
        or m._forward_pre_hooks
        or m._backward_hooks
        or m._backward_pre_hooks
        or "forward" in vars(m)
        for m in model.modules()
    )


def _engine_backward() -> Callable[[Tensor], None]:
    """The backward pass of torch's engine, called without the checks of ``loss.backward()``.

    They cost a fifth of a small perceptron's gradient. The engine is private to torch: where it is
    missing or takes other arguments, the public function is used, which gives the same bits.
    """
    engine: Any = getattr(torch.autograd.Variable, "_execution_engine", None)
    ones = {
        kind: torch.ones((), dtype=kind, device="cpu") for kind in (torch.float32, torch.float64)
    }

    def run(loss: Tensor) -> None:
        usual = loss.is_cpu and loss.dim() == 0
        one = ones[loss.dtype] if usual else torch.ones_like(loss)
        engine.run_backward(
            (loss,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True
        )

    try:
        leaf = torch.zeros((), requires_grad=True, device="cpu")
        run(leaf * 1.0)
    except (AttributeError, TypeError):
        return torch.autograd.backward
    return run


backward = _engine_backward()


def check_no_parameter_hooks(model: nn.Module) -> None:
    """A copy of a parameter loses its hooks, so training would silently go without them."""
    for name, parameter in model.named_parameters():
        late = getattr(parameter, "_post_accumulate_grad_hooks", None)
        if parameter._backward_hooks or late:
            raise InvalidInput(
                f"the model's parameter '{name}' has a hook, which training would not call: "
                "gradients are computed on copies, often together. Remove it, and do what it does "
                'in the loss or in the rule (server = { name = "plain", clip = 1.0 } clips, '
                "weight-decay decays)."
            )

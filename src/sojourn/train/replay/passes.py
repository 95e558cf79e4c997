"""A model's passes forward and backward, without what they usually cost beside the arithmetic."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def forward_steps(model: nn.Module) -> list[Callable[[Tensor], Tensor]]:
    """The model as functions to call one after the other.

    To call ``forward`` of a sequence's layers saves what calling a module costs, a tenth of the
    gradient of a small perceptron; a model with hooks is called as a whole.
    """
    if altered(model):
        return [model]
    if type(model) is nn.Sequential:
        return [step for child in model for step in forward_steps(child)]
    return [model.forward]


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


_ENGINE: Any = torch.autograd.Variable._execution_engine
_ONES = {kind: torch.ones((), dtype=kind) for kind in (torch.float32, torch.float64)}


def backward(loss: Tensor) -> None:
    """``loss.backward()``, without the checks that cost a fifth of a small perceptron's gradient."""
    one = _ONES[loss.dtype] if loss.dim() == 0 else torch.ones_like(loss)
    _ENGINE.run_backward(
        (loss,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )

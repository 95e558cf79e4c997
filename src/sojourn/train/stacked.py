"""Gradients of several tasks at once, each at weights of its own."""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from sojourn.train.problem import Loss, Problem

StackedGradients: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From weights (tasks, dimension) and batches x, y (tasks, batch, ...) to losses and gradients."""

_ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Identity)


def stacked_gradients(problem: Problem) -> StackedGradients | None:
    """The fastest way at hand for this problem, or ``None`` if there is none.

    Sequences of linear layers and elementwise functions go through batched matrix products, other
    models through ``torch.func.vmap``. A model that draws random numbers must be run task by task,
    so that each has its own.
    """
    if problem.stochastic:
        return None
    layers = _layers(problem.model)
    return _VectorizedGradients(problem) if layers is None else _DenseGradients(problem, layers)


class _DenseGradients:
    """Batched matrix products: a linear layer of all tasks is one ``baddbmm``."""

    def __init__(self, problem: Problem, layers: list[nn.Module]) -> None:
        self._layers = layers
        self._loss = _task_losses(problem.loss)
        self._shapes = list(problem.parameter_shapes.values())

    def __call__(self, weights: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        tasks = len(weights)
        parts = torch.split(weights, [shape.numel() for shape in self._shapes], dim=1)
        parameters = [
            part.view(tasks, *shape).requires_grad_()
            for part, shape in zip(parts, self._shapes, strict=True)
        ]
        losses = self._loss(self._outputs(iter(parameters), x), y)
        gradients = torch.autograd.grad(losses.sum(), parameters)
        return losses.detach(), torch.cat([g.reshape(tasks, -1) for g in gradients], dim=1)

    def _outputs(self, parameters: Iterator[Tensor], x: Tensor) -> Tensor:
        for layer in self._layers:
            if isinstance(layer, nn.Linear):
                weight = next(parameters).transpose(1, 2)
                biased = "bias" in dict(layer.named_parameters())
                if biased:
                    x = torch.baddbmm(next(parameters).unsqueeze(1), x, weight)
                else:
                    x = torch.bmm(x, weight)
            elif isinstance(layer, nn.Flatten):
                x = x.flatten(2)
            else:
                x = layer(x)
        return x


class _VectorizedGradients:
    """``torch.func``: any model whose operations it knows how to stack."""

    def __init__(self, problem: Problem) -> None:
        self._model = problem.model
        self._task_loss = problem.loss
        self._shapes = problem.parameter_shapes
        self._gradients = torch.func.vmap(torch.func.grad_and_value(self._loss))

    def __call__(self, weights: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        sizes = [shape.numel() for shape in self._shapes.values()]
        parts = torch.split(weights, sizes, dim=1)
        parameters = {
            name: part.view(len(weights), *shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }
        self._model.train()
        gradients, losses = self._gradients(parameters, x, y)
        flat = [gradients[name].reshape(len(weights), -1) for name in self._shapes]
        return losses, torch.cat(flat, dim=1)

    def _loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs: Any = torch.func.functional_call(self._model, parameters, (x,))
        return self._task_loss(outputs, y)


def _layers(model: nn.Module) -> list[nn.Module] | None:
    """The layers of a sequence that `_DenseGradients` can run, or ``None``."""
    layers = [m for m in model.modules() if not isinstance(m, nn.Sequential)]
    trainable = all(p.requires_grad for p in model.parameters())
    if not (isinstance(model, nn.Sequential | nn.Linear) and trainable):
        return None
    distinct = len({id(layer) for layer in layers}) == len(layers)
    known = all(
        type(layer) in (nn.Linear, *_ELEMENTWISE)
        or (type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1))
        for layer in layers
    )
    return layers if known and distinct else None


def _task_losses(loss: Loss) -> Loss:
    """``loss`` for stacked outputs: one value per task."""
    plain = type(loss) is nn.CrossEntropyLoss and repr(loss) == repr(nn.CrossEntropyLoss())
    if loss is functional.cross_entropy or plain:
        return _cross_entropies
    return torch.func.vmap(loss)


def _cross_entropies(outputs: Tensor, y: Tensor) -> Tensor:
    each = functional.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none")
    return each.view(y.shape).mean(dim=1)

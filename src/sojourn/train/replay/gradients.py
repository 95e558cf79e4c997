"""The work of clients: results of independent tasks, one by one or together, whichever is faster."""

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sojourn.rules import Rule, one_gradient, sent_back
from sojourn.train.replay.metrics import Loss
from sojourn.train.replay.passes import altered
from sojourn.train.replay.problem import Problem, Samples, local_step

StackedGradients: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From weights (tasks, dimension) and batches x, y to losses and gradients.

There is a batch per task, (tasks, batch, ...), or one for every so many tasks in a row.
"""

_ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Identity)


def stacked_gradients(problem: Problem) -> StackedGradients | None:
    """The fastest way at hand for this problem, or ``None`` if there is none.

    Sequences of linear layers and elementwise functions go through batched matrix products, other
    models through ``torch.func.vmap``, if it knows all operations of model and loss. A model that
    draws random numbers must be run task by task, so that each has its own; so must one with hooks,
    which expect one task, and one that has a parameter in two places, which ``torch.func`` does not
    put back.
    """
    if problem.stochastic or altered(problem.model) or _repeats(problem.model):
        return None
    layers = _dense_layers(problem)
    gradients: StackedGradients = (
        _VectorizedGradients(problem) if layers is None else _DenseGradients(problem, layers)
    )
    weights = problem.initial_weights().repeat(2, 1)
    x, y = problem.stacked_batches([(0, 0), (0, 1)], seed=0)
    try:
        gradients(weights, x[:, :2], y[:, :2])
    except Exception:  # Whatever the user's code raises when stacked, it runs task by task.
        return None
    return gradients


def stacks_well(problem: Problem) -> bool:
    """Whether runs in lockstep gain from stacking, by the model's kind and not by the clock.

    Sequences of linear layers do; what goes through ``torch.func`` may lose.
    """
    return isinstance(stacked_gradients(problem), _DenseGradients)


def channels_last_pays(problem: Problem) -> bool:
    """Whether gradients one by one are faster with images laid out channels last: measured here.

    Only models with convolutions of images are tried. Results are the same up to rounding; where
    units are dropped at random, others are. By this thread's processor time.
    """
    convolutions = any(isinstance(module, nn.Conv2d) for module in problem.model.modules())
    if not convolutions or problem.test_set[0].dim() != 4:
        return False
    before, weights = problem.channels_last, problem.initial_weights().numpy()
    seconds: dict[bool, list[float]] = {False: [], True: []}
    try:
        for number in range(LAYOUT_TRIALS + 1):
            for layout, taken in seconds.items():
                problem.channels_last = layout
                begin = time.thread_time()
                problem.loss_and_array(weights, 0, number, seed=0)
                taken.append(time.thread_time() - begin)
    finally:
        problem.channels_last = before
    usual, last = (median(taken[1:]) for taken in seconds.values())
    return last < WORTHWHILE_LAYOUT * usual


class _DenseGradients:
    """Batched matrix products: a linear layer of all tasks is one product.

    Activations are (tasks, features, batch), so that the gradient of a layer comes out in the
    layout of its weights.
    """

    def __init__(self, problem: Problem, layers: list[nn.Module]) -> None:
        self._layers = [
            (layer, "bias" in dict(layer.named_parameters()))
            for layer in layers
            if not isinstance(layer, nn.Flatten)
        ]
        self._loss = _task_losses(problem)
        self._shapes = list(problem.parameter_shapes.values())

    def __call__(self, weights: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        tasks = len(weights)
        parts = torch.split(weights, [shape.numel() for shape in self._shapes], dim=1)
        parameters = [
            part.view(tasks, *shape).requires_grad_()
            for part, shape in zip(parts, self._shapes, strict=True)
        ]
        losses = self._loss(self._outputs(iter(parameters), x), _each(y, tasks))
        gradients = torch.autograd.grad(losses.sum(), parameters)
        return losses.detach(), torch.cat([g.reshape(tasks, -1) for g in gradients], dim=1)

    def _outputs(self, parameters: Iterator[Tensor], x: Tensor) -> Tensor:
        hidden = x.flatten(2).transpose(1, 2)
        for layer, biased in self._layers:
            if not isinstance(layer, nn.Linear):
                hidden = layer(hidden)
                continue
            weight = next(parameters)
            bias = next(parameters).unsqueeze(2) if biased else None
            (tasks, outputs, inputs), shared = weight.shape, len(hidden)
            if shared < tasks:  # Tasks that share a batch are one wider layer.
                weight = weight.reshape(shared, -1, inputs)
                bias = None if bias is None else bias.reshape(shared, -1, 1)
            if bias is None:
                hidden = torch.bmm(weight, hidden)
            else:
                hidden = torch.baddbmm(bias, weight, hidden)
            if shared < tasks:
                hidden = hidden.reshape(tasks, outputs, -1)
        return hidden.transpose(1, 2)


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
        tasks = len(weights)
        gradients, losses = self._gradients(parameters, _each(x, tasks), _each(y, tasks))
        flat = [gradients[name].reshape(len(weights), -1) for name in self._shapes]
        return losses, torch.cat(flat, dim=1)

    def _loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs: Any = torch.func.functional_call(self._model, parameters, (x,))
        return self._task_loss(outputs, y)


def _each(batches: Tensor, tasks: int) -> Tensor:
    """A batch for every task, where several tasks in a row share one."""
    return batches if len(batches) == tasks else batches.repeat_interleave(tasks // len(batches), 0)


def _dense_layers(problem: Problem) -> list[nn.Module] | None:
    """The layers of a sequence that `_DenseGradients` can run, or ``None``."""
    model = problem.model
    layers = [m for m in model.modules() if not _plain_sequence(m)]
    if not layers:
        return None
    flat = problem.test_set[0].dim() == 2 or isinstance(layers[0], nn.Flatten)
    trainable = all(p.requires_grad for p in model.parameters())
    known = all(
        type(layer) in (nn.Linear, *_ELEMENTWISE)
        or (type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1))
        for layer in layers
    )
    return layers if flat and trainable and known else None


def _plain_sequence(module: nn.Module) -> bool:
    """Whether it calls one layer after the other and does nothing else; a subclass may."""
    return type(module) is nn.Sequential and not module._parameters


def _repeats(model: nn.Module) -> bool:
    """Whether a module or a parameter stands in more than one place."""
    modules = [id(m) for _, m in model.named_modules(remove_duplicate=False)]
    parameters = [id(p) for _, p in model.named_parameters(remove_duplicate=False)]
    return len(set(modules)) < len(modules) or len(set(parameters)) < len(parameters)


def _task_losses(problem: Problem) -> Loss:
    """The loss for stacked outputs: one value per task."""
    loss, (_, y) = problem.loss, problem.train_sets[0]
    if isinstance(loss, nn.CrossEntropyLoss):
        plain = loss.weight is None and loss.reduction == "mean" and not loss.label_smoothing
        usual = plain and loss.ignore_index < 0
    else:
        usual = loss is functional.cross_entropy
    labelled = not y.is_floating_point() and y.dim() == 1
    ignores = any(bool((y < 0).any()) for _, y in problem.train_sets) if labelled else True
    return _cross_entropies if usual and not ignores else torch.func.vmap(loss)


def _cross_entropies(outputs: Tensor, y: Tensor) -> Tensor:
    each = functional.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none")
    return each.view(y.shape).mean(dim=1)


Weights: TypeAlias = NDArray[np.floating]
"""The server's vectors are NumPy's, whose arithmetic costs least to call."""

Result: TypeAlias = tuple[float, Weights]


class Task(NamedTuple):
    """One request to one client: which of its tasks it is, and the weights it was sent with.

    ``rate`` is the learning rate of the client's own steps, where it takes some.
    """

    client: int
    ordinal: int
    sent: Weights
    rate: float


class Tasks(Protocol):
    """A way to compute the results of tasks, in their order.

    ``copies`` tasks in a row are the same but for the weights they were sent with.
    """

    def results(self, tasks: Sequence[Task], copies: int = 1) -> Iterator[Result]:
        """Mean loss and update of each task."""
        ...


class PlainTasks:
    """One task at a time, each when its result is asked for."""

    def __init__(self, problem: Problem, rule: Rule, seed: int) -> None:
        self._problem, self._rule, self._seed = problem, rule, seed

    def results(self, tasks: Sequence[Task], copies: int = 1) -> Iterator[Result]:
        problem, rule, seed = self._problem, self._rule, self._seed
        plain = one_gradient(rule)
        for client, ordinal, sent, rate in tasks:
            if plain:
                yield problem.loss_and_array(sent, client, ordinal, seed)
            else:
                steps, pull = rule.local_steps, rule.proximal
                loss, difference = problem.loss_and_difference(
                    sent, client, ordinal, seed, steps, rate, proximal=pull
                )
                yield loss, sent_back(rule, difference, rate).numpy()


class BatchedTasks:
    """All tasks together, on stacked weights: the same up to rounding."""

    def __init__(
        self,
        problem: Problem,
        rule: Rule,
        seed: int,
        gradients: StackedGradients,
    ) -> None:
        self._problem, self._rule, self._seed = problem, rule, seed
        self._gradients = gradients

    def results(self, tasks: Sequence[Task], copies: int = 1) -> Iterator[Result]:
        return self.results_of([(self, tasks)], copies)

    def results_of(
        self, parts: Sequence[tuple["BatchedTasks", Sequence[Task]]], copies: int = 1
    ) -> Iterator[Result]:
        """Those of several such together, one after the other: their problems have one model, and
        batches of one size.
        """
        tasks = [task for _, own in parts for task in own]
        sent = torch.from_numpy(np.stack([task.sent for task in tasks]))
        if one_gradient(self._rule):
            losses, updates = self._step(parts, sent, 0, copies)
        else:
            losses, updates = self._descend(parts, sent, copies)
        return zip(losses.tolist(), updates.numpy(), strict=True)

    def _descend(
        self, parts: Sequence[tuple["BatchedTasks", Sequence[Task]]], sent: Tensor, copies: int
    ) -> tuple[Tensor, Tensor]:
        local, total = sent, torch.zeros(len(sent), dtype=torch.float64)
        rates = torch.tensor([[task.rate] for _, own in parts for task in own], dtype=sent.dtype)
        for step in range(self._rule.local_steps):
            losses, gradients = self._step(parts, local, step, copies)
            local = local_step(local, sent, gradients, rates, self._rule.proximal)
            total += losses
        return total / self._rule.local_steps, sent_back(self._rule, local - sent, rates)

    def _step(
        self,
        parts: Sequence[tuple["BatchedTasks", Sequence[Task]]],
        weights: Tensor,
        step: int,
        copies: int,
    ) -> tuple[Tensor, Tensor]:
        """``copies`` rows of ``weights`` next to one another share a batch."""
        batches = [one._batches(own[::copies], step) for one, own in parts]
        if len(batches) == 1:
            return self._gradients(weights, *batches[0])
        x, y = (torch.cat(same) for same in zip(*batches, strict=True))
        return self._gradients(weights, x, y)

    def _batches(self, tasks: Sequence[Task], step: int) -> Samples:
        steps = self._rule.local_steps
        numbers = [(task.client, task.ordinal * steps + step) for task in tasks]
        return self._problem.stacked_batches(numbers, self._seed)


LONGEST_RUN = 64
SHORTEST_RUN = 4
LARGEST_STACK = 2**22
"""Numbers in the stacked weights and inputs of a run: beyond what a cache holds, stacking loses."""


def longest_run(problem: Problem) -> int:
    """How many tasks are worth computing together, by their size."""
    x, _ = problem.test_set
    inputs = problem.batch_size * x[0].numel()
    return max(1, min(LONGEST_RUN, LARGEST_STACK // (problem.dimension + inputs)))


TRIAL_RUN = 16
TRIAL_ROUNDS = 5
LONGEST_TRIAL = 500
WORTHWHILE = 0.85
LAYOUT_TRIALS = 5
WORTHWHILE_LAYOUT = 0.97
HEAVY_TASK = 0.003
"""Seconds. What stacking saves is the cost of calling, a fraction of a millisecond per task."""


class Workers:
    """Hands every run of tasks to the plain loop or to the batched computation.

    ``batched`` is ``True`` or ``False`` once that is settled. While it is ``None``, runs go to
    either in turn and are timed, by this thread's processor time, so that other work on the machine
    does not decide; the batched computation must then have taken less than
    ``WORTHWHILE`` times as long per task. The first run of each is left out, as something may have
    to be compiled. Heavy tasks have nothing to gain and are never tried together. Runs too short to
    gain anything are always computed plainly; if the first ``LONGEST_TRIAL`` tasks have hardly any
    others, so are all.
    """

    def __init__(
        self, plain: PlainTasks, together: BatchedTasks | None, batched: bool | None
    ) -> None:
        self._plain, self._together = plain, together
        self.batched = False if together is None else batched
        self._seconds: tuple[list[float], list[float]] = ([], [])
        self._tried = 0

    def longest_run(self, limit: int) -> int:
        """How many tasks the next run may have."""
        return min(limit, TRIAL_RUN) if self.batched is None else limit

    def results(self, tasks: Sequence[Task], copies: int = 1) -> Iterator[Result]:
        """Mean loss and update of each task, in order; see `Tasks`."""
        self._tried += len(tasks)
        if self.batched is None and self._tried > LONGEST_TRIAL:
            self.batched = False
        if self.batched is None and len(tasks) >= SHORTEST_RUN:
            return self._timed(tasks, copies)
        if self.batched and self._together is not None and len(tasks) >= SHORTEST_RUN:
            return self._together.results(tasks, copies)
        return self._plain.results(tasks)

    def _timed(self, tasks: Sequence[Task], copies: int) -> Iterator[Result]:
        plain, together = self._seconds
        turn = len(together) < len(plain) - 1
        way = self._together if turn and self._together is not None else self._plain
        begin = time.thread_time()
        results = list(way.results(tasks, copies))
        (together if turn else plain).append((time.thread_time() - begin) / len(tasks))
        if min(plain[1:], default=0.0) > HEAVY_TASK:
            self.batched = False
        elif len(together) > TRIAL_ROUNDS:
            self.batched = median(together[1:]) < WORTHWHILE * median(plain[1:])
        return iter(results)

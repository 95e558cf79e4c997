"""The work of clients: results of independent tasks, one by one or stacked, whichever is faster."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sojourn.errors import InvalidInput
from sojourn.rules import Rule, one_gradient, sent_back
from sojourn.rules.arrays import joined
from sojourn.rules.state import ClientPart, Work, client_part, steps_of
from sojourn.training.problem.autograd import altered
from sojourn.training.problem.metrics import Loss
from sojourn.training.problem.optimizer import ClientState
from sojourn.training.problem.problem import Problem, TensorPair, local_step
from sojourn.training.problem.samples import TensorSamples

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
    if (
        not problem.plain
        or problem.uses_dropout
        or altered(problem.model)
        or _repeats(problem.model)
    ):
        return None
    layers = _dense_layers(problem)
    gradients: StackedGradients = (
        _VectorizedGradients(problem) if layers is None else _DenseGradients(problem, layers)
    )
    weights = problem.initial_weights().repeat(2, 1)
    x, y = problem.stacked_batches([(0, 0), (0, 1)], seed=0)
    try:
        with warnings.catch_warnings():  # That something is slow: whether it is, is measured.
            warnings.simplefilter("ignore", UserWarning)
            gradients(weights, x[:, :2], y[:, :2])
    except Exception:  # Whatever the user's code raises when stacked, it runs task by task.
        return None
    return gradients


def stacks_well(problem: Problem) -> bool:
    """Whether stacking runs that share a schedule is faster, by the model's kind, not by the clock.

    It is for sequences of linear layers; what goes through ``torch.func`` may be slower.
    """
    return isinstance(stacked_gradients(problem), _DenseGradients)


def channels_last_pays(problem: Problem) -> bool:
    """Whether gradients one by one are faster with images laid out channels last: measured here.

    Only models with convolutions of images are tried. Results are the same up to rounding; dropout
    may drop other units. By this thread's processor time.
    """
    convolutions = any(isinstance(module, nn.Conv2d) for module in problem.model.modules())
    images = problem.samples
    if not (convolutions and isinstance(images, TensorSamples) and images.x.dim() == 4):
        return False
    if problem.device.type != "cpu":
        return False  # What pays on a device is not seen by this thread's processor time.
    weights = problem.initial_weights().numpy()
    layouts = [problem.variant(channels_last=last) for last in (False, True)]
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(LAYOUT_TRIALS + 1):
        for layout, taken in zip(layouts, seconds, strict=True):
            begin = time.thread_time()
            layout.loss_and_array(weights, 0, number, seed=0)
            taken.append(time.thread_time() - begin)
    usual, last = (median(taken[1:]) for taken in seconds)
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
"""The mean loss of a task, and its update, with buffers behind it where they are sent."""


RULE_STATE = "rule/"
"""How the names of what a rule leaves with a client begin."""


def rule_state(own: ClientState) -> ClientState:
    """What the rule has left with a client."""
    return {n.removeprefix(RULE_STATE): own[n] for n in own if n.startswith(RULE_STATE)}


def split_sent(problem: Problem, sent: Weights) -> tuple[Weights, Weights]:
    """What the rule sent, without buffers; and what the model takes, without what only the rule reads."""
    buffers = len(problem.initial_buffers()) if problem.sends_buffers else 0
    end = len(sent) - buffers
    if end == problem.dimension:
        return sent[:end], sent
    return sent[:end], np.concatenate([sent[: problem.dimension], sent[end:]])


class Task(NamedTuple):
    """One request to one client: which of its tasks it is, and the weights it was sent with.

    ``rate`` is the learning rate of the client's own steps, where it takes some.
    """

    client: int
    ordinal: int
    sent: Weights
    rate: float
    state: ClientState | None = None
    """What the client has from its task before, where anything stays with it."""


def trained(
    problem: Problem,
    task: Task,
    seed: int,
    work: Work,
    *,
    steps: int,
    proximal: float,
    part: ClientPart | None,
) -> Result:
    """The result of a task with an optimiser, with buffers, or with a part of the rule at the client.

    What stays with the client, ``task.state``, is replaced by what it has afterwards.
    """
    client, ordinal, sent, rate, state = task
    own: ClientState = {} if state is None else state
    told, model = (sent, sent) if part is None else split_sent(problem, sent)
    loss, move, buffers = problem.train_client(
        model,
        client,
        ordinal,
        seed,
        steps,
        rate,
        proximal=proximal,
        state=own,
        shift=None if part is None else part.client_shift(told, rule_state(own)),
    )
    if part is not None:
        kept = part.client_state(told, rule_state(own), move.numpy(), steps, rate)
        own.update({f"{RULE_STATE}{name}": np.asarray(array) for name, array in kept.items()})
    update = sent_back(work, move, rate).numpy()
    if problem.takes_plain_steps:
        update = update.astype(sent.dtype, copy=False)
    return loss, joined(update, buffers, update.dtype) if problem.sends_buffers else update


class ClientWork(NamedTuple):
    """What the tasks of a run compute: gradients of ``problem`` as ``rule`` asks for, under ``seed``."""

    problem: Problem
    rule: Rule
    seed: int

    def results(self, tasks: list[Task]) -> Iterator[Result]:
        """The result of each task, computed by itself when it is asked for.

        Tasks are taken out of the list: the memory of what one was sent with serves the next version
        while the cache still holds it, and new memory is never asked for.
        """
        problem, rule, seed = self
        tasks.reverse()
        left = (tasks.pop() for _ in range(len(tasks)))
        if one_gradient(rule) and client_part(rule) is None and problem.takes_gradients:
            gradient = problem.loss_and_array
            return (gradient(task.sent, task.client, task.ordinal, seed) for task in left)
        return map(self._result, left)

    def _result(self, task: Task) -> Result:
        client, ordinal, sent, rate, _ = task
        problem, rule, seed = self
        steps = steps_of(rule, client)
        part = client_part(rule)
        one = rule.sends == "gradient" and steps == 1
        if part is None and one and problem.takes_gradients:
            return problem.loss_and_array(sent, client, ordinal, seed)
        if part is not None or not problem.takes_plain_steps:
            return trained(
                problem, task, seed, rule, steps=steps, proximal=rule.proximal, part=part
            )
        loss, difference = problem.loss_and_difference(
            sent, client, ordinal, seed, steps, rate, proximal=rule.proximal
        )
        return loss, sent_back(rule, difference, rate).numpy()

    def stacked_batches(self, tasks: Sequence[Task], step: int) -> TensorPair:
        """The batches of local step ``step`` of several tasks."""
        numbers = [
            (task.client, task.ordinal * steps_of(self.rule, task.client) + step) for task in tasks
        ]
        return self.problem.stacked_batches(numbers, self.seed)


Group: TypeAlias = tuple[ClientWork, list[Task]]
"""Tasks of one problem and seed."""

LONGEST_RUN = 64
SHORTEST_RUN = 4
LARGEST_STACK = 2**22
"""Numbers in the stacked weights and inputs of a run: beyond what a cache holds, stacking is slower."""

LARGEST_ROW = 2**24
"""Weights in all tasks of a run that are looked up together, where they are computed one by one."""


def longest_run(problem: Problem) -> int:
    """How many tasks are worth computing together, by their size."""
    if not problem.plain:
        return 1
    x, _ = problem.test_set
    inputs = problem.batch_size * x[0].numel()
    return max(1, min(LONGEST_RUN, LARGEST_STACK // (problem.dimension + inputs)))


def longest_row(problem: Problem) -> int:
    """How many tasks of one run are looked up together, where they are computed one by one.

    Progress is shown, and checkpoints are written, between rows: those of heavy tasks are short.
    """
    return max(1, min(TRIAL_RUN, LARGEST_ROW // problem.dimension))


TRIAL_RUN = 16
TRIAL_ROUNDS = 5
LONGEST_TRIAL = 500
WORTHWHILE = 0.85
LAYOUT_TRIALS = 5
WORTHWHILE_LAYOUT = 0.97
HEAVY_TASK = 0.003
"""Seconds. What stacking saves is the cost of calling, a fraction of a millisecond per task."""
CANNOT_BE_STACKED = (
    "batched=True, but this model's tasks cannot be computed together: it draws random "
    "numbers (dropout), or torch.func.vmap cannot run it. Leave out batched."
)


class Workers:
    """Computes independent tasks one by one, or all together on stacked weights: equal up to rounding.

    ``batched`` is ``True`` or ``False`` once that is settled. While it is ``None``, runs of tasks are
    computed either way in turn and timed, by this thread's processor time, so that other work on the
    machine does not decide; stacking must then have taken less than ``WORTHWHILE`` times as long
    per task. The first run of each is left out, as something may have to be compiled. Heavy tasks
    have nothing to gain and are never stacked. Runs too short to gain anything are always computed
    one by one; if the first ``LONGEST_TRIAL`` tasks have hardly any others, so are all.
    """

    def __init__(self, problem: Problem, batched: bool | None) -> None:
        self._gradients = None if batched is False else stacked_gradients(problem)
        if batched and self._gradients is None:
            raise InvalidInput(CANNOT_BE_STACKED)
        self.batched = False if self._gradients is None else batched
        self._seconds: tuple[list[float], list[float]] = ([], [])
        self._tried = 0

    def longest_run(self, limit: int) -> int:
        """How many tasks the next run may have."""
        return min(limit, TRIAL_RUN) if self.batched is None else limit

    def results(self, groups: Sequence[Group], copies: int = 1) -> Iterator[Result]:
        """The result of each task, in order.

        The problems of all groups have one model, and batches of one size. ``copies`` tasks in a
        row are the same but for the weights they were sent with and their learning rate.
        """
        count = sum(len(tasks) for _, tasks in groups)
        self._tried += count
        if self.batched is None and self._tried > LONGEST_TRIAL:
            self.batched = False
        if self.batched is None and count >= SHORTEST_RUN:
            return self._timed(groups, copies, count)
        if self.batched and count >= SHORTEST_RUN:
            return self._stacked(groups, copies)
        return self._one_by_one(groups)

    def _timed(self, groups: Sequence[Group], copies: int, count: int) -> Iterator[Result]:
        alone, together = self._seconds
        stacks = len(together) < len(alone) - 1
        begin = time.thread_time()
        results = list(self._stacked(groups, copies) if stacks else self._one_by_one(groups))
        (together if stacks else alone).append((time.thread_time() - begin) / count)
        if min(alone[1:], default=0.0) > HEAVY_TASK:
            self.batched = False
        elif len(together) > TRIAL_ROUNDS:
            self.batched = median(together[1:]) < WORTHWHILE * median(alone[1:])
        return iter(results)

    @staticmethod
    def _one_by_one(groups: Sequence[Group]) -> Iterator[Result]:
        """Each when its result is asked for."""
        return chain.from_iterable(work.results(tasks) for work, tasks in groups)

    def _stacked(self, groups: Sequence[Group], copies: int) -> Iterator[Result]:
        rule = groups[0][0].rule
        tasks = [task for _, own in groups for task in own]
        sent = torch.from_numpy(np.stack([task.sent for task in tasks]))
        if one_gradient(rule):
            losses, updates = self._step(groups, sent, 0, copies)
            return zip(losses.tolist(), updates.numpy(), strict=True)
        local, total = sent, torch.zeros(len(sent), dtype=torch.float64, device="cpu")
        rates = torch.tensor([[task.rate] for task in tasks], dtype=sent.dtype, device="cpu")
        steps = [steps_of(rule, task.client) for task in tasks]
        for step in range(max(steps)):
            if step < min(steps):
                losses, gradients = self._step(groups, local, step, copies)
                local = local_step(local, sent, gradients, rates, rule.proximal)
                total += losses
                continue
            # Clients that take fewer steps are done: only the others go on.
            going = [place for place, most in enumerate(steps) if step < most]
            left = [
                (work, [task for task in own if step < steps_of(rule, task.client)])
                for work, own in groups
            ]
            losses, gradients = self._step([g for g in left if g[1]], local[going], step, copies)
            local[going] = local_step(
                local[going], sent[going], gradients, rates[going], rule.proximal
            )
            total[going] += losses
        updates = sent_back(rule, local - sent, rates)
        means = total / torch.tensor(steps, dtype=total.dtype, device="cpu")
        return zip(means.tolist(), updates.numpy(), strict=True)

    def _step(
        self, groups: Sequence[Group], weights: Tensor, step: int, copies: int
    ) -> tuple[Tensor, Tensor]:
        """``copies`` rows of ``weights`` next to one another share a batch."""
        assert self._gradients is not None
        batches = [work.stacked_batches(tasks[::copies], step) for work, tasks in groups]
        if len(batches) == 1:
            return self._gradients(weights, *batches[0])
        x, y = (torch.cat(same) for same in zip(*batches, strict=True))
        return self._gradients(weights, x, y)

"""What is learned: a model, every client's samples, a test set and a loss."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sojourn.checks import check_whole
from sojourn.errors import InvalidInput
from sojourn.measure import check_primary
from sojourn.train.replay.metrics import (
    Count,
    Counted,
    Loss,
    Metric,
    accuracy_of,
    checked_metrics,
)
from sojourn.train.replay.passes import (
    Augment,
    Batches,
    backward,
    check_no_parameter_hooks,
    forward_steps,
    seeded,
)

Samples: TypeAlias = tuple[Tensor, Tensor]

EVALUATION_CHUNK = 1000


class Measures(NamedTuple):
    """How good weights are on the test set; the accuracy is ``nan`` where there is none."""

    loss: float
    accuracy: float
    metrics: dict[str, float]


class Problem:
    r"""A model to train on samples that stay with their clients.

    ``model`` is any ``torch.nn.Module`` in float32 or float64, on the CPU; its weights are the
    starting point, and it is copied, never changed. ``train_sets`` has a pair of tensors ``(x, y)``
    per client, ``test_set`` is one such pair; ``loss(model(x), y)`` is the mean loss of a batch.
    ``augment(x, generator)`` changes a batch at random before it is used.

    Accuracy is counted for classes (also one per place of a sequence, wherever the loss wants the
    scores), for one-hot classes, and for yes and no (one output or several, logits or
    probabilities). ``metrics`` are functions of your own, ``metric(outputs, y)`` on the whole test
    set, such as those in `sojourn.train.metrics`; ``primary`` names the one, or ``accuracy`` or
    ``loss``, that runs are judged by: targets, learning rates, tables and figures go by it.

    Weights and gradients are flat vectors of all trainable parameters, in the order of
    ``model.parameters()``. Batches, augmentation and dropout are functions of ``(seed, client,
    ordinal)`` alone, where ``ordinal`` counts the tasks of a client from 0. With ``channels_last``
    images are laid out so in memory, which makes some convolutions faster (`channels_last_pays`).

    >>> x, y = torch.randn(30, 4), torch.arange(30) % 3
    >>> problem = Problem(nn.Linear(4, 3), [(x[:20], y[:20]), (x[20:], y[20:])], (x, y))
    >>> problem.clients, problem.dimension
    (2, 15)
    >>> problem
    Problem(Linear with 15 weights, 30 samples of 2 clients, 30 to test, batches of 32)
    >>> problem.gradient(problem.initial_weights(), client=0, ordinal=0, seed=1).shape
    torch.Size([15])
    """

    def __init__(
        self,
        model: nn.Module,
        train_sets: Sequence[Samples],
        test_set: Samples,
        loss: Loss = functional.cross_entropy,
        *,
        batch_size: int = 32,
        augment: Augment | None = None,
        metrics: Mapping[str, Metric] | None = None,
        primary: str | None = None,
        higher_is_better: bool = True,
    ) -> None:
        check_whole("batch_size", batch_size)
        if not train_sets:
            raise InvalidInput("train_sets is empty: give one pair (x, y) per client")
        for client, samples in enumerate(train_sets):
            _check_samples(f"the train set of client {client}", samples)
        _check_samples("the test set", test_set)
        check_no_parameter_hooks(model)
        self._model = copy.deepcopy(model)
        self.metrics = checked_metrics(metrics or {})
        self.primary = (
            None if primary is None else check_primary(primary, self.metrics, higher_is_better)
        )
        self._sizes = [len(y) for _, y in train_sets]
        self._x = torch.cat([x for x, _ in train_sets])
        self._y = torch.cat([y for _, y in train_sets])
        self.test_set = test_set
        self.loss = loss
        self.batch_size = batch_size
        self.augment = augment
        self.channels_last = False
        self._batches: Batches | None = None
        self._flatten()
        self.stochastic = self._probe()
        self._count = self._probe_accuracy()

    def __repr__(self) -> str:
        return (
            f"Problem({type(self._model).__name__} with {self.dimension} weights, "
            f"{sum(self._sizes)} samples of {self.clients} clients, {len(self.test_set[1])} to test, "
            f"batches of {self.batch_size})"
        )

    @property
    def clients(self) -> int:
        """The number of clients, :math:`n`."""
        return len(self._sizes)

    @property
    def dimension(self) -> int:
        """The number of trainable parameters."""
        return self._initial.numel()

    @property
    def labelled(self) -> bool:
        """Whether there is an accuracy."""
        return self._count is not None

    @property
    def train_sizes(self) -> list[int]:
        """The number of samples of each client."""
        return list(self._sizes)

    @property
    def train_sets(self) -> list[Samples]:
        """The samples of each client."""
        sizes = self._sizes
        return list(zip(torch.split(self._x, sizes), torch.split(self._y, sizes), strict=True))

    @property
    def model(self) -> nn.Module:
        """The model's structure; its weights are those of whatever was computed last."""
        return self._model

    @property
    def parameter_shapes(self) -> dict[str, torch.Size]:
        """Name and shape of each trainable parameter, in the order of the flat vector."""
        return {n: p.shape for n, p in self._model.named_parameters() if p.requires_grad}

    def initial_weights(self) -> Tensor:
        """The weights the model came with, as a flat vector."""
        return self._initial.clone()

    def trained_model(self, weights: Any) -> nn.Module:
        """A copy of the model with these weights, for instance ``history.weights``."""
        model = copy.deepcopy(self._model).eval()
        flat = torch.as_tensor(weights, dtype=self._initial.dtype)
        trainable = [p for p in model.parameters() if p.requires_grad]
        parts = torch.split(flat, [p.numel() for p in trainable])
        with torch.no_grad():
            for parameter, part in zip(trainable, parts, strict=True):
                parameter.data = part.clone().view_as(parameter)
                parameter.grad = None
        return model

    def state_arrays(self, weights: Any) -> dict[str, NDArray[Any]]:
        """The ``state_dict`` of the model with these weights, as arrays."""
        state = self.trained_model(weights).state_dict()
        return {name: tensor.numpy() for name, tensor in state.items()}

    def batch(self, client: int, number: int, seed: int) -> Samples:
        """Batch ``number`` of ``client``, augmented."""
        batches = self.batches(seed)
        chosen = batches.indices(client, number)
        x = self._x.index_select(0, chosen)
        x = batches.augmented(self.augment, x, [(client, number)])
        return x, self._y.index_select(0, chosen)

    def stacked_batches(self, tasks: Sequence[tuple[int, int]], seed: int) -> Samples:
        """The batches of several ``(client, number)``, stacked along a new first dimension."""
        batches = self.batches(seed)
        chosen = torch.cat([batches.indices(client, number) for client, number in tasks])
        x, y = self._x.index_select(0, chosen), self._y.index_select(0, chosen)
        x = batches.augmented(self.augment, x, tasks)
        shape = len(tasks), self.batch_size
        return x.reshape(*shape, *x.shape[1:]), y.reshape(*shape, *y.shape[1:])

    def batches(self, seed: int) -> Batches:
        """The batches of every client for ``seed``."""
        if self._batches is None or self._batches.seed != seed:
            self._batches = Batches(seed, self._sizes, self.batch_size)
        return self._batches

    def gradient(self, weights: Any, client: int, ordinal: int, seed: int) -> Tensor:
        """The stochastic gradient of a client's loss on the batch of its task ``ordinal``."""
        return self.loss_and_gradient(weights, client, ordinal, seed)[1]

    def loss_and_gradient(
        self, weights: Any, client: int, number: int, seed: int
    ) -> tuple[float, Tensor]:
        """The mean loss on batch ``number`` of ``client``, and its gradient."""
        loss, gradient = self.loss_and_array(weights, client, number, seed)
        return loss, torch.from_numpy(gradient)

    def loss_and_array(
        self, weights: Any, client: int, number: int, seed: int
    ) -> tuple[float, NDArray[np.floating]]:
        """The same with the gradient as a NumPy array, which costs less to make."""
        x, y = self.batch(client, number, seed)
        self._set(weights, training=True)
        if self.stochastic:
            with seeded(self.batches(seed).noise(client, number)):
                loss = self.loss(self._outputs(x), y)
        else:
            loss = self.loss(self._outputs(x), y)
        self._gradient_array.fill(0)
        backward(loss)
        return loss.item(), self._gradient_array.copy()

    def loss_and_difference(
        self,
        weights: Any,
        client: int,
        ordinal: int,
        seed: int,
        steps: int,
        learning_rate: float,
        *,
        proximal: float = 0.0,
    ) -> tuple[float, Tensor]:
        """The mean loss over the local steps, and the move they make.

        Task ``ordinal`` uses the ``steps`` batches numbered from ``ordinal * steps``; ``proximal``
        pulls every step back towards ``weights``.
        """
        sent = local = torch.as_tensor(weights)
        total = 0.0
        for number in range(ordinal * steps, (ordinal + 1) * steps):
            loss, gradient = self.loss_and_gradient(local, client, number, seed)
            local = local_step(local, sent, gradient, learning_rate, proximal)
            total += loss
        return total / steps, local - sent

    def evaluate(self, weights: Any) -> tuple[float, float]:
        """Mean loss and accuracy on the test set; the accuracy is ``nan`` where there is none."""
        return self.measures(weights)[:2]

    def measures(self, weights: Any) -> Measures:
        """Loss, accuracy and metrics on the test set."""
        x, y = self.test_set
        self._set(weights, training=False)
        total, right, counted = 0.0, 0, 0
        seen: list[Tensor] = []
        with torch.no_grad():
            chunks = torch.split(x, EVALUATION_CHUNK), torch.split(y, EVALUATION_CHUNK)
            for chunk, wanted in zip(*chunks, strict=True):
                outputs = self._outputs(chunk)
                total += self.loss(outputs, wanted).item() * len(wanted)
                more, of = self._counted(outputs, wanted)
                right, counted = right + more, counted + of
                if self.metrics:
                    seen.append(outputs)
            whole = torch.cat(seen) if seen else None
            found = {name: float(metric(whole, y)) for name, metric in self.metrics.items()}  # type: ignore[arg-type]
        return Measures(total / len(y), right / counted if counted else float("nan"), found)

    def _counted(self, outputs: Tensor, y: Tensor) -> Counted:
        return (0, 0) if self._count is None else self._count(outputs, y)

    def __getstate__(self) -> dict[str, Any]:
        scratch = ("_flat_array", "_gradient_array", "_steps", "_count")
        state = {k: v for k, v in self.__dict__.items() if k not in scratch}
        return {**state, "_model": self.trained_model(self._initial), "_batches": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._flatten()
        self._count = self._probe_accuracy()

    def _flatten(self) -> None:
        """Make the model's parameters views of one flat vector, and their gradients of another."""
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        kinds = {p.dtype for p in parameters}
        if len(kinds) != 1 or not kinds <= {torch.float32, torch.float64}:
            raise InvalidInput(
                "the model must have trainable parameters, all float32 or all float64; it has "
                + (", ".join(sorted(map(str, kinds))) or "none")
            )
        for name, module in self._model.named_modules():
            if getattr(module, "running_mean", None) is not None:
                raise InvalidInput(
                    f"the model's '{name}' ({type(module).__name__}) keeps running statistics, "
                    "which belong to no client and no version of the weights. Use "
                    "track_running_stats=False, or group normalisation."
                )
        self._initial = torch.cat([p.detach().reshape(-1) for p in parameters])
        flat, gradients = self._initial.clone(), torch.zeros_like(self._initial)
        self._flat_array, self._gradient_array = flat.numpy(), gradients.numpy()
        sizes = [p.numel() for p in parameters]
        parts = torch.split(flat, sizes), torch.split(gradients, sizes)
        for parameter, part, gradient in zip(parameters, *parts, strict=True):
            parameter.data = part.view_as(parameter)
            parameter.grad = gradient.view_as(parameter)
        self._steps = {
            layout: forward_steps(self._model, channels_last=layout) for layout in (False, True)
        }

    def _set(self, weights: Any, *, training: bool) -> None:
        self._flat_array[:] = weights
        if self._model.training != training:
            self._model.train(training)

    def _probe(self) -> bool:
        """Whether the model draws random numbers; also that model, data and loss fit together."""
        x, y = self._x[: self.batch_size], self._y[: self.batch_size]
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            before = torch.random.get_rng_state()
            try:
                loss = self.loss(self._model.train()(x), y)
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                raise InvalidInput(
                    f"the model and the loss cannot take a batch of x {tuple(x.shape)} {x.dtype} "
                    f"and y {tuple(y.shape)} {y.dtype}: {error}"
                ) from error
            if loss.numel() != 1 or loss.dtype not in (torch.float32, torch.float64):
                raise InvalidInput(
                    f"the loss must be one number per batch, a mean in float32 or float64; it has "
                    f"shape {tuple(loss.shape)} and is {loss.dtype}"
                )
            return not torch.equal(before, torch.random.get_rng_state())

    def _probe_accuracy(self) -> Count | None:
        """How right answers are counted; also that the test set can be evaluated."""
        x, y = (part[: self.batch_size] for part in self.test_set)
        self._set(self._initial, training=False)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            try:
                outputs = self._outputs(x)
                self.loss(outputs, y)
                return accuracy_of(self.loss, outputs, y, self.test_set[1])
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                raise InvalidInput(
                    f"the model and the loss cannot take samples of the test set, x "
                    f"{tuple(x.shape)} {x.dtype} and y {tuple(y.shape)} {y.dtype}: {error}"
                ) from error

    def _outputs(self, x: Tensor) -> Tensor:
        images_last = self.channels_last and x.dim() == 4
        if images_last:
            x = x.contiguous(memory_format=torch.channels_last)
        for step in self._steps[images_last]:
            x = step(x)
        return x


def local_step(
    local: Tensor, sent: Tensor, gradient: Tensor, learning_rate: float | Tensor, proximal: float
) -> Tensor:
    r"""One step at a client: :math:`x - \eta (g + \rho (x - w))`."""
    if proximal:
        gradient = gradient + proximal * (local - sent)
    return local - learning_rate * gradient


def _check_samples(what: str, samples: Samples) -> None:
    try:
        x, y = samples
        lengths = len(x), len(y)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{what} must be a pair (x, y) of tensors") from error
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        raise InvalidInput(f"{what} must be a pair (x, y) of tensors")
    if lengths[0] != lengths[1]:
        raise InvalidInput(f"{what} has {lengths[0]} inputs but {lengths[1]} labels")
    if not lengths[0]:
        raise InvalidInput(f"{what} is empty: leave out clients without data")

"""What is learned: a model, every client's samples, a test set and a loss."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sojourn._support.checks import check_whole
from sojourn.errors import InvalidInput
from sojourn.runs.measure import ACCURACY, LOSS, Measure, check_primary
from sojourn.training.problem.batches import Augment, Batches
from sojourn.training.problem.evaluation import EVALUATION_CHUNK, Measures
from sojourn.training.problem.flat import FlatModel, FlatVector, as_device, check_precision
from sojourn.training.problem.generators import seeded
from sojourn.training.problem.metrics import Count, Loss, Metric, accuracy_of, checked_metrics
from sojourn.training.problem.optimizer import (
    ClientState,
    MakeOptimizer,
    group_numbers,
    load_optimizer,
    make_optimizer,
    save_optimizer,
)
from sojourn.training.problem.samples import (
    Collate,
    DatasetSamples,
    Entry,
    Pair,
    Samples,
    TensorSamples,
    as_samples,
    is_dataset,
    shape_of,
    to_device,
)

TensorPair: TypeAlias = tuple[Tensor, Tensor]

OPTIMIZER_STATES = ("reset", "client")
BUFFERS = ("average", "client", "recompute")
RECOMPUTED_BATCHES = 16
"""Batches on which buffers are recomputed before an evaluation."""
_NOTED = ("moving", "changes_weights")
"""What the first batch showed of a model."""
FITS = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError)
"""What a model or a loss raises where a batch does not fit."""


class Problem:
    r"""A model to train on samples that stay with their clients.

    ``model`` is any ``torch.nn.Module`` in float32 or float64; its weights are the starting point,
    and it is copied, never changed. ``train_sets`` has one entry per client: a pair of tensors
    ``(x, y)``, a map-style dataset, or a function that makes the dataset when it is first needed;
    ``test_set`` is one such entry. ``loss(model(x), y)`` is the mean loss of a batch. Samples of a
    dataset are made a batch by ``collate`` (torch's own by default); ``augment(x, generator)``
    changes a batch of tensors at random before it is used.

    A client takes plain steps, or those of ``optimizer``: a class of ``torch.optim``, which is
    given the local learning rate, or a function of the parameters. With ``optimizer_state="client"``
    its state stays with the client from task to task, with ``"reset"`` every task begins anew.

    ``buffers`` says what becomes of buffers that training changes, such as the running statistics
    of batch normalisation: ``"average"`` sends them with the weights and averages what clients send
    back; ``"client"`` leaves them with their client (FedBN), and evaluations use their mean;
    ``"recompute"`` computes them on some training batches before each evaluation. Parameters that
    need no gradient are not trained and not sent.

    ``device`` is where clients compute, such as ``"cuda"`` (the CPU by default); with
    ``precision="bfloat16"`` forward passes are autocast.

    Accuracy is counted for classes (also one per place of a sequence, wherever the loss wants the
    scores), for one-hot classes, and for yes and no (one output or several, logits or
    probabilities). ``metrics`` are functions of your own, ``metric(outputs, y)`` on the whole test
    set, such as those in `sojourn.training.metrics`; ``primary`` names the one, or ``accuracy`` or
    ``loss``, that runs are judged by: targets, learning rates, tables and figures go by it.

    Weights and gradients are flat vectors of all trainable parameters, in the order of
    ``model.parameters()``. Batches, transforms, augmentation and dropout are functions of ``(seed,
    client, ordinal)`` alone, where ``ordinal`` counts the tasks of a client from 0. With
    ``channels_last`` images are laid out so in memory, which makes some convolutions faster
    (`channels_last_pays`); results are the same up to rounding.

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
        train_sets: Sequence[Entry] | Samples,
        test_set: Entry | Samples,
        loss: Loss = functional.cross_entropy,
        *,
        batch_size: int = 32,
        collate: Collate | None = None,
        augment: Augment | None = None,
        optimizer: MakeOptimizer | None = None,
        optimizer_state: str = "reset",
        buffers: str = "average",
        device: str | torch.device | None = None,
        precision: str = "float32",
        metrics: Mapping[str, Metric] | None = None,
        primary: str | None = None,
        higher_is_better: bool = True,
        channels_last: bool = False,
    ) -> None:
        options = dict(locals())  # Every argument but the data, so that `variant` forgets none.
        for name in ("self", "model", "train_sets", "test_set"):
            del options[name]
        self._options: dict[str, Any] = options
        check_whole("batch_size", batch_size)
        if not len(train_sets):
            raise InvalidInput(
                "train_sets is empty: give one pair (x, y) or one dataset per client"
            )
        self._data = as_samples(train_sets, collate, _train_set)
        whole_test = test_set if isinstance(test_set, Samples) else [test_set]
        paired = not isinstance(test_set, Samples) and not is_dataset(test_set)
        self._test = as_samples(whole_test, None if paired else collate, _test_set)
        self.metrics = checked_metrics(metrics or {})
        self.primary = (
            None if primary is None else check_primary(primary, self.metrics, higher_is_better)
        )
        self.loss, self.batch_size, self.augment = loss, batch_size, augment
        self.optimizer = optimizer
        self.optimizer_state = _chosen("optimizer_state", optimizer_state, OPTIMIZER_STATES)
        self.buffers = _chosen("buffers", buffers, BUFFERS)
        self.device, self.precision = as_device(device), check_precision(precision)
        self._elsewhere = self.device.type != "cpu"
        self._autocasts = self.precision != "float32"
        self._flat = FlatModel(
            model, device=self.device, precision=self.precision, channels_last=channels_last
        )
        self._batches: Batches | None = None
        self.uses_dropout = self._probe()
        self._initial_buffers = self._flat.buffers()
        if optimizer is not None:
            make_optimizer(optimizer, self._flat.trainable, 1e-3)
        self._count = self._probe_accuracy()

    def __repr__(self) -> str:
        lazy = isinstance(self._data, DatasetSamples)
        samples = "datasets" if lazy else f"{sum(self._data.sizes)} samples"
        return (
            f"Problem({type(self.model).__name__} with {self.dimension} weights, {samples} of "
            f"{self.clients} clients, {self.test_size} to test, batches of {self.batch_size})"
        )

    @property
    def clients(self) -> int:
        """The number of clients, :math:`n`."""
        return len(self._data)

    @property
    def dimension(self) -> int:
        """The number of trainable parameters."""
        return self._flat.size

    @property
    def measure(self) -> Measure:
        """What runs are judged by: ``primary``, or the accuracy, or the loss where there are no labels."""
        if self.primary is not None:
            return self.primary
        return LOSS if self._count is None else ACCURACY

    @property
    def train_sizes(self) -> list[int]:
        """The number of samples of each client; datasets that are made lazily are all made once."""
        return list(self._data.sizes)

    @property
    def test_size(self) -> int:
        """The number of samples to test on."""
        return self._test.sizes[0]

    @property
    def samples(self) -> Samples:
        """The samples of all clients."""
        return self._data

    @property
    def test_samples(self) -> Samples:
        """The samples to test on, as those of one client."""
        return self._test

    @property
    def train_sets(self) -> list[TensorPair]:
        """The pair of tensors of each client, where clients hold such."""
        return self._tensors(self._data).sets

    @property
    def test_set(self) -> TensorPair:
        """The pair of tensors to test on, where it is such."""
        return self._tensors(self._test).sets[0]

    @staticmethod
    def _tensors(samples: Samples) -> TensorSamples:
        if not isinstance(samples, TensorSamples):
            raise InvalidInput("this needs pairs of tensors in memory, and here are datasets")
        return samples

    @property
    def channels_last(self) -> bool:
        """Whether images are laid out channels last in memory."""
        return self._flat.channels_last

    @property
    def model(self) -> nn.Module:
        """The model's structure; its weights are those of whatever was computed last."""
        return self._flat.module

    @property
    def parameter_shapes(self) -> dict[str, torch.Size]:
        """Name and shape of each trainable parameter, in the order of the flat vector."""
        return self._flat.shapes

    @property
    def has_buffers(self) -> bool:
        """Whether training changes any buffers."""
        return bool(self._flat.moving)

    @property
    def sends_buffers(self) -> bool:
        """Whether buffers go to clients and back with the weights."""
        return bool(self._flat.moving) and self.buffers == "average"

    @property
    def stateful(self) -> bool:
        """Whether anything stays with a client from task to task."""
        own_buffers = bool(self._flat.moving) and self.buffers == "client"
        return own_buffers or (self.optimizer is not None and self.optimizer_state == "client")

    @property
    def takes_plain_steps(self) -> bool:
        """Whether clients take plain steps, and nothing but these changes the model."""
        return self.optimizer is None and not (self._flat.moving or self._flat.changes_weights)

    @property
    def takes_gradients(self) -> bool:
        """Whether a task of one plain step is its gradient, and the buffers that it leaves if they are sent."""
        changes = self._flat.moving and not self.sends_buffers
        return self.optimizer is None and not (changes or self._flat.changes_weights)

    @property
    def plain(self) -> bool:
        """Whether a task is gradients alone: no optimiser, no buffers, pairs of tensors on the CPU.

        Only such tasks can be stacked.
        """
        return (
            self.takes_plain_steps
            and self.device.type == "cpu"
            and self.precision == "float32"
            and isinstance(self._data, TensorSamples)
            and isinstance(self._test, TensorSamples)
        )

    def variant(
        self,
        *,
        train_sets: Samples | None = None,
        test_set: Samples | None = None,
        channels_last: bool | None = None,
        device: str | None = None,
        precision: str | None = None,
    ) -> "Problem":
        """The same problem on other samples, with images laid out otherwise, or on another device."""
        changes = {"channels_last": channels_last, "device": device, "precision": precision}
        given = {name: value for name, value in changes.items() if value is not None}
        model = self.trained_model(self._flat.initial)
        return Problem(
            model.train(),
            self._data if train_sets is None else train_sets,
            self._test if test_set is None else test_set,
            **{**self._options, **given},
        )

    def held_out(self, counts: Sequence[int], seed: int) -> "Problem":
        """The same problem, judged on ``counts[i]`` random samples that client i gives up."""
        left, away = self._data.split(counts, seed)
        return self.variant(train_sets=left, test_set=away)

    def initial_weights(self) -> Tensor:
        """The weights the model came with, as a flat vector."""
        return self._flat.initial.clone()

    def initial_buffers(self) -> NDArray[np.floating]:
        """The buffers that training changes, as the model came with them."""
        return self._initial_buffers.copy()

    @property
    def counters(self) -> NDArray[np.bool_]:
        """Which of the buffers' numbers are whole: of those the largest counts, not the mean."""
        return self._flat.counters

    def trained_model(self, weights: FlatVector) -> nn.Module:
        """A copy of the model with these weights, for instance ``history.weights``.

        Buffers stand behind the weights, or are those the model came with.
        """
        if len(weights) == self.dimension and self.has_buffers:
            weights = np.concatenate([weights, self._initial_buffers])
        return self._flat.copy(weights)

    def state_arrays(self, weights: FlatVector) -> dict[str, NDArray[np.generic]]:
        """The ``state_dict`` of the model with these weights, as arrays."""
        state = self.trained_model(weights).state_dict()
        return {name: tensor.numpy() for name, tensor in state.items()}

    def batch(self, client: int, number: int, seed: int) -> Pair:
        """Batch ``number`` of ``client``, augmented."""
        batches = self.batches(seed)
        chosen = batches.indices(client, number)
        if isinstance(self._data, TensorSamples):
            x, y = self._data.rows(chosen)
        else:
            x, y = self._data.batch(client, chosen.tolist(), batches.noise(client, number))
        if self.augment is not None:
            x = batches.augmented(self.augment, x, [(client, number)])
        return x, y

    def stacked_batches(self, tasks: Sequence[tuple[int, int]], seed: int) -> TensorPair:
        """The batches of several ``(client, number)``, stacked along a new first dimension."""
        batches = self.batches(seed)
        chosen = torch.cat([batches.indices(client, number) for client, number in tasks])
        x, y = self._tensors(self._data).rows(chosen)
        x = batches.augmented(self.augment, x, tasks)
        shape = len(tasks), self.batch_size
        return x.reshape(*shape, *x.shape[1:]), y.reshape(*shape, *y.shape[1:])

    def batches(self, seed: int) -> Batches:
        """The batches of every client for ``seed``."""
        if self._batches is None or self._batches.seed != seed:
            together = isinstance(self._data, TensorSamples)
            size = self._data.sizes.__getitem__ if together else self._data.size  # type: ignore[union-attr]
            offsets = np.concatenate([[0], np.cumsum(self._data.sizes)[:-1]]) if together else None
            self._batches = Batches(seed, size, self.batch_size, offsets)
        return self._batches

    def gradient(self, weights: FlatVector, client: int, ordinal: int, seed: int) -> Tensor:
        """The stochastic gradient of a client's loss on the batch of its task ``ordinal``."""
        return self.loss_and_gradient(weights, client, ordinal, seed)[1]

    def loss_and_gradient(
        self, weights: FlatVector, client: int, number: int, seed: int
    ) -> tuple[float, Tensor]:
        """The mean loss on batch ``number`` of ``client``, and its gradient."""
        loss, gradient = self.loss_and_array(weights, client, number, seed)
        return loss, torch.from_numpy(gradient)

    def loss_and_array(
        self, weights: FlatVector, client: int, number: int, seed: int
    ) -> tuple[float, NDArray[np.floating]]:
        """The same with the gradient as a NumPy array, which costs less to make.

        Where buffers stand behind the weights, theirs after the batch stand behind the gradient.
        """
        flat = self._flat
        flat.borrow(weights)
        loss = self._batch_loss(client, number, seed)
        return loss.item(), flat.gradient(loss, with_buffers=len(weights) > flat.size)

    def loss_and_difference(
        self,
        weights: FlatVector,
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
        sent = local = torch.as_tensor(weights, device="cpu")
        total = 0.0
        for number in range(ordinal * steps, (ordinal + 1) * steps):
            loss, gradient = self.loss_and_gradient(local, client, number, seed)
            local = local_step(local, sent, gradient, learning_rate, proximal)
            total += loss
        return total / steps, local - sent

    def train_client(
        self,
        sent: FlatVector,
        client: int,
        ordinal: int,
        seed: int,
        steps: int,
        learning_rate: float,
        *,
        proximal: float = 0.0,
        state: ClientState | None = None,
        shift: NDArray[np.floating] | None = None,
    ) -> tuple[float, Tensor, NDArray[np.floating]]:
        """A task of any kind, one step after the other: mean loss, move in float64, buffers at its end.

        ``sent`` are weights, with buffers behind them where `sends_buffers`. ``state`` is what the
        client has from its task before; it is replaced by what it has now. ``shift`` is added to every
        gradient.
        """
        flat, own = self._flat, {} if state is None else state
        flat.set(sent, training=True)
        begin = np.asarray(sent[: self.dimension])
        if begin.dtype != self._flat.initial.numpy().dtype:
            begin = flat.weights().numpy()
        if not self.sends_buffers:
            flat.set_buffers(own.get("buffers", self._initial_buffers))
        optimizer = None
        if self.optimizer is not None:
            optimizer = make_optimizer(self.optimizer, flat.trainable, learning_rate)
            made_with = group_numbers(optimizer)
            if self.optimizer_state == "client":
                load_optimizer(optimizer, own)
        total = 0.0
        added = None
        if shift is not None:
            kind = flat.initial.dtype
            added = torch.as_tensor(shift, dtype=kind, device="cpu").to(self.device)
        for number in range(ordinal * steps, (ordinal + 1) * steps):
            total += self._backward(client, number, seed)
            if added is not None:
                flat.shift_gradient(added)
            if proximal:
                flat.add_to_gradient(proximal, begin)
            if optimizer is not None:
                optimizer.step()
            else:
                flat.step(learning_rate)
        if optimizer is not None and self.optimizer_state == "client":
            save_optimizer(optimizer, own, made_with)
        buffers = flat.buffers()
        if self.buffers == "client" and len(buffers):
            own["buffers"] = buffers
        return total / steps, torch.from_numpy(flat.moved_from(begin)), buffers

    def _backward(self, client: int, number: int, seed: int) -> float:
        """The loss on a batch, whose gradient is left in the parameters."""
        loss = self._batch_loss(client, number, seed)
        self._flat.differentiate(loss)
        return loss.item()

    def _batch_loss(self, client: int, number: int, seed: int) -> Tensor:
        x, y = self.batch(client, number, seed)
        try:
            if self.uses_dropout:
                with seeded(self.batches(seed).noise(client, number), self.device):
                    loss = self._loss(x, y)
            else:
                loss = self._loss(x, y)
        except FITS as error:
            error.add_note(
                f"in a batch of {_train_set(client)}, x {shape_of(x)} and y {shape_of(y)}"
                f"{_advice(self.model, x, error)}"
            )
            raise
        if self._flat.still:
            self._flat.check_still(_train_set(client))
        return loss

    def _loss(self, x: Any, y: Any) -> Tensor:
        if self._elsewhere:
            x, y = to_device(x, self.device), to_device(y, self.device)
        if self._autocasts:
            with self._flat.autocast():
                return self.loss(self._flat.outputs(x), y)
        return self.loss(self._flat.outputs(x), y)

    def evaluate(self, weights: FlatVector) -> tuple[float, float]:
        """Mean loss and accuracy on the test set; the accuracy is ``nan`` where there is none."""
        return self.measures(weights)[:2]

    def measures(self, weights: FlatVector) -> Measures:
        """Loss, accuracy and metrics on the test set; buffers may stand behind the weights."""
        if self._flat.moving and self.buffers == "recompute":
            self._recompute_buffers(weights)
        elif self._flat.moving and len(weights) == self.dimension:
            self._flat.set_buffers(self._initial_buffers)
        self._flat.set(weights, training=False)
        total, right, counted = 0.0, 0, 0
        outputs_seen: list[Tensor] = []
        labels_seen: list[Tensor] = []
        with torch.no_grad():
            for x, y, size in _test_chunks(self._test):
                wanted = to_device(y, self.device)
                with self._flat.autocast():
                    outputs = self._flat.outputs(to_device(x, self.device))
                    total += self.loss(outputs, wanted).item() * size
                if self._count is not None:
                    more, of = self._count(outputs, wanted)
                    right, counted = right + more, counted + of
                if self.metrics:
                    outputs_seen.append(outputs.cpu())
                    labels_seen.append(y)
            found = {}
            if self.metrics:
                whole, labels = torch.cat(outputs_seen), torch.cat(labels_seen)
                found = {
                    name: float(metric(whole, labels)) for name, metric in self.metrics.items()
                }
        accuracy = right / counted if counted else float("nan")
        return Measures(total / self.test_size, accuracy, found)

    def _recompute_buffers(self, weights: FlatVector) -> None:
        """Running statistics over training batches of clients spread over the fleet."""
        self._flat.set(weights[: self.dimension], training=True)
        self._flat.set_buffers(self._initial_buffers)
        norms: list[Any] = [
            module
            for name, module in self.model.named_modules()
            if hasattr(module, "reset_running_stats")
            and f"{name}.running_mean".lstrip(".") in self._flat.moving
        ]
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # The plain mean over batches.
        clients = np.linspace(0, self.clients - 1, min(self.clients, RECOMPUTED_BATCHES))
        with torch.no_grad():
            for number in range(RECOMPUTED_BATCHES):
                client = round(clients[number % len(clients)])
                x, _ = self.batch(client, number, seed=0)
                with seeded(self.batches(0).noise(client, number), self.device):
                    self._flat.outputs(to_device(x, self.device))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum

    def fingerprint(self) -> list[object]:
        """What identifies the data: of pairs of tensors all labels, and one input per client."""
        test = self._test
        held = [test.x[0], test.y] if isinstance(test, TensorSamples) else test.fingerprint()
        return [*held, *self._data.fingerprint()]

    def extras(self) -> dict[str, object]:
        """What else a run depends on, where it is not as usual."""
        found: dict[str, object] = {
            "collate": self._options["collate"],
            "optimizer": self.optimizer,
        }
        if self.optimizer is not None:
            found["optimizer_state"] = self.optimizer_state
        if self.has_buffers:
            found["buffers"] = self.buffers
        if self.precision != "float32":
            found["precision"] = self.precision
        return {name: value for name, value in found.items() if value is not None}

    def __getstate__(self) -> dict[str, object]:
        given = ("_flat", "_count", "_batches")
        state = {k: v for k, v in self.__dict__.items() if k not in given}
        model = self.trained_model(self._flat.initial)
        flat = {name: getattr(self._flat, name) for name in _NOTED}
        return {**state, "model": model, "noted": flat, "last": self.channels_last}

    def __setstate__(self, state: dict[str, Any]) -> None:
        model, noted, last = state.pop("model"), state.pop("noted"), state.pop("last")
        self.__dict__.update(state)
        self._flat = FlatModel(
            model, device=self.device, precision=self.precision, channels_last=last
        )
        vars(self._flat).update(noted)
        self._batches = None
        self._flat.note_buffers()
        self._count = self._probe_accuracy()

    def _probe(self) -> bool:
        """Whether the model draws random numbers; also that model, data and loss fit together."""
        x, y = self._data.first(0, self.batch_size)
        with torch.random.fork_rng(devices=_generators(self.device)), torch.no_grad():
            before = _generator_states(self.device)
            self.model.train()
            try:
                with self._flat.watching():
                    loss = self._loss(x, y)
            except InvalidInput:
                raise
            except FITS as error:
                raise InvalidInput(
                    f"the model and the loss cannot take a batch of x {shape_of(x)} "
                    f"and y {shape_of(y)}: {str(error).rstrip('.')}{_advice(self.model, x, error)}"
                ) from error
            if loss.numel() != 1 or loss.dtype not in (torch.float32, torch.float64):
                raise InvalidInput(
                    f"the loss must be one number per batch, a mean in float32 or float64; it has "
                    f"shape {tuple(loss.shape)} and is {loss.dtype}"
                )
            after = _generator_states(self.device)
            _note_changes(self._data, x, y)
            self._check_finite(loss)
            return not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))

    def _check_finite(self, first: Tensor) -> None:
        """Refuse a loss that is not finite before the first step: no learning rate would help."""
        if isinstance(self._data, TensorSamples):
            for client, (x, y) in enumerate(self._data.sets):
                if x.is_floating_point() and not torch.isfinite(x.sum()):
                    wrong = ~torch.isfinite(x.reshape(len(x), -1)).all(1)
                    # A model may know what to do with missing values.
                    if wrong.any() and not torch.isfinite(self._loss(x[wrong], y[wrong])).all():
                        raise InvalidInput(
                            f"{_train_set(client)} has values in x that are not finite (nan or inf), "
                            f"the first in sample {int(wrong.nonzero()[0])}: the loss is not finite either"
                        )
        if not torch.isfinite(first).all():
            raise InvalidInput(
                f"the loss of a batch of client 0 is {first.item():g} before the first step: look for "
                "missing values in its samples, and for logarithms or divisions by 0 in the loss"
            )

    def _check_labels(self, outputs: object) -> None:
        """Refuse labels in tensors that a cross-entropy cannot take, with client and sample."""
        usual = self.loss is functional.cross_entropy or type(self.loss) is nn.CrossEntropyLoss
        if not usual or not isinstance(outputs, Tensor) or outputs.dim() < 2:
            return
        ignored = getattr(self.loss, "ignore_index", -100)
        for samples, what in ((self._data, _train_set), (self._test, _test_set)):
            if not isinstance(samples, TensorSamples) or samples.y.is_floating_point():
                continue
            outside = (samples.y < 0) | (samples.y >= outputs.shape[1])
            if not (outside := outside & (samples.y != ignored)).any():
                continue
            places = enumerate(torch.split(outside, samples.sizes))
            client, wrong = next((k, own) for k, own in places if own.any())
            sample = int(wrong.nonzero()[0, 0])
            label = int(samples.sets[client][1][sample][wrong[sample]].flatten()[0])
            raise InvalidInput(
                f"{what(client)} has the label {label} in sample {sample}, and the model has "
                f"{outputs.shape[1]} outputs: labels are 0 to {outputs.shape[1] - 1}"
            )

    def _probe_accuracy(self) -> Count | None:
        """How right answers are counted; also that the test set can be evaluated."""
        x, y = self._test.first(0, self.batch_size)
        self._flat.set(self._flat.initial, training=False)
        with torch.random.fork_rng(devices=_generators(self.device)), torch.no_grad():
            try:
                wanted = to_device(y, self.device)
                with self._flat.autocast():
                    outputs = self._flat.outputs(to_device(x, self.device))
                    self.loss(outputs, wanted)
                _note_changes(self._test, x, y)
                if not (isinstance(outputs, Tensor) and isinstance(wanted, Tensor)):
                    return None
                self._check_labels(outputs)
                everyone = next(_test_chunks(self._test))[1]
                if isinstance(self._test, TensorSamples):
                    everyone = self._test.y
                return accuracy_of(self.loss, outputs, wanted, to_device(everyone, self.device))
            except InvalidInput:
                raise
            except FITS as error:
                raise InvalidInput(
                    f"the model and the loss cannot take samples of the test set, x "
                    f"{shape_of(x)} and y {shape_of(y)}: {str(error).rstrip('.')}{_advice(self.model, x, error)}"
                ) from error


def chunks(samples: Samples, client: int = 0) -> Iterator[tuple[Any, Any, int]]:
    """All samples of a client in order, in batches to evaluate, with their sizes."""
    if isinstance(samples, TensorSamples):
        x, y = samples.sets[client]
        parts = torch.split(x, EVALUATION_CHUNK), torch.split(y, EVALUATION_CHUNK)
        for a, b in zip(*parts, strict=True):
            yield *((a, b) if samples.lent else (a.clone(), b.clone())), len(b)
        return
    size = samples.size(client)
    for begin in range(0, size, EVALUATION_CHUNK):
        places = range(begin, min(size, begin + EVALUATION_CHUNK))
        yield *samples.batch(client, places, seed=begin), len(places)


def _advice(model: nn.Module, x: object, error: Exception) -> str:
    """What to do about the two mistakes that PyTorch's own messages leave open."""
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if isinstance(x, Tensor) and x.is_floating_point() and kinds and x.dtype not in kinds:
        kind = str(next(iter(kinds))).removeprefix("torch.")
        return f". The weights are {kind}: give x.to(torch.{kind}), or a model of {x.dtype}"
    if isinstance(error, IndexError) and "out of bounds" in str(error):
        return ". Labels of a cross-entropy are 0 to the number of outputs minus one"
    return ""


def _note_changes(samples: Samples, x: Any, y: Any) -> None:
    """After a first use of a copy: a model or a loss that changes it in place is given copies only."""
    if isinstance(samples, TensorSamples) and (x._version or y._version):
        samples.lent = False


def _test_chunks(samples: Samples) -> Iterator[tuple[Any, Any, int]]:
    """As `chunks`, of a test set, whose batches are the same every time and are kept."""
    if isinstance(samples, TensorSamples):
        yield from chunks(samples)
        return
    size = samples.size(0)
    for begin in range(0, size, EVALUATION_CHUNK):
        end = min(size, begin + EVALUATION_CHUNK)
        yield *samples.test_batch(begin, end), end - begin


def local_step(
    local: Tensor, sent: Tensor, gradient: Tensor, learning_rate: float | Tensor, proximal: float
) -> Tensor:
    r"""One step at a client: :math:`x - \eta (g + \rho (x - w))`."""
    if proximal:
        gradient = gradient + proximal * (local - sent)
    return local - learning_rate * gradient


def _train_set(client: int) -> str:
    return f"the train set of client {client}"


def _test_set(_: int) -> str:
    return "the test set"


def _chosen(name: str, value: str, among: Sequence[str]) -> str:
    if value not in among:
        raise InvalidInput(f"{name} must be one of {', '.join(among)}; it is '{value}'")
    return value


def _generators(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []


def _generator_states(device: torch.device) -> list[Tensor]:
    on_device = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.random.get_rng_state(), *on_device]

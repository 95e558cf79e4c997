"""A model whose parameters are one flat vector: set, run, differentiate, on its device."""

import copy
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode

from sojourn.errors import InvalidInput
from sojourn.rules.arrays import ALIGNMENT, joined, long_vector
from sojourn.training.problem.autograd import (
    GradientSink,
    backward,
    check_no_parameter_hooks,
    forward_steps,
)
from sojourn.types import Vector

PRECISIONS = ("float32", "bfloat16")


FlatVector: TypeAlias = Tensor | Vector
"""Weights, and perhaps buffers behind them, as one vector."""

MANY_WEIGHTS = 2**15
"""From here on memory traffic costs more than calls: gradients are collected, not added to zeros."""
LENT_WEIGHTS = 2**19
"""From here on gradients are computed at the weights that were sent, not at a copy of them."""


class _Still(NamedTuple):
    """A buffer that training leaves alone: where it is, which tensor, how often changed, its value."""

    owner: nn.Module
    key: str
    buffer: Tensor
    version: int
    value: Tensor


class _Place(NamedTuple):
    """A parameter, its part of the vector of weights, and where that is: offset, shape and strides."""

    parameter: nn.Parameter
    weights: Tensor
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]


class _WeightChanges(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether an operation writes to memory of the parameters."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = {_memory(parameter) for parameter in parameters}
        self.found = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; to skip it all the same, torch would load its compiler for seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        given = kwargs or {}
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else given.get(argument.name)
                written = value if isinstance(value, list | tuple) else [value]
                self.found |= any(
                    isinstance(entry, Tensor) and _memory(entry) in self._memory
                    for entry in written
                )
        return func(*args, **given)


def _copied(model: nn.Module) -> nn.Module:
    """A copy of a model whose parameters are trained by themselves.

    Those of a scripted module come out of ``deepcopy`` as results of a copying operation.
    """
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        raise InvalidInput(
            "the model has lazy layers whose parameters have no shape yet: call it once with a batch "
            "before you give it to Problem"
        )
    made = copy.deepcopy(model)
    for parameter in made.parameters():
        if not parameter.is_leaf:
            parameter.detach_().requires_grad_()
    return made


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class FlatModel:
    """A copy of a model, whose trainable parameters are views of one vector.

    Buffers that a training step changes, such as the running statistics of batch normalisation,
    are a second vector, which stands behind the weights where both are given; integer ones among
    them are counters. Frozen parameters and other buffers stay as they came with the model.
    ``changes_weights`` says that the model itself does, such as one that limits the norm of its rows
    whenever it is called.
    """

    def __init__(
        self, model: nn.Module, *, device: torch.device, precision: str, channels_last: bool
    ) -> None:
        check_no_parameter_hooks(model)
        self.module = _copied(model).to(device)
        self.device, self.precision, self.channels_last = device, precision, channels_last
        self.moving: list[str] = []
        self.still: dict[str, _Still] = {}
        self.changes_weights = False
        self._borrows = False
        self._versions: list[int] = []
        self._moving_shapes: list[torch.Size] = []
        self.flatten()

    def flatten(self) -> None:
        """Make the parameters views of one flat vector, and their gradients of another."""
        parameters = self.trainable
        kinds = {p.dtype for p in parameters}
        if len(kinds) != 1 or not kinds <= {torch.float32, torch.float64}:
            raise InvalidInput(
                "the model must have trainable parameters, all float32 or all float64; it has "
                + (", ".join(sorted(map(str, kinds))) or "none")
            )
        flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.initial = flat.clone().cpu()
        self._flat, self.size, self._kind = flat, flat.numel(), self.initial.numpy().dtype
        self._array = flat.numpy() if self.device.type == "cpu" else None
        self._places: list[_Place] = []
        offset = 0
        for parameter in parameters:
            part = flat[offset : offset + parameter.numel()].view(parameter.shape)
            parameter.data = part
            self._places.append(_Place(parameter, part, offset, part.shape, part.stride()))
            offset += parameter.numel()
        self._zero = self._kind.type(0)
        self._collects = self._array is not None and self.size >= MANY_WEIGHTS
        self._lends = self._collects and self.size >= LENT_WEIGHTS
        self._sink = GradientSink()
        self._renew_gradients(0)
        sinks = self._collects and self.precision == "float32"
        self._steps = forward_steps(self.module, sink=self._sink if sinks else None)
        self._image_steps = forward_steps(self.module, channels_last=self.channels_last)

    def _renew_gradients(self, behind: int) -> None:
        """Make the gradients of the parameters views of another vector, with room ``behind`` it."""
        if self._collects:
            self._gradient_array = long_vector(self.size + behind, self._kind)
            self._gradients = torch.from_numpy(self._gradient_array)[: self.size]
        else:
            # Of torch, so that it begins at a line of the cache: NumPy's short vectors need not.
            self._gradients = torch.zeros_like(self._flat)
            if self._array is not None:
                self._gradient_array = self._gradients.numpy()
        for parameter, _, offset, shape, stride in self._places:
            parameter.grad = self._gradients.as_strided(shape, stride, offset)
        if self._collects:
            parts = [(p, p.grad, p.grad.numpy()) for p in self.trainable if p.grad is not None]
            self._large = [part for part in parts if part[0].numel() >= MANY_WEIGHTS]
            self._small = [array for p, _, array in parts if p.numel() < MANY_WEIGHTS]
            self._sink.places = {parameter: gradient for parameter, gradient, _ in self._large}
            self._unheld = self._references()

    def _references(self) -> int:
        """How often the memory of the gradients is referred to, also by views of it."""
        vector = self._gradient_array
        return sys.getrefcount(vector if vector.base is None else vector.base)

    def _held(self) -> bool:
        """Whether somebody has kept the gradient that was returned last."""
        return self._references() > self._unheld

    @property
    def trainable(self) -> list[nn.Parameter]:
        """The parameters that are trained, in the order of the vector."""
        return [p for p in self.module.parameters() if p.requires_grad]

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Name and shape of each trainable parameter, in the order of the vector."""
        return {n: p.shape for n, p in self.module.named_parameters() if p.requires_grad}

    def set(self, weights: FlatVector, *, training: bool) -> None:
        """Take these weights, and buffers if any stand behind them."""
        size = self.size
        vector = weights[:size] if len(weights) > size else weights
        if self._borrows or self.changes_weights:
            for place in self._places:
                place.parameter.data = place.weights
            self._borrows = False
        if self._array is not None:
            self._array[:] = vector
        else:
            self._flat.copy_(torch.as_tensor(vector, device="cpu"))
        if len(weights) > size:
            self.set_buffers(weights[size:])
        if self.module.training != training:
            self.module.train(training)

    def borrow(self, weights: FlatVector) -> None:
        """Compute gradients at these weights, where they are if that is possible: nothing changes them.

        To copy a version that has been waiting in memory takes as long as a sixth of its gradient.
        At an address like that of the copy the bits are the same.
        """
        vector = self._lendable(weights) if self._lends else None
        if vector is None:
            self.set(weights, training=True)
            return
        for parameter, _, offset, shape, stride in self._places:
            parameter.data = vector.as_strided(shape, stride, offset)
        self._borrows = True
        self._versions = [place.parameter._version for place in self._places]
        if len(weights) > self.size:
            self.set_buffers(vector[self.size :])
        if not self.module.training:
            self.module.train()

    def _lendable(self, weights: FlatVector) -> Tensor | None:
        """These weights where they are, if gradients can be computed there."""
        if (
            self.changes_weights
            or not isinstance(weights, np.ndarray)
            or weights.dtype != self._kind
            or not (weights.flags.c_contiguous and weights.flags.writeable)
        ):
            return None
        vector = torch.from_numpy(weights)
        return None if (vector.data_ptr() - self._flat.data_ptr()) % ALIGNMENT else vector

    def weights(self) -> Tensor:
        """The weights as they are now, in the host's memory."""
        return self._flat.detach().clone().cpu()

    def moved_from(self, begin: NDArray[np.floating]) -> NDArray[np.float64]:
        """How far the weights are from ``begin``: exact, where both are in single precision."""
        end = self.weights().numpy() if self._array is None else self._array
        found = long_vector(len(begin), np.float64)
        np.subtract(end, begin, out=found, dtype=np.float64)
        return found

    def outputs(self, x: Any) -> Any:
        """What the model makes of a batch."""
        steps = self._steps
        if self.channels_last and x.dim() == 4:
            x, steps = x.contiguous(memory_format=torch.channels_last), self._image_steps
        for step in steps:
            x = step(x)
        return x

    def autocast(self) -> AbstractContextManager[object]:
        """Inside, forward passes are computed in the precision asked for."""
        if self.precision == "bfloat16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def differentiate(self, loss: Tensor) -> None:
        """Leave the gradient of a loss in the parameters."""
        if self._collects and self._held():
            self._renew_gradients(0)
        if self._array is not None:
            self._gradient_array.fill(0)
        else:
            self._gradients.zero_()
        backward(loss)
        if self.changes_weights:
            self._take_changes()

    def _take_changes(self) -> None:
        """Put weights that the model has replaced by others into the vector."""
        for place in self._places:
            if place.parameter.data_ptr() != place.weights.data_ptr():
                place.weights.copy_(place.parameter.data)
                place.parameter.data = place.weights

    def gradient(self, loss: Tensor, *, with_buffers: bool = False) -> NDArray[np.floating]:
        """The gradient of a loss, as an array of its own, and buffers behind it if they are wanted."""
        behind = self.buffers() if with_buffers else None
        if self._collects:
            return self._collected(loss, behind)
        self.differentiate(loss)
        found = self._gradients.cpu().numpy() if self._array is None else self._gradient_array
        if behind is not None:
            return joined(found, behind, found.dtype)
        return found.copy()

    def _collected(self, loss: Tensor, behind: NDArray[np.floating] | None) -> NDArray[np.floating]:
        """The same to the bit, in at most one pass over the memory of large parameters instead of three.

        They have no gradient before, so that they keep what the backward pass makes; where there is one,
        it is cleared before and added to. Adding zero to what was made turns -0 into 0, as adding to zero
        does. The vector itself is returned: the next gradient goes into another one if it is still held.
        """
        room = 0 if behind is None else len(behind)
        if self._held() or self._gradient_array.size != self.size + room:
            self._renew_gradients(room)
        found = self._gradient_array
        if behind is not None:
            found[self.size :] = behind
        for array in self._small:
            array.fill(0)
        for parameter, _, _ in self._large:
            parameter.grad = None
        with self._sink:
            backward(loss)
        if self._borrows:
            self._check_unchanged()
        for parameter, usual, part in self._large:
            made, parameter.grad = parameter.grad, usual
            filled = parameter in self._sink.filled
            if made is not None:
                dense = made if made.layout == torch.strided else made.to_dense()
                np.add(dense.numpy(), part if filled else self._zero, out=part)
            elif not filled:
                part.fill(0)
        return found[:]

    def _check_unchanged(self) -> None:
        """That the model left the weights alone that it was lent, as the first batch did."""
        if self._versions != [place.parameter._version for place in self._places]:
            raise InvalidInput(
                "the model changed its own weights in a batch, and left them alone in the first one, so "
                "that the server's were changed. Change them whenever the model is called, or never."
            )

    def add_to_gradient(self, proximal: float, begin: NDArray[np.floating]) -> None:
        """The pull of a task back to the weights that it began with."""
        start = torch.from_numpy(begin).to(self.device)
        self._gradients.add_(self._flat.detach() - start, alpha=proximal)

    def shift_gradient(self, shift: Tensor) -> None:
        """What a rule adds to every gradient of a task."""
        self._gradients.add_(shift)

    def step(self, learning_rate: float) -> None:
        """One plain step along the gradient that was left last."""
        self._flat.sub_(learning_rate * self._gradients)

    def tensors(self, names: list[str]) -> list[Tensor]:
        """Buffers by name."""
        known = dict(self.module.named_buffers())
        return [known[name] for name in names]

    def _moving_tensors(self) -> list[Tensor]:
        """The buffers that training changes, of the shapes that they came with."""
        tensors = self.tensors(self.moving)
        for name, buffer, shape in zip(self.moving, tensors, self._moving_shapes, strict=True):
            if buffer.shape != shape:
                raise _reshaped(name, shape, buffer.shape)
        return tensors

    def buffers(self) -> Vector:
        """The buffers that training changes, as a vector of the weights' kind."""
        found = [b.detach().reshape(-1).to(self.initial.dtype) for b in self._moving_tensors()]
        return torch.cat(found).cpu().numpy() if found else np.empty(0, self.initial.numpy().dtype)

    def set_buffers(self, values: FlatVector) -> None:
        """Take these buffers."""
        buffers = self._moving_tensors()
        vector = torch.as_tensor(values, device="cpu")
        parts = torch.split(vector, [b.numel() for b in buffers])
        with torch.no_grad():
            for buffer, part in zip(buffers, parts, strict=True):
                buffer.copy_(part.view_as(buffer).to(buffer.dtype))

    @property
    def counters(self) -> NDArray[np.bool_]:
        """Which of the buffers' numbers are whole: of those the largest counts, not the mean."""
        marks = [
            np.full(b.numel(), not b.dtype.is_floating_point) for b in self.tensors(self.moving)
        ]
        return np.concatenate(marks) if marks else np.empty(0, dtype=bool)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note which buffers the block changes, and whether weights; and put both back."""
        before = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        with _WeightChanges([place.parameter for place in self._places]) as changes:
            yield
        self.changes_weights = changes.found or any(
            place.parameter.data_ptr() != place.weights.data_ptr() for place in self._places
        )
        self.set(self.initial, training=True)
        for name, buffer in self.module.named_buffers():
            if buffer.shape != before[name].shape:
                raise _reshaped(name, before[name].shape, buffer.shape)
            if not torch.equal(buffer, before[name]):
                self.moving.append(name)
                buffer.copy_(before[name])
        self.note_buffers()

    def note_buffers(self) -> None:
        """Remember the shapes of buffers that move, and those that do not, to see that this stays so."""
        self._moving_shapes = [buffer.shape for buffer in self.tensors(self.moving)]
        owners = {
            f"{prefix}{'.' if prefix else ''}{key}": (module, key)
            for prefix, module in self.module.named_modules()
            for key, buffer in module._buffers.items()
            if buffer is not None
        }
        self.still = {
            name: _Still(*owner, buffer, buffer._version, buffer.clone())
            for name, owner in owners.items()
            if name not in self.moving
            for buffer in [owner[0]._buffers[owner[1]]]
            if buffer is not None
        }

    def check_still(self, what: str) -> None:
        """That a batch of ``what`` changed no buffer that the first batch left alone."""
        for name, held in self.still.items():
            now = held.owner._buffers.get(held.key)
            if now is held.buffer and now._version == held.version:
                continue
            if now is None or now.shape != held.value.shape or not torch.equal(now, held.value):
                raise InvalidInput(
                    f"the model's buffer '{name}' stayed as it was in a first training step, and a "
                    f"batch of {what} changed it: buffers of clients would differ, and go from one to "
                    "the other unseen. Change it with every batch, or with none, or make it no buffer."
                )
            self.still[name] = held._replace(buffer=now, version=now._version)

    def copy(self, weights: FlatVector) -> nn.Module:
        """A copy of the model with these weights, and buffers if any stand behind them."""
        model = _copied(self.module).eval().cpu()
        flat = torch.as_tensor(weights, dtype=self.initial.dtype, device="cpu")
        trainable = [p for p in model.parameters() if p.requires_grad]
        sizes = [p.numel() for p in trainable]
        parts = torch.split(flat[: sum(sizes)], sizes)
        with torch.no_grad():
            for parameter, part in zip(trainable, parts, strict=True):
                parameter.data = part.clone().view_as(parameter)
                parameter.grad = None
            if len(flat) > sum(sizes):
                known = dict(model.named_buffers())
                buffers = [known[name] for name in self.moving]
                rest = torch.split(flat[sum(sizes) :], [b.numel() for b in buffers])
                for buffer, part in zip(buffers, rest, strict=True):
                    buffer.copy_(part.view_as(buffer).to(buffer.dtype))
        return model


def _reshaped(name: str, before: torch.Size, after: torch.Size) -> InvalidInput:
    return InvalidInput(
        f"the model's buffer '{name}' had the shape {tuple(before)} and has {tuple(after)} after a "
        "training step: buffers of clients would differ in shape, and could not be averaged. Keep its "
        "shape, or make it no buffer."
    )


def as_device(name: str | torch.device | None) -> torch.device:
    """The device called ``name``, if it is there; the CPU by default."""
    try:
        device = torch.device("cpu" if name is None else name)
    except RuntimeError as error:
        raise InvalidInput(f"device '{name}': PyTorch knows no such device ({error})") from error
    there = {
        "cpu": True,
        "meta": False,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }.get(device.type, True)
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if not there or (device.index or 0) >= count:
        raise InvalidInput(
            f"device '{name}' is not on this machine, or this PyTorch was built without it. Leave "
            "out device to use the CPU."
        )
    return device


def check_precision(precision: str) -> str:
    """``precision``, if it is one of those that forward passes are computed in."""
    if precision not in PRECISIONS:
        raise InvalidInput(
            f"precision '{precision}': choose among {', '.join(PRECISIONS)}; float32 is the model's "
            "own precision, and bfloat16 is autocast in the forward pass"
        )
    return precision

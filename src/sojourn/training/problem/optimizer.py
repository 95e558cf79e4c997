"""The optimiser of a client's own steps, and its state as plain arrays that go from task to task."""

import inspect
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from sojourn.errors import InvalidInput

MakeOptimizer: TypeAlias = Callable[..., Optimizer]
"""A class of ``torch.optim``, or a function of parameters (and, if it takes ``lr``, of the rate)."""

ClientState: TypeAlias = dict[str, NDArray[Any]]
"""What stays with a client from task to task: state of its optimiser, and its own buffers."""

_PREFIX = "optimizer/"
_GROUP = "group"
_EXPECTED = (
    "optimizer must be a class of torch.optim, or a function of parameters that returns one, such "
    "as lambda p: torch.optim.AdamW(p, lr=1e-3)"
)


def make_optimizer(
    make: MakeOptimizer, parameters: Iterable[nn.Parameter], learning_rate: float
) -> Optimizer:
    """The optimiser that ``make`` gives for these parameters.

    Where ``make`` takes ``lr``, as the classes of ``torch.optim`` do, it is given the local learning
    rate of the run; a function of the parameters alone says its own.
    """
    given, named = list(parameters), cast("object", make)
    if not callable(named):
        one = ", and every client needs one of its own" if isinstance(named, Optimizer) else ""
        raise InvalidInput(f"{_EXPECTED}; this is of type {type(named).__name__}{one}")
    try:
        takes_rate = "lr" in inspect.signature(make).parameters
    except (TypeError, ValueError):
        takes_rate = False
    try:
        made: Any = make(given, lr=learning_rate) if takes_rate else make(given)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{_EXPECTED}; when it was called: {error}") from error
    if not isinstance(made, Optimizer):
        raise InvalidInput(f"{_EXPECTED}; it returned a {type(made).__name__}")
    if _needs_closure(cast("Any", type(made))):
        raise InvalidInput(
            f"{type(made).__name__} computes the loss several times in one step, by a closure, and a "
            "local step has one batch and one gradient. Use an optimiser that steps by the gradient."
        )
    kept = {id(p) for group in made.param_groups for p in group["params"]}
    if not kept & {id(p) for p in given}:
        raise InvalidInput(
            "the optimizer keeps none of the parameters that it was given, so that nothing would be "
            "trained: pass them on, as in lambda p: torch.optim.AdamW(p, lr=1e-3)"
        )
    return made


@lru_cache(maxsize=64)
def _needs_closure(kind: Any) -> bool:
    """Whether optimisers of this class have to be given the loss as a function."""
    closure = inspect.signature(kind.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


Numbers: TypeAlias = dict[tuple[int, str], float]
"""The numbers of an optimiser's groups of parameters, such as its learning rates."""


def group_numbers(optimizer: Optimizer) -> Numbers:
    """The learning rates and other numbers of an optimiser, by group and name."""
    return {
        (place, name): value
        for place, group in enumerate(optimizer.param_groups)
        for name, value in group.items()
        if isinstance(value, int | float)
    }


def save_optimizer(optimizer: Optimizer, state: ClientState, made_with: Numbers) -> None:
    """Put the state of an optimiser into ``state``, in place of what was there.

    Numbers of its groups that differ from those that it was ``made_with`` belong to it: some keep there
    how far a schedule or an estimate of the learning rate is.
    """
    for name in [name for name in state if name.startswith(_PREFIX)]:
        del state[name]
    for place, entry in optimizer.state_dict()["state"].items():
        for name, value in entry.items():
            if value is None:
                continue
            if not isinstance(value, torch.Tensor | int | float):
                raise InvalidInput(
                    f"optimizer_state='client', but {type(optimizer).__name__} holds '{name}' as a "
                    f"{type(value).__name__}, which cannot be saved between tasks. Use "
                    "optimizer_state='reset', or an optimiser whose state is tensors and numbers."
                )
            array = (
                value.detach().cpu().numpy().copy() if isinstance(value, torch.Tensor) else value
            )
            kind = "tensor" if isinstance(value, torch.Tensor) else "number"
            state[f"{_PREFIX}{place}/{kind}/{name}"] = np.asarray(array)
    for (group, name), number in group_numbers(optimizer).items():
        if number != made_with.get((group, name)):
            state[f"{_PREFIX}{group}/{_GROUP}/{name}"] = np.asarray(number)


def load_optimizer(optimizer: Optimizer, state: ClientState) -> None:
    """Give an optimiser the state that `save_optimizer` saved, if there is any."""
    entries: dict[int, dict[str, Any]] = {}
    for key, array in state.items():
        if key.startswith(_PREFIX):
            place, kind, name = key.removeprefix(_PREFIX).split("/", 2)
            if kind == _GROUP:
                optimizer.param_groups[int(place)][name] = array.item()
                continue
            value = torch.from_numpy(array.copy()) if kind == "tensor" else array.item()
            entries.setdefault(int(place), {})[name] = value
    if entries:
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": entries, "param_groups": groups})

"""The model of a deployment as a ``state_dict`` file, at any time: from its last checkpoint.

A checkpoint holds the weights as one flat vector, and the `Layout` that says which part of it is
which parameter, so that a model can be taken out without the app that it was trained by.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn._support.arrays import write_tensors
from sojourn._support.configuration import check_shape
from sojourn.deployment.checkpoint import read_checkpoint
from sojourn.deployment.guard.guard import named
from sojourn.deployment.guard.screens import Arrays
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.rules.state import AVERAGE
from sojourn.runs.folder import RunFolder
from sojourn.types import Vector

CHECKPOINT = "checkpoint.npz"
META = {"version": int, "extra": {"layout?": [list]}}
"""What is looked at of what a checkpoint says of itself."""
BUFFER = "buffer-"
"""What the arrays of a checkpoint that are no trained parameters begin with."""


@dataclass(frozen=True)
class Layout:
    """Which part of a flat vector of weights is which entry of a ``state_dict``.

    ``entries`` are ``(name, shape, offset)`` in the order of the ``state_dict``; ``offset`` is
    where the entry begins in the vector, ``None`` for those in ``buffers``, which are no part of
    it.

    >>> layout = Layout([("bias", (2,), 0), ("scale", (), None)], {"scale": np.array(3.0)})
    >>> layout.state(np.array([1.0, 2.0]))
    {'bias': array([1., 2.]), 'scale': array(3.)}
    """

    entries: list[tuple[str, tuple[int, ...], int | None]]
    buffers: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: object, weights: Vector) -> "Layout":
        """That of a problem with a model; of any other, one entry ``weights``."""
        state_arrays = getattr(problem, "state_arrays", None)
        if state_arrays is None:
            return cls([("weights", weights.shape, 0)])
        # Values that no buffer has, so that what is found in them is a part of the vector.
        probe = np.random.default_rng(0).standard_normal(weights.size, dtype=weights.dtype.type)
        entries: list[tuple[str, tuple[int, ...], int | None]] = []
        buffers, expected = {}, 0
        for name, array in state_arrays(probe).items():
            offset = _find(probe, np.asarray(array), expected)
            entries.append((name, tuple(int(length) for length in array.shape), offset))
            if offset is None:
                buffers[name] = np.array(array)
            else:
                expected = offset + array.size
        return cls(entries, buffers)

    def state(self, weights: Vector) -> dict[str, NDArray[np.generic]]:
        """The ``state_dict`` of a model with these weights, as arrays."""
        found: dict[str, NDArray[np.generic]] = {}
        for name, shape, offset in self.entries:
            if offset is None:
                found[name] = np.asarray(self.buffers[name])
            else:
                found[name] = weights[offset : offset + int(np.prod(shape))].reshape(shape)
        return found


def _find(probe: Vector, array: NDArray[np.generic], expected: int) -> int | None:
    """Where in ``probe`` an array lies, most likely at ``expected``; ``None`` if nowhere."""
    if array.dtype != probe.dtype or not array.size:
        return None
    flat = array.ravel()
    for offset in (expected, *np.flatnonzero(probe == flat[0]).tolist()):
        if np.array_equal(probe[offset : offset + flat.size], flat):
            return int(offset)
    return None


def export_model(run: Path, target: Path, *, averaged: bool | None = None) -> int:
    """Write the model of a deployment's last checkpoint to ``target``; its version.

    ``averaged`` says whether it is the average of versions or the last one. By default it is what the
    run evaluates: the average where its rule keeps one.
    """
    if not (run / CHECKPOINT).is_file():
        raise InvalidFile(_no_checkpoint(run))
    arrays, meta = read_checkpoint(run / CHECKPOINT)
    average = arrays.get(f"array-{AVERAGE}")
    if averaged and average is None:
        raise InvalidInput(
            f"'{run}': its rule keeps no average of versions; export the last version (--raw), or "
            "train with [tool.flwr.app.config.rule.server] average = 0.1"
        )
    check_shape(meta, META, str(run / CHECKPOINT))
    if "layout" not in meta["extra"]:
        raise InvalidFile(
            f"{run / CHECKPOINT}: written by an earlier version, which did not say what the weights "
            "are called. Resume the run with this version, or take weights.safetensors at its end."
        )
    raw = averaged is False or average is None or not meta["version"]
    weights = arrays.get("weights") if raw or average is None else average
    if weights is None or weights.ndim != 1 or weights.dtype.kind != "f":
        raise InvalidFile(f"{run / CHECKPOINT}: holds no weights")
    buffers = named(arrays, BUFFER)
    entries = [
        _entry(entry, weights, buffers, run / CHECKPOINT) for entry in meta["extra"]["layout"]
    ]
    write_tensors(target, Layout(entries, buffers).state(weights))
    return int(meta["version"])


def _entry(
    entry: Sequence[Any], weights: Vector, buffers: Arrays, path: Path
) -> tuple[str, tuple[int, ...], int | None]:
    """An entry of a layout that fits to the weights; a checkpoint may be anybody's."""
    try:
        name, shape, offset = entry
        sizes = tuple(int(length) for length in shape)
        if offset is None:
            fits = name in buffers
        else:
            fits = min(0, offset, *sizes) == 0 and offset + math.prod(sizes) <= weights.size
        if isinstance(name, str) and fits:
            return name, sizes, offset
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidFile(f"{path}: its layout does not fit to its weights")


def _no_checkpoint(run: Path) -> str:
    """Why there is nothing to export."""
    if not run.is_dir():
        return f"'{run}': there is no such folder"
    folder = RunFolder(run)
    if folder.status_path.exists() or folder.events_path.exists():
        return (
            f"'{run}': this deployment has written no checkpoint yet; wait until its clients join"
        )
    if folder.begun:
        return (
            f"'{run}': a run of 'sojourn train' or 'tune', not a deployment; the weights of its runs "
            "are in its folder 'weights', if it was run with keep-weights = true"
        )
    return f"'{run}': not the folder of a deployment (there is no {CHECKPOINT})"

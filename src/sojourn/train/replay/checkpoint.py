"""Checkpoints: a run that was killed, or several in lockstep, go on where they were, to the bit.

A checkpoint is a NumPy archive of plain arrays and one JSON text; nothing in it is pickled.
"""

import hashlib
import json
import os
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sojourn.errors import InvalidFile, InvalidInput
from sojourn.files import replacing, uninterrupted
from sojourn.rules import ServerState
from sojourn.train.replay.problem import Problem
from sojourn.train.replay.state import Between, ReplayState, Rows, Sums, Version
from sojourn.types import Vector

FORMAT = "sojourn checkpoint 4"
_ARRAY = "array-"
LEAST_SECONDS_PER_WRITE = 20.0


@dataclass(frozen=True)
class Checkpoint:
    """Where to keep the state of a run, and how often to write it.

    A write is skipped if less than ``seconds`` have passed, or less than 20 times as long as the
    last write took, so that checkpoints cost at most 5 % of a run.
    """

    path: str | os.PathLike[str]
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if not self.seconds >= 0:
            raise InvalidInput(f"seconds between checkpoints must not be negative: {self.seconds}")


class CheckpointFile:
    """The checkpoint of one run, or of several in lockstep, which refuses to continue others.

    ``identity`` names what the runs depend on, each with a digest; ``learning_rates`` are theirs, for
    who only looks on (see `rows_in`).
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        identity: dict[str, str],
        learning_rates: Sequence[float] = (),
    ) -> None:
        self.path = Path(checkpoint.path)
        self._seconds = checkpoint.seconds
        self._identity = identity
        self._learning_rates = list(learning_rates)
        self._due = time.monotonic() + checkpoint.seconds

    @property
    def due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() >= self._due

    def write(self, *positions: ReplayState) -> None:
        """Replace the file, atomically: all positions are of the same moment."""
        begin = time.monotonic()
        vectors: dict[int, tuple[int, Vector]] = {}

        def place(vector: Vector) -> int:
            return vectors.setdefault(id(vector), (len(vectors), vector))[0]

        meta = {
            "format": FORMAT,
            "identity": self._identity,
            "learning_rates": self._learning_rates,
            "runs": [_described(position, place) for position in positions],
        }
        stacked = np.stack([vector for _, vector in vectors.values()])
        named = {
            _array_of(run) + name: array
            for run, position in enumerate(positions)
            for name, array in position.state.arrays.items()
        }
        with replacing(self.path) as temporary, temporary.open("wb") as file, uninterrupted():
            np.savez(file, meta=np.array(json.dumps(meta)), vectors=stacked, **named)  # type: ignore[arg-type]
        end = time.monotonic()
        self._due = end + max(self._seconds, LEAST_SECONDS_PER_WRITE * (end - begin))

    def read(self) -> ReplayState | None:
        """The position kept in the file; ``None`` if there is no file."""
        positions = self.read_all()
        return positions[0] if positions else None

    def read_all(self) -> list[ReplayState]:
        """The positions kept in the file, in the order they were written; none if there is no file."""
        if not self.path.exists():
            return []
        try:
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                meta = json.loads(str(archive["meta"]))
                vectors = list(archive["vectors"])
                arrays = {name: archive[name] for name in archive.files if name.startswith(_ARRAY)}
            _check_format(meta, self.path)
            self._check_identity(meta["identity"])
            return [
                _position(table, vectors, _own(arrays, run))
                for run, table in enumerate(meta["runs"])
            ]
        except InvalidFile:
            raise
        except (OSError, ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile) as error:
            raise _spoilt(self.path, error) from error

    def _check_identity(self, found: dict[str, str]) -> None:
        names = [name for name in self._identity if found.get(name) != self._identity[name]]
        if names:
            raise InvalidFile(
                f"{self.path}: a checkpoint of another run: its {' and '.join(names)} "
                f"{'differs' if len(names) == 1 else 'differ'} from what was given. "
                "Delete it to start anew, or give what it was made with."
            )


def rows_in(path: str | os.PathLike[str]) -> dict[float, Rows]:
    """The evaluations of the runs in a checkpoint by learning rate; the runs are left alone."""
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            meta = json.loads(str(archive["meta"]))
        _check_format(meta, path)
        rates = map(float, meta["learning_rates"])
        return {
            rate: Rows(**table["rows"]) for rate, table in zip(rates, meta["runs"], strict=True)
        }
    except InvalidFile:
        raise
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise _spoilt(path, error) from error


def _check_format(meta: dict[str, Any], path: str | os.PathLike[str]) -> None:
    if meta["format"] != FORMAT:
        raise InvalidFile(
            f"{path}: a checkpoint of another version of Sojourn. Delete it to start anew."
        )


def _spoilt(path: str | os.PathLike[str], error: Exception) -> InvalidFile:
    return InvalidFile(f"{path}: not a whole checkpoint ({error}). Delete it to start anew.")


def digest(*values: Any) -> str:
    """A short fingerprint of arrays, tensors and plain values.

    >>> digest(np.arange(3), "uniform") == digest(np.arange(3), "balanced")
    False
    """
    made = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor):
            value = value.detach().numpy()
        if isinstance(value, np.ndarray):
            made.update(f"{value.dtype}{value.shape}".encode())
            made.update(np.ascontiguousarray(value).view(np.uint8).reshape(-1).data)
        else:
            made.update(repr(value).encode())
    return made.hexdigest()[:16]


def _array_of(run: int) -> str:
    """How the names of a run's own arrays begin."""
    return f"{_ARRAY}{run}-"


def _own(arrays: dict[str, NDArray[Any]], run: int) -> dict[str, NDArray[Any]]:
    first = _array_of(run)
    return {n.removeprefix(first): array for n, array in arrays.items() if n.startswith(first)}


def _described(position: ReplayState, place: Callable[[Vector], int]) -> dict[str, Any]:
    state = position.state
    return {
        "round": position.round,
        "batched": position.batched,
        "diverged_at": position.diverged_at,
        "weights": place(state.weights),
        "version": state.version,
        "numbers": dict(state.numbers),
        "live": [[d, place(v.weights), v.number] for d, v in position.live.items()],
        "rows": asdict(position.rows),
        "between": [[place(v.weights), v.round, v.version, list(v.sums)] for v in position.between],
        "stopped": position.stopped,
    }


def _position(
    meta: dict[str, Any], vectors: list[Vector], arrays: dict[str, NDArray[Any]]
) -> ReplayState:
    weights = vectors[meta["weights"]]
    return ReplayState(
        state=ServerState(weights, meta["version"], arrays, meta["numbers"]),
        live={d: Version(vectors[place], number) for d, place, number in meta["live"]},
        rows=Rows(**meta["rows"]),
        between=[
            Between(vectors[place], done, version, Sums(*sums))
            for place, done, version, sums in meta["between"]
        ],
        stopped=meta["stopped"],
        round=meta["round"],
        batched=meta["batched"],
        diverged_at=meta["diverged_at"],
    )


def problem_digest(problem: Problem) -> str:
    """A fingerprint of model, first weights, loss, augmentation, and of what clients hold.

    Of data all labels are looked at, but one input per client. Code is known by its name alone.
    """
    x, y = problem.test_set
    held: list[Tensor] = [part for xs, ys in problem.train_sets for part in (xs[0], ys)]
    return digest(
        problem.initial_weights(),
        repr(problem.model),
        described(problem.loss),
        described(problem.augment),
        problem.batch_size,
        x[0],
        y,
        *held,
        *((sorted(problem.metrics), problem.primary) if problem.metrics or problem.primary else ()),
        *(("channels last",) if problem.channels_last else ()),
    )


def described(function: Any) -> str:
    """A function's or an object's name, and the plain values that the object holds.

    >>> from torch.nn import CrossEntropyLoss
    >>> described(CrossEntropyLoss()) == described(CrossEntropyLoss(label_smoothing=0.1))
    False
    """
    named = function if hasattr(function, "__qualname__") else type(function)
    held = getattr(function, "__dict__", {})
    plain = {k: v for k, v in held.items() if isinstance(v, int | float | str)}
    return f"{named.__module__}.{named.__qualname__} {sorted(plain.items(), key=repr)}"

"""Checkpoints: runs that were killed resume where they were, to the bit.

A checkpoint is a NumPy archive of plain arrays and one JSON text; nothing in it is pickled.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sojourn._support.arrays import read_arrays
from sojourn._support.files import replacing, uninterrupted
from sojourn._support.ledger import digest_of_arrays
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.rules import ServerState
from sojourn.training.problem.optimizer import ClientState
from sojourn.training.problem.problem import Problem
from sojourn.training.replay.state import Between, ReplayState, Rows, Sums, Version
from sojourn.types import Vector

FORMAT = "sojourn checkpoint 6"
_ARRAY, _VECTORS, _CLIENT, _DIGEST = "array-", "vectors-", "client-", "digest"
Place: TypeAlias = tuple[str, int]
"""Where a vector stands in the file: the array, and the row."""
LEAST_SECONDS_PER_WRITE = 20.0


@dataclass(frozen=True)
class Checkpoint:
    """Where to save the state of a run, and how often to write it.

    A write is skipped if less than ``seconds`` have passed, or less than 20 times as long as the
    last write took, so that checkpoints cost at most 5 % of a run.
    """

    path: str | os.PathLike[str]
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if not self.seconds >= 0:
            raise InvalidInput(f"seconds between checkpoints must not be negative: {self.seconds}")


class CheckpointFile:
    """The checkpoint of one run, or of several that are computed together; others are refused.

    ``identity`` names what the runs depend on, each with a digest; ``learning_rates`` are theirs, for
    readers that only follow the runs (see `rows_in`).
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
        # Vectors of one kind and length are one array; each is saved once, however often it is used.
        stacks: dict[str, list[Vector]] = {}
        known: dict[int, Place] = {}

        def place(vector: Vector) -> Place:
            if id(vector) not in known:
                name = f"{_VECTORS}{vector.dtype}-{vector.size}"
                own = stacks.setdefault(name, [])
                known[id(vector)] = (name, len(own))
                own.append(vector)
            return known[id(vector)]

        meta = {
            "format": FORMAT,
            "identity": self._identity,
            "learning_rates": self._learning_rates,
            "runs": [_described(position, place) for position in positions],
        }
        named: dict[str, NDArray[np.generic]] = {
            name: np.stack(own) for name, own in stacks.items()
        }
        for run, position in enumerate(positions):
            own = dict(position.state.arrays)
            for client, kept in position.clients.items():
                own |= {f"{_CLIENT}{client}/{name}": array for name, array in kept.items()}
            named |= {_array_of(run) + name: array for name, array in own.items()}
        named["meta"] = np.array(json.dumps(meta))
        named[_DIGEST] = digest_of_arrays(named)
        with replacing(self.path) as temporary, temporary.open("wb") as file, uninterrupted():
            np.savez(file, **named)  # type: ignore[arg-type]
        end = time.monotonic()
        self._due = end + max(self._seconds, LEAST_SECONDS_PER_WRITE * (end - begin))

    def read(self) -> list[ReplayState]:
        """The positions saved in the file, in the order they were written; none if there is no file."""
        if not self.path.exists():
            return []
        try:
            named = read_arrays(self.path)
            digest = named.pop(_DIGEST, None)
            meta = json.loads(str(named["meta"]))
            _check_format(meta, self.path)
            if digest is None or not np.array_equal(digest, digest_of_arrays(named)):
                raise _spoilt(self.path, "edited by hand: it has another digest than it says")
            stacks = {name: list(own) for name, own in named.items() if name.startswith(_VECTORS)}
            arrays = {name: own for name, own in named.items() if name.startswith(_ARRAY)}
            self._check_identity(meta["identity"])
            return [
                _position(table, stacks, _own(arrays, run))
                for run, table in enumerate(meta["runs"])
            ]
        except InvalidFile:
            raise
        except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
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
        meta = json.loads(str(read_arrays(path, ["meta"])["meta"]))
        _check_format(meta, path)
        rates = map(float, meta["learning_rates"])
        return {
            rate: Rows(**table["rows"]) for rate, table in zip(rates, meta["runs"], strict=True)
        }
    except InvalidFile:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _spoilt(path, error) from error


def _check_format(meta: Mapping[str, object], path: str | os.PathLike[str]) -> None:
    if meta["format"] != FORMAT:
        raise InvalidFile(
            f"{path}: a checkpoint of another version of Sojourn. Delete it to start anew."
        )


def _spoilt(path: str | os.PathLike[str], error: Exception | str) -> InvalidFile:
    return InvalidFile(f"{path}: not a whole checkpoint ({error}). Delete it to start anew.")


def digest(*values: object) -> str:
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


def _own(arrays: dict[str, NDArray[np.generic]], run: int) -> dict[str, NDArray[np.generic]]:
    first = _array_of(run)
    return {n.removeprefix(first): array for n, array in arrays.items() if n.startswith(first)}


def _described(position: ReplayState, place: Callable[[Vector], Place]) -> dict[str, object]:
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
        "buffers": None if position.buffers is None else place(position.buffers),
    }


def _position(
    meta: dict[str, Any], stacks: dict[str, list[Vector]], arrays: dict[str, NDArray[np.generic]]
) -> ReplayState:
    def vector(place: Place) -> Vector:
        name, row = place
        return stacks[name][row]

    clients: dict[int, ClientState] = {}
    for name in [name for name in arrays if name.startswith(_CLIENT)]:
        client, key = name.removeprefix(_CLIENT).split("/", 1)
        clients.setdefault(int(client), {})[key] = arrays.pop(name)
    return ReplayState(
        state=ServerState(vector(meta["weights"]), meta["version"], arrays, meta["numbers"]),
        live={d: Version(vector(place), number) for d, place, number in meta["live"]},
        rows=Rows(**meta["rows"]),
        between=[
            Between(vector(place), done, version, Sums(*sums))
            for place, done, version, sums in meta["between"]
        ],
        stopped=meta["stopped"],
        round=meta["round"],
        batched=meta["batched"],
        diverged_at=meta["diverged_at"],
        buffers=None if meta["buffers"] is None else vector(meta["buffers"]),
        clients=clients,
    )


def problem_digest(problem: Problem) -> str:
    """A fingerprint of model, first weights, loss, augmentation, and of what clients hold.

    Of data all labels are looked at, but one input per client. Code is known by its name alone.
    """
    return digest(
        problem.initial_weights(),
        repr(problem.model),
        described(problem.loss),
        described(problem.augment),
        problem.batch_size,
        *problem.fingerprint(),
        *sorted(
            f"{name} {described(value) if callable(value) else value}"
            for name, value in problem.extras().items()
        ),
        *((sorted(problem.metrics), problem.primary) if problem.metrics or problem.primary else ()),
        *(("channels last",) if problem.channels_last else ()),
    )


def described(function: object) -> str:
    """A function's or an object's name, and the plain values that the object holds.

    >>> from torch.nn import CrossEntropyLoss
    >>> described(CrossEntropyLoss()) == described(CrossEntropyLoss(label_smoothing=0.1))
    False
    """
    named = function if hasattr(function, "__qualname__") else type(function)
    held = getattr(function, "__dict__", {})
    plain = {k: v for k, v in held.items() if isinstance(v, int | float | str)}
    return f"{named.__module__}.{named.__qualname__} {sorted(plain.items(), key=repr)}"

"""How learning went: a `History` per run, and its file."""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sojourn.config import parse_json
from sojourn.errors import InvalidFile, InvalidInput
from sojourn.files import read_text, replacing
from sojourn.types import FloatArray, IntArray

if TYPE_CHECKING:
    import pandas


Clock = Literal["virtual", "real"]

_LABELS = ("strategy", "seed", "learning_rate", "clock")
_WHOLE = ("round", "gradients", "updates")
_COLUMNS = (
    "round",
    "time",
    "test_loss",
    "test_accuracy",
    "train_loss",
    "staleness",
    "gradients",
    "updates",
)


@dataclass(frozen=True, eq=False, kw_only=True)
class History:
    """One run: a row per evaluation of the model on the test set.

    ``round`` counts completed tasks, ``time`` is virtual or real (``clock``); ``train_loss`` is the
    mean over the tasks completed since the row before, and ``staleness`` over those of them that
    the rule used (``nan`` if there were none); ``gradients`` (computed by clients) and ``updates`` (model versions made by the server)
    count from the start. ``diverged_at`` is the round in which the run became infinite, if it did:
    the rows before it are kept. ``weights`` are those at the end, and are not written to the file.
    """

    strategy: str
    seed: int
    learning_rate: float
    clock: Clock
    round: IntArray
    time: FloatArray
    test_loss: FloatArray
    test_accuracy: FloatArray
    train_loss: FloatArray
    staleness: FloatArray
    gradients: IntArray
    updates: IntArray
    diverged_at: int | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    weights: NDArray[np.floating] | None = None

    def __post_init__(self) -> None:
        for name in _COLUMNS:
            kind = np.int64 if name in _WHOLE else np.float64
            column = np.array(getattr(self, name), dtype=kind)
            if column.ndim != 1 or column.size != np.size(self.round):
                raise InvalidInput(
                    f"the columns of a history must be lists of one length: round has "
                    f"{np.size(self.round)} entries, {name} has {column.size}"
                )
            column.setflags(write=False)
            object.__setattr__(self, name, column)

    def __repr__(self) -> str:
        about = f"{self.strategy}, seed {self.seed}, learning rate {self.learning_rate:g}"
        if not self.rows:
            return f"History({about}: no rows)"
        unit = " s" if self.clock == "real" else ""
        end = f"round {self.round[-1]}, time {self.time[-1]:.4g}{unit}"
        seen = (
            f"test loss {self.test_loss[-1]:.3g}"
            if math.isnan(self.final_accuracy)
            else f"test accuracy {self.final_accuracy:.1%}"
        )
        lost = "" if self.diverged_at is None else f", diverged in round {self.diverged_at}"
        return f"History({about}: {self.rows} rows to {end}, {seen}{lost})"

    @property
    def rows(self) -> int:
        """The number of evaluations."""
        return int(self.round.size)

    @property
    def final_accuracy(self) -> float:
        """Test accuracy at the last row."""
        return float(self.test_accuracy[-1]) if self.rows else math.nan

    @property
    def mean_accuracy(self) -> float:
        """Test accuracy averaged over time, by the trapezoidal rule.

        A run that is good early has a higher mean than one that only ends as well.
        """
        return self.average("test_accuracy")

    def average(self, column: str, along: Literal["time", "round"] = "time") -> float:
        """A column averaged along time or rounds, by the trapezoidal rule; its end if it has no length."""
        values, place = getattr(self, column), getattr(self, along)
        if not self.rows:
            return math.nan
        if place[-1] <= place[0]:
            return float(values[-1])
        return float(np.trapezoid(values, place)) / float(place[-1] - place[0])

    def time_to(self, accuracy: float) -> float:
        """The time of the first row with at least this test accuracy; ``nan`` if there is none."""
        reached = np.flatnonzero(self.test_accuracy >= accuracy)
        return float(self.time[reached[0]]) if reached.size else math.nan

    def to_records(self) -> list[dict[str, Any]]:
        """One dictionary per row, labels included: what ``pandas.DataFrame`` and polars take."""
        labels = {name: getattr(self, name) for name in _LABELS}
        columns = [getattr(self, name).tolist() for name in _COLUMNS]
        return [
            {
                **labels,
                **dict(zip(_COLUMNS, values, strict=True)),
                "diverged_at": self.diverged_at,
            }
            for values in zip(*columns, strict=True)
        ]

    def to_pandas(self) -> "pandas.DataFrame":
        """The rows as a pandas ``DataFrame``; pandas is not installed with Sojourn."""
        import pandas

        return pandas.DataFrame(self.to_records(), columns=[*_LABELS, *_COLUMNS, "diverged_at"])

    @staticmethod
    def write(path: str | os.PathLike[str], histories: Iterable["History"]) -> None:
        """Write runs as JSON lines, one row each, which pandas and polars read in one call.

        Values that are not finite are written as ``null``.
        """
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            for history in histories:
                for record in history.to_records():
                    row = {key: _finite_or_none(value) for key, value in record.items()}
                    file.write(json.dumps(row, allow_nan=False) + "\n")

    @staticmethod
    def read(path: str | os.PathLike[str]) -> list["History"]:
        """The runs in a file written by `write`, in the order they first appear.

        Provenance and weights are not in the file; the folder of a run keeps the provenance in
        ``summary.json``.
        """
        lines = read_text(path, encoding="utf-8").splitlines()
        runs: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            row = _parse_row(line, f"{path}, line {number}")
            runs.setdefault(tuple(row[name] for name in _LABELS), []).append(row)
        return [_history_of(rows) for rows in runs.values()]


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parse_row(line: str, where: str) -> dict[str, Any]:
    row = parse_json(line, where)
    if not isinstance(row, dict):
        raise InvalidFile(f"{where}: a row must be a JSON object")
    for name in (*_LABELS, *_COLUMNS):
        if name not in row:
            raise InvalidFile(f"{where}: there is no '{name}'. Is this a history?")
    for name in _COLUMNS:
        value = row[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number or (value is None and name not in _WHOLE)):
            raise InvalidFile(f"{where}: '{name}' must be a number; it is {str(value)[:80]}")
    return row


def _history_of(rows: list[dict[str, Any]]) -> History:
    labels = {name: rows[0][name] for name in _LABELS}
    columns: dict[str, Any] = {
        name: [math.nan if row[name] is None else row[name] for row in rows] for name in _COLUMNS
    }
    return History(**labels, **columns, diverged_at=rows[-1].get("diverged_at"))

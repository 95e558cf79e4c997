"""The evaluations of a run: `History`, and its file."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sojourn._support.configuration import check_shape, parse_json
from sojourn._support.files import read_text, replacing
from sojourn._support.numbers import UNKNOWN, finite, number
from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.figures.figure import Figure, Series, View
from sojourn.figures.notebook import curve, table_html
from sojourn.figures.timeline import AXES, SECONDS, VIRTUAL
from sojourn.runs.measure import ACCURACY, LOSS, Measure
from sojourn.types import FloatArray, IntArray

if TYPE_CHECKING:
    import pandas


Clock = Literal["virtual", "real"]

_LABELS = ("strategy", "seed", "learning_rate", "clock")
_WHOLE = ("round", "gradients", "updates")
_JUDGED = ("primary", "higher_is_better")
COLUMNS = (
    "round",
    "time",
    "test_loss",
    "test_accuracy",
    "train_loss",
    "staleness",
    "gradients",
    "updates",
)
"""What every history has of an evaluation."""
_ROW = {
    **dict.fromkeys(("strategy", "clock"), str),
    **dict.fromkeys(("seed", *_WHOLE), int),
    "learning_rate": float,
    **{"primary": str, "higher_is_better": bool, "diverged_at": (int, None)},
}
"""What a row of the file holds; all else is a number or null."""
RESERVED = frozenset((*_LABELS, *COLUMNS, *_JUDGED, "diverged_at", "accuracy", "loss"))
"""Names that no metric may have."""


@dataclass(frozen=True, eq=False, kw_only=True)
class History:
    """One run: a row per evaluation of the model on the test set.

    ``round`` counts completed tasks, ``time`` is virtual or real (``clock``); ``train_loss`` is the
    mean over the tasks completed since the row before, and ``staleness`` over those of them that
    the rule used (``nan`` if there were none); ``gradients`` (computed by clients) and ``updates``
    (model versions made by the server) count from the start. ``diverged_at`` is the round in which
    the run became infinite, if it did: the rows before it are there. ``weights`` are those at the
    end, and are not written to the file.

    ``metrics`` are columns of the user's own by name, and ``primary`` is the `Measure` that the run
    is judged by: unless one is given, the accuracy, or the loss where there are no labels.
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
    provenance: Mapping[str, object] = field(default_factory=dict)
    weights: NDArray[np.floating] | None = None
    metrics: Mapping[str, FloatArray] = field(default_factory=dict)
    primary: Measure | None = None

    def __post_init__(self) -> None:
        for name in COLUMNS:
            kind = np.int64 if name in _WHOLE else np.float64
            object.__setattr__(self, name, self._column(name, getattr(self, name), kind))
        metrics = {n: self._column(n, values, np.float64) for n, values in self.metrics.items()}
        object.__setattr__(self, "metrics", metrics)

    def _column(self, name: str, values: Any, kind: type) -> NDArray[Any]:
        column: NDArray[Any] = np.array(values, dtype=kind)
        if column.ndim != 1 or column.size != np.size(self.round):
            raise InvalidInput(
                f"the columns of a history must be lists of one length: round has "
                f"{np.size(self.round)} entries, {name} has {column.size}"
            )
        column.setflags(write=False)
        return column

    def __repr__(self) -> str:
        about = f"{self.strategy}, seed {self.seed}, learning rate {self.learning_rate:g}"
        if not self.rows:
            return f"History({about}: no rows)"
        unit = " s" if self.clock == "real" else ""
        end = f"round {self.round[-1]}, time {self.time[-1]:.4g}{unit}"
        seen = f"{self.measure.label} {self.measure.text(self.final)}"
        lost = "" if self.diverged_at is None else f", diverged in round {self.diverged_at}"
        return f"History({about}: {self.rows} rows to {end}, {seen}{lost})"

    def plot(self) -> Figure:
        """What the run is judged by, and its loss, against time and rounds."""
        time = AXES[SECONDS if self.clock == "real" else VIRTUAL]
        axes = {"time": (time, self.time), "rounds": ("rounds", self.round)}
        views = tuple(
            View(
                label,
                measure.label,
                (Series(self.strategy, x, self.values(measure)),),
                metric=measure.name,
                axis=axis,
                percent=measure.percent,
            )
            for measure in dict.fromkeys((self.measure, LOSS))
            for axis, (label, x) in axes.items()
        )
        return Figure("history", "How learning went", repr(self)[8:-1] + ".", views)

    def _repr_html_(self) -> str:
        measure, values = self.measure, self.values(self.measure)
        ends = (measure.text(values[0]), measure.text(values[-1])) if self.rows else ("", "")
        drawn = curve(self.time, values, f"{measure.label} over time", ends)
        return f"<p>{escape(repr(self))}</p>{drawn}"

    @property
    def rows(self) -> int:
        """The number of evaluations."""
        return int(self.round.size)

    @property
    def measure(self) -> Measure:
        """What the run is judged by."""
        if self.primary is not None:
            return self.primary
        labelled = not self.rows or bool(np.isfinite(self.test_accuracy).any())
        return ACCURACY if labelled else LOSS

    def values(self, name: str | Measure) -> FloatArray:
        """A column by name: ``accuracy``, ``loss``, a metric, or any other of the history."""
        name = name.name if isinstance(name, Measure) else name
        if name in self.metrics:
            return self.metrics[name]
        column = f"test_{name}" if name in ("accuracy", "loss") else name
        if column not in COLUMNS:
            raise UnknownName("column", name, ["accuracy", "loss", *self.metrics, *COLUMNS])
        values: FloatArray = getattr(self, column)
        return values

    @property
    def final(self) -> float:
        """The primary measure at the last row."""
        return float(self.values(self.measure)[-1]) if self.rows else math.nan

    @property
    def mean(self) -> float:
        """The primary measure averaged over time, by the trapezoidal rule."""
        return self.average(self.measure.name)

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
        """A column averaged along time or rounds by the trapezoidal rule; its last value if they do not advance."""
        values, place = self.values(column), getattr(self, along)
        if not self.rows:
            return math.nan
        if place[-1] <= place[0]:
            return float(values[-1])
        return float(np.trapezoid(values, place)) / float(place[-1] - place[0])

    def time_to(self, target: float) -> float:
        """The time of the first evaluation whose primary measure is at least as good as ``target``.

        ``nan`` if there is none (`Measure.first`). This is the one time to a target: summaries,
        tables, figures, `sojourn tune` and its page all show it, and nothing is interpolated. The
        target was not yet reached at the previous evaluation, `resolution` time units earlier.
        """
        k = self.measure.first(self.values(self.measure), target)
        return math.nan if k is None else float(self.time[k])

    def resolution(self, target: float) -> float:
        """The time between `time_to` and the previous evaluation, at which the target was not reached."""
        k = self.measure.first(self.values(self.measure), target)
        if k is None:
            return math.nan
        return float(self.time[k] - self.time[k - 1]) if k else 0.0

    def to_records(self) -> list[dict[str, object]]:
        """One dictionary per row, labels included: what ``pandas.DataFrame`` and polars take."""
        labels = {name: getattr(self, name) for name in _LABELS}
        names = (*COLUMNS, *self.metrics)
        columns = [self.values(name).tolist() for name in names]
        primary = self.measure
        judged = dict(zip(_JUDGED, (primary.name, primary.higher_is_better), strict=True))
        return [
            {
                **labels,
                **dict(zip(names, values, strict=True)),
                "diverged_at": self.diverged_at,
                **({} if primary == ACCURACY and not self.metrics else judged),
            }
            for values in zip(*columns, strict=True)
        ]

    def to_pandas(self) -> "pandas.DataFrame":
        """The rows as a pandas ``DataFrame``; pandas is not installed with Sojourn."""
        import pandas

        columns = [*_LABELS, *COLUMNS, *self.metrics, "diverged_at"]
        return pandas.DataFrame(self.to_records(), columns=columns)

    @staticmethod
    def write(path: str | os.PathLike[str], histories: Iterable["History"]) -> None:
        """Write runs as JSON lines, one row each, which pandas and polars read in one call.

        Values that are not finite are written as ``null``.
        """
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            for history in histories:
                for record in history.to_records():
                    file.write(json.dumps(finite(record), allow_nan=False) + "\n")

    @staticmethod
    def read(path: str | os.PathLike[str], *, partial: bool = False) -> list["History"]:
        """The runs in a file written by `write`, in the order they first appear.

        With ``partial`` a last line that is not whole, as in a file that somebody is writing, is left
        out.

        Provenance and weights are not in the file; the folder of a run has the provenance in
        ``summary.json``.
        """
        lines = read_text(path, encoding="utf-8").splitlines()
        runs: dict[tuple[object, ...], list[dict[str, Any]]] = {}
        for place, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = _parse_row(line, f"{path}, line {place}")
            except InvalidFile:
                if partial and place == len(lines):
                    break
                raise
            runs.setdefault(tuple(row[name] for name in _LABELS), []).append(row)
        return Histories(_history_of(rows) for rows in runs.values())


class Histories(list[History]):
    """Runs in a list that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        rows = [
            (
                run.strategy,
                str(run.seed),
                f"{run.learning_rate:g}",
                number(float(run.time[-1])) if run.rows else UNKNOWN,
                "diverged" if run.diverged_at is not None else run.measure.text(run.final),
                curve(run.time, run.values(run.measure), f"{run.measure.label} over time"),
            )
            for run in self
        ]
        label = self[0].measure.label if self else "value"
        columns = ("strategy", "seed", "learning rate", "time", f"final {label}", "over time")
        return table_html(f"{len(self)} runs", columns, rows)


def _parse_row(line: str, where: str) -> dict[str, Any]:
    row = parse_json(line, where)
    if not isinstance(row, dict):
        raise InvalidFile(f"{where}: a row must be a JSON object")
    for name in (*_LABELS, *COLUMNS):
        if name not in row:
            raise InvalidFile(f"{where}: there is no '{name}'. Is this a history?")
    check_shape(row, {f"{name}?": _ROW.get(name, (float, None)) for name in row}, where)
    return row


def _history_of(rows: list[dict[str, Any]]) -> History:
    first = rows[0]

    def column(name: str) -> Any:
        return [math.nan if row.get(name) is None else row[name] for row in rows]

    name = first.get("primary")
    return History(
        **{name: first[name] for name in _LABELS},
        **{name: column(name) for name in COLUMNS},
        diverged_at=rows[-1].get("diverged_at"),
        metrics={name: column(name) for name in first if name not in RESERVED},
        primary=None if name is None else Measure(name, bool(first.get("higher_is_better", True))),
    )

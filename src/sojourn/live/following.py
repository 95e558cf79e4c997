"""The files of a run that may be going on: read again when they change, never written, half lines skipped."""

import json
import math
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from sojourn.config import check_shape, parse_json
from sojourn.files import read_text
from sojourn.history import History
from sojourn.runfolder import RunFolder
from sojourn.train.experiment.strategy import file_name

Value = TypeVar("Value")
LAST_EVENTS = 12
MOST_NEWS = 1 << 26
"""Bytes of a growing file that are taken in at one look; the rest comes with the next ones."""
LONGEST_LINE = 1 << 20
MAYBE = (float, None)
STATUS = {
    **{"phase": str, "updates?": float, "of?": float, "throughput?": MAYBE},
    **{"concurrency?": float, "error?": str},
    "clients?": [
        {
            **{"name": str, "status": str, "waiting": float, "used": float, "refused": float},
            **{"rate?": MAYBE, "planned?": MAYBE, "routing?": float},
            **{"norm?": MAYBE, "agreement?": MAYBE, "speed?": MAYBE},
        }
    ],
}
ANSWER = {"pick": str, "learning_rate": float, "sentence": str}
EXPERIMENT = {
    **{"rounds?": float, "time?": float, "checkpoint-seconds?": float, "pilot-seeds?": float},
    **{"strategy?": [{}], "targets?": [float]},
}
"""What is looked at of each file, and how it must look; anything else is as good as half written."""
CHECKPOINT = ".checkpoint"


class Followed(Generic[Value]):
    """What ``read`` makes of a file: asked again only if the file changed.

    While somebody writes it a file may be half there: what it held before is then given once more. So
    it is with whatever else cannot be read, such as a pipe or a file edited by hand.
    """

    def __init__(self, read: Callable[[Path], Value]) -> None:
        self._read = read
        self._kept: dict[Path, tuple[tuple[int, int], Value]] = {}

    def __call__(self, path: Path) -> Value | None:
        """The value now, or ``None`` if there is none yet."""
        before = self._kept.get(path)
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                return None
            mark = (found.st_mtime_ns, found.st_size)
            if before is None or before[0] != mark:
                before = self._kept[path] = (mark, self._read(path))
        except FileNotFoundError:
            self._kept.pop(path, None)
            return None
        except Exception:
            pass
        return None if before is None else before[1]


@dataclass
class Seen:
    """How stale the updates of one client were."""

    tasks: int = 0
    staleness: float = 0.0

    @property
    def mean(self) -> float:
        return self.staleness / self.tasks if self.tasks else math.nan


@dataclass
class Lines:
    """The whole lines that a growing file has had, since last asked; all of them if it began anew."""

    path: Path
    _place: int = 0
    _rest: bytes = field(default=b"", repr=False)

    def fresh(self) -> tuple[list[bytes], bool]:
        """New whole lines, and whether the file was begun anew, so that what was heard is void."""
        try:
            with os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode):
                    return [], False
                anew = found.st_size < self._place
                if anew:
                    self._place, self._rest = 0, b""
                file.seek(self._place)
                text = self._rest + file.read(MOST_NEWS)
                self._place = file.tell()
        except OSError:
            return [], False
        *whole, rest = text.split(b"\n")
        self._rest = rest[-LONGEST_LINE:]
        return [line for line in whole if len(line) <= LONGEST_LINE], anew


@dataclass(frozen=True)
class RunSeen:
    """A run of an experiment or a deployment, and whether it has come to its end."""

    history: History
    ended: bool


class Follower:
    """All that a run folder tells, as far as it is there."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self._histories = Followed(lambda file: History.read(file, partial=True))
        self._unfinished = Followed(_unfinished)
        self._status = Followed(_shaped(STATUS))
        self._summary = Followed(_shaped({}))
        self._tuning = Followed(_shaped(ANSWER))
        self._experiment = Followed(_experiment)
        self._race = Followed(_race)
        self._tasks = Lines(self.folder.tasks_path)
        self._events = Lines(self.folder.events_path)
        self.clients: dict[int, Seen] = {}
        self.events: list[str] = []

    @property
    def status(self) -> dict[str, Any] | None:
        """How a deployment says that it stands."""
        return self._status(self.folder.status_path)

    @property
    def summary(self) -> dict[str, Any]:
        """What the runs came to; empty before the end."""
        return self._summary(self.folder.summary_path) or {}

    @property
    def tuning(self) -> dict[str, Any]:
        """What a tuning answered; empty before the end."""
        return self._tuning(self.folder.tuning_path) or {}

    @property
    def experiment(self) -> dict[str, Any]:
        """What was asked for; empty where it is not written yet."""
        return dict(self._experiment(self.folder.experiment_path) or {})

    @property
    def race(self) -> Any:
        """The rungs of a race so far; ``None`` before the first."""
        return self._race(self.folder.path / "race.json")

    def runs(self) -> list[RunSeen]:
        """Every run: finished ones, and unfinished ones as far as their last checkpoint."""
        finished: dict[tuple[str, int, float], RunSeen] = {}
        for path in sorted(self.folder.cells.glob("*.jsonl")):
            for history in self._histories(path) or ():
                finished.setdefault(_label(history), RunSeen(history, True))
        found, done = [*finished.values()], {*finished}
        names = [str(entry.get("name", "")) for entry in self.experiment.get("strategy", [])]
        called = {file_name(name): name for name in names}
        for path in sorted(self.folder.cells.glob(f"*.jsonl{CHECKPOINT}")):
            for run in self._unfinished(path) or ():
                history = replace(run, strategy=called.get(run.strategy, run.strategy))
                if _label(history) not in done:
                    found.append(RunSeen(history, False))
        if found:
            return found
        ended = bool(self.summary)
        histories = self._histories(self.folder.history_path) or []
        return [RunSeen(history, ended) for history in histories]

    def hear(self) -> None:
        """Take in what was appended to the records of a deployment."""
        lines, anew = self._tasks.fresh()
        if anew:
            self.clients = {}
        for line in lines:
            try:
                record = json.loads(line)
                client, staleness = int(record["client"]), float(record["staleness"])
                used = bool(record["used"])
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue
            if used and math.isfinite(staleness):
                seen = self.clients.setdefault(client, Seen())
                seen.tasks += 1
                seen.staleness += staleness
        lines, anew = self._events.fresh()
        told = [line.decode("utf-8", "replace") for line in lines if line.strip()]
        self.events = [*([] if anew else self.events), *told][-LAST_EVENTS:]

    def changed_at(self) -> float | None:
        """When anything was last written, in seconds of the system's clock."""
        folder = self.folder
        paths = [
            *(folder.status_path, folder.tasks_path, folder.history_path, folder.summary_path),
            *(folder.tuning_path, folder.experiment_path, folder.path / "race.json"),
            *folder.cells.glob("*"),
        ]
        times = []
        for path in paths:
            try:
                times.append(path.stat().st_mtime)
            except OSError:
                continue
        return max(times, default=None)


def _label(history: History) -> tuple[str, int, float]:
    return history.strategy, history.seed, history.learning_rate


def _shaped(shape: Any) -> Callable[[Path], dict[str, Any]]:
    def read(path: Path) -> dict[str, Any]:
        found = parse_json(read_text(path, encoding="utf-8"), str(path))
        check_shape(found, shape, str(path))
        return dict(found)

    return read


def _experiment(path: Path) -> dict[str, Any]:
    found = dict(RunFolder(path.parent).experiment)
    check_shape(found, EXPERIMENT, str(path))
    return found


def _race(path: Path) -> Any:
    from sojourn.tuning.heats import read_race  # loads PyTorch, which only a race is worth

    return read_race(path)[0]


def _unfinished(path: Path) -> list[History]:
    """The runs in a checkpoint, which is called after their strategy and seed."""
    from sojourn.train.replay.checkpoint import rows_in

    slug, _, rest = path.name.rpartition("_seed-")
    seed = int(rest.partition("_")[0])
    return [
        History(
            strategy=slug,
            seed=seed,
            learning_rate=rate,
            clock="virtual",
            metrics=rows.metrics,
            **rows.columns,
        )
        for rate, rows in rows_in(path).items()
    ]

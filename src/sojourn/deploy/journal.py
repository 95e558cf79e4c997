"""What a running deployment writes into its folder.

``tasks.jsonl`` has a line per update that came to the rule (``used`` or not), ``events.log`` a line per thing that went wrong or
changed, ``status.json`` how it stands now, ``history.jsonl`` the evaluations so far, and
``checkpoint.npz`` all that is needed to go on after a crash.
"""

import json
import logging
import math
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.deploy.checkpoint import restore_checkpoint, write_checkpoint
from sojourn.deploy.dispatcher import Dispatcher
from sojourn.deploy.problems import Learnable, measured
from sojourn.deploy.tasks import Drop, Event, Use
from sojourn.files import replacing
from sojourn.history import History
from sojourn.provenance import provenance
from sojourn.runfolder import RunFolder

log = logging.getLogger("sojourn.deploy")

STRATEGY = "deployed"
RECENT = 20
LONGEST_LINE = 500
WARNINGS = ("refused", "failed", "overdue", "quarantined")


@dataclass(frozen=True, slots=True)
class _Pending:
    """An evaluation under way, and what it is the average of."""

    future: Future[dict[str, float | int]]
    round: int
    staleness: list[int]
    losses: list[float]


class Journal:
    """Keeps the record of one run; ``elapsed`` is in seconds of real time, resumed runs included.

    ``condemned`` are those whom their operator had in quarantine when that was last looked up.
    With ``resume`` it goes on where the checkpoint in ``folder`` was made, at ``elapsed_before``;
    without, it begins anew.
    """

    def __init__(
        self,
        folder: Path,
        dispatcher: Dispatcher,
        problem: Learnable,
        *,
        seed: int,
        updates: int,
        resume: bool = False,
    ) -> None:
        self.folder = folder
        self.dispatcher, self.problem = dispatcher, problem
        self.seed, self.updates = seed, updates
        self.rows: list[dict[str, float | int]] = []
        self._staleness: list[int] = []
        self._losses: list[float] = []
        self.condemned: set[str] = set()
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self._evaluator = ThreadPoolExecutor(1, thread_name_prefix="evaluate")
        self._pending: _Pending | None = None
        self.elapsed_before = self._go_back() if resume else 0.0
        folder.mkdir(parents=True, exist_ok=True)
        mode = "a" if resume else "w"
        self._events = RunFolder(folder).events_path.open(
            mode, encoding="utf-8", errors="backslashreplace"
        )
        self._tasks = RunFolder(folder).tasks_path.open(mode, encoding="utf-8")

    def _go_back(self) -> float:
        """Go back to the checkpoint: the seconds that had elapsed by then."""
        extra = restore_checkpoint(self.folder / "checkpoint.npz", self.dispatcher)
        self.rows = extra["rows"]
        self._staleness, self._losses = extra["staleness"], extra["losses"]
        self.condemned = set(extra["condemned"])
        path = RunFolder(self.folder).tasks_path
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        with replacing(path) as temporary:
            temporary.write_text(
                "".join(lines[: self.dispatcher.counts.completed]), encoding="utf-8"
            )
        return float(extra["elapsed"])

    def event(self, event: Event, elapsed: float) -> None:
        """Something happened that a person may want to know; one line, whatever a client has said."""
        level = logging.WARNING if event.kind in WARNINGS else logging.INFO
        detail = on_one_line(event.detail)
        log.log(level, "%s", detail)
        self._events.write(f"{elapsed:.1f}\t{event.kind}\t{detail}\n")
        self._events.flush()

    def used(self, use: Use, loss: float | None, elapsed: float) -> None:
        """An update was applied."""
        self._staleness.append(use.staleness)
        self._recent.append((elapsed, use.staleness))
        self._record(use, use.index, loss, elapsed)

    def dropped(self, drop: Drop, loss: float | None, elapsed: float) -> None:
        """An update was dropped: its loss counts, its staleness does not."""
        self._record(drop, None, loss, elapsed)

    def _record(
        self, done: Use | Drop, index: int | None, loss: float | None, elapsed: float
    ) -> None:
        if loss is not None:
            self._losses.append(loss)
        task, seconds = done.task, done.service_seconds
        record = {
            "index": index,
            "used": index is not None,
            "task": task.number,
            "client": task.client,
            "ordinal": task.ordinal,
            "dispatched": task.dispatched,
            "version": task.version,
            "staleness": done.staleness,
            "probability": task.probability,
            "clients": task.clients,
            "divisor": task.divisor,
            "scale": done.scale,
            "time": round(elapsed, 3),
            "service_seconds": None if seconds is None else round(seconds, 3),
        }
        self._tasks.write(json.dumps(record) + "\n")
        self._tasks.flush()

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation is under way; another has to wait."""
        return self._pending is not None

    @property
    def evaluated_at(self) -> int:
        """How many rounds had been completed at the last evaluation."""
        if self._pending is not None:
            return self._pending.round
        return int(self.rows[-1]["round"]) if self.rows else 0

    def evaluate(self, elapsed: float) -> None:
        """Have the model as it is now evaluated, without waiting for the result.

        Should the evaluation before be under way, it is waited for.
        """
        self.collect(wait=True)
        counts, state = self.dispatcher.counts, self.dispatcher.state
        work = counts.completed + counts.refused + counts.late
        row: dict[str, float | int] = {
            "round": counts.completed,
            "time": elapsed,
            "train_loss": _mean(self._losses),
            "staleness": _mean(self._staleness),
            "gradients": work * self.dispatcher.rule.local_steps,
            "updates": state.version,
        }
        weights = state.model

        def work_out() -> dict[str, float | int]:
            loss, accuracy, metrics = measured(self.problem, weights)
            return {**row, "test_loss": loss, "test_accuracy": accuracy, **metrics}

        future = self._evaluator.submit(work_out)
        self._pending = _Pending(future, counts.completed, self._staleness, self._losses)
        self._staleness, self._losses = [], []

    def collect(self, *, wait: bool = False) -> None:
        """Take in an evaluation that is done, and write the history."""
        if self._pending is None or not (wait or self._pending.future.done()):
            return
        self.rows.append(self._pending.future.result())
        self._pending = None
        RunFolder(self.folder).write_history([self.history()])

    def history(self) -> History:
        """The evaluations so far."""
        names = ("round", "time", "test_loss", "test_accuracy", "train_loss", "staleness")
        columns: dict[str, Any] = {
            name: [row[name] for row in self.rows] for name in (*names, "gradients", "updates")
        }
        known = {*columns}
        own = [name for name in (self.rows[0] if self.rows else {}) if name not in known]
        return History(
            metrics={name: np.array([row[name] for row in self.rows]) for name in own},
            primary=getattr(self.problem, "primary", None),
            strategy=STRATEGY,
            seed=self.seed,
            learning_rate=self.dispatcher.learning_rate,
            clock="real",
            provenance=provenance(
                rule=self.dispatcher.rule.name, clients=len(self.dispatcher.clients)
            ),
            **columns,
        )

    def checkpoint(self, elapsed: float) -> None:
        """Write all that is needed to go on from here.

        An evaluation under way is not waited for: resumed, the run makes another instead.
        """
        self.collect()
        os.fsync(self._tasks.fileno())
        unfinished = self._pending
        extra = {
            "elapsed": elapsed,
            "rows": self.rows,
            "staleness": [*(unfinished.staleness if unfinished else []), *self._staleness],
            "losses": [*(unfinished.losses if unfinished else []), *self._losses],
            "condemned": sorted(self.condemned),
        }
        write_checkpoint(self.folder / "checkpoint.npz", self.dispatcher, extra)

    def status(self, elapsed: float, phase: str) -> None:
        """Say how it stands."""
        server = self.dispatcher
        recent = list(self._recent)
        between = recent[-1][0] - recent[0][0] if recent else 0.0
        last = self.rows[-1] if self.rows else {}
        planned = server.pace.planned
        norms, agreement = server.screen.typical_norms, server.agreement.values()
        status = {
            "elapsed": round(elapsed, 1),
            "updates": server.counts.used,
            "of": self.updates,
            "throughput": (len(recent) - 1) / between if between > 0 else 0.0,
            "staleness": _mean([staleness for _, staleness in recent]) if recent else None,
            "accuracy": _number(last.get("test_accuracy")),
            "loss": _number(last.get("test_loss")),
            "metrics": {name: _number(last.get(name)) for name in self.history().metrics},
            "counts": server.counts.to_dict(),
            "held": server.held,
            "concurrency": server.concurrency,
            "policy": server.router.policy.name,
            "clients": [
                {
                    "name": client.name,
                    "status": client.status,
                    "waiting": len(client.queue) + len(client.out),
                    "running": round(client.running(elapsed), 3),
                    "used": client.used,
                    "refused": client.refused,
                    "routing": float(server.router.routing[client.number]),
                    "rate": client.estimate.rate() if client.estimate.tasks else None,
                    "planned": None if planned is None else float(planned[client.number]),
                    "seconds": client.estimate.mean_seconds if client.estimate.tasks else None,
                    "norm": _finite(norms[client.number]),
                    "agreement": _finite(agreement[client.number]),
                    "speed": _finite(client.estimate.rate() / server.pace.caps[client.number])
                    if client.estimate.tasks
                    else None,
                }
                for client in server.clients
            ],
        }
        write_phase(self.folder, phase, **status)

    def close(self) -> None:
        """No more is written."""
        self._evaluator.shutdown(wait=False, cancel_futures=True)
        self._events.close()
        self._tasks.close()


def on_one_line(text: str) -> str:
    r"""Text that may hold anything as a line of a log: not long, and without control characters.

    >>> on_one_line("it failed\n0.0\tquarantined\tclient 7")
    'it failed 0.0 quarantined client 7'
    """
    short = text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]} ..."
    return "".join(letter if letter.isprintable() else " " for letter in short)


def write_phase(folder: Path, phase: str, **details: Any) -> None:
    """Write ``status.json``."""
    with replacing(RunFolder(folder).status_path) as temporary:
        temporary.write_text(json.dumps({"phase": phase, **details}), encoding="utf-8")


def _finite(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None


def _number(value: float | int | None) -> float | None:
    """For JSON, which has no ``nan``."""
    return None if value is None or not math.isfinite(value) else float(value)


def _mean(values: list[Any]) -> float:
    return float(sum(values) / len(values)) if values else math.nan

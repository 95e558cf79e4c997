"""What a running deployment writes into its folder.

``tasks.jsonl`` has a line per update that came to the rule (``used`` or not), ``events.log`` a line
per thing that went wrong or changed, ``status.json`` how it stands now, ``history.jsonl`` the
evaluations so far, and ``checkpoint.npz`` all that is needed to go on after a crash;
``model.safetensors``, on request, the model of that checkpoint, and ``events.jsonl`` the events as
JSON, in wall-clock time.
"""

import json
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from sojourn._support.arrays import write_tensors
from sojourn._support.files import write_text
from sojourn._support.provenance import provenance
from sojourn.deployment.checkpoint import restore_checkpoint, write_checkpoint
from sojourn.deployment.client import Learnable, measured
from sojourn.deployment.dispatcher import Dispatcher
from sojourn.deployment.export import BUFFER, CHECKPOINT, Layout
from sojourn.deployment.settings import Settings
from sojourn.deployment.status import RunStatus, write_status
from sojourn.deployment.tasks import Event, Use
from sojourn.runs.folder import RunFolder
from sojourn.runs.history import COLUMNS, History

log = logging.getLogger("sojourn.deployment")

STRATEGY = "deployed"
MODEL = "model.safetensors"
JSON_LOG = "events.jsonl"
HEARTBEAT_SECONDS = 5.0
RECENT = 20
"""Updates over which throughput and staleness are measured."""
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

    ``condemned`` are those whom their operator had in quarantine when that was last looked up. With
    ``resume`` it goes on where the checkpoint in the run's folder was made, at ``elapsed_before``;
    without, it begins anew. If the settings say ``export_model`` every checkpoint has the model
    beside it, as a ``state_dict`` file; with ``json_log`` events are written to ``events.jsonl``,
    too.

    ``sessions`` are the times at which a server began to run it: seconds of the run, and Unix time.

    While it is open, ``status.json`` has a ``heartbeat`` that is at most some seconds old, whatever
    the server is busy with.
    """

    def __init__(
        self, dispatcher: Dispatcher, problem: Learnable, settings: Settings, *, resume: bool
    ) -> None:
        self.dispatcher, self.problem, self.settings = dispatcher, problem, settings
        self.folder = folder = settings.run_folder
        self.layout = Layout.of(problem, dispatcher.state.weights)
        self.rows: list[dict[str, float | int]] = []
        self._staleness: list[int] = []
        self._losses: list[float] = []
        self.condemned: set[str] = set()
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self._evaluator = ThreadPoolExecutor(1, thread_name_prefix="evaluate")
        self._pending: _Pending | None = None
        self.sessions: list[tuple[float, float]] = []
        self.elapsed_before = self._go_back() if resume else 0.0
        self.sessions.append((round(self.elapsed_before, 3), round(time.time(), 3)))
        folder.mkdir(parents=True, exist_ok=True)
        mode = "a" if resume else "w"
        self._events = RunFolder(folder).events_path.open(
            mode, encoding="utf-8", errors="backslashreplace"
        )
        self._tasks = RunFolder(folder).tasks_path.open(mode, encoding="utf-8")
        self._json_log = (
            (folder / JSON_LOG).open(mode, encoding="utf-8") if settings.json_log else None
        )
        self.last_status: RunStatus = {}
        self._writing, self._closed = threading.Lock(), threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_SECONDS):
            with self._writing:
                if self.last_status and not self._closed.is_set():
                    self.last_status = write_status(self.folder, self.last_status)

    def _go_back(self) -> float:
        """Go back to the checkpoint: the seconds that had elapsed by then."""
        extra = restore_checkpoint(self.folder / CHECKPOINT, self.dispatcher)
        self.rows = extra["rows"]
        self._staleness, self._losses = extra["staleness"], extra["losses"]
        self.condemned = set(extra["condemned"])
        self.sessions = [(elapsed, unix) for elapsed, unix in extra.get("sessions", ())]
        path = RunFolder(self.folder).tasks_path
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        write_text(path, "".join(lines[: self.dispatcher.counts.completed]))
        return float(extra["elapsed"])

    def event(self, event: Event, elapsed: float) -> None:
        """Something happened that a person may want to know; one line, whatever a client has said."""
        level = logging.WARNING if event.kind in WARNINGS else logging.INFO
        detail = on_one_line(event.detail)
        log.log(level, "%s", detail)
        self._events.write(f"{elapsed:.1f}\t{event.kind}\t{detail}\n")
        self._events.flush()
        if self._json_log is not None:
            record = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "level": logging.getLevelName(level).lower(),
                "kind": event.kind,
                "client": event.client,
                "elapsed": round(elapsed, 3),
                "message": detail,
            }
            self._json_log.write(json.dumps(record) + "\n")
            self._json_log.flush()

    def completed(
        self, done: Use, loss: float | None, elapsed: float, computing: float | None = None
    ) -> None:
        """An update was applied or dropped: of one dropped the loss counts, its staleness does not.

        ``computing`` is how long its client says that it worked; the rest of the time it was on its
        way.
        """
        used = done.index is not None
        if used:
            self._staleness.append(done.staleness)
            self._recent.append((elapsed, done.staleness))
        if loss is not None:
            self._losses.append(loss)
        task, seconds = done.task, done.service_seconds
        record = {
            "index": done.index,
            "used": used,
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
            "computing_seconds": None if computing is None else round(max(0.0, computing), 6),
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
        row: dict[str, float | int] = {
            "round": counts.completed,
            "time": elapsed,
            "train_loss": _mean(self._losses),
            "staleness": _mean(self._staleness),
            "gradients": sum(client.gradients for client in self.dispatcher.clients),
            "updates": state.version,
        }
        if self.dispatcher.epsilon is not None:
            row["epsilon"] = self.dispatcher.epsilon
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

    @property
    def _metrics(self) -> list[str]:
        """What evaluations have beside the columns of every history."""
        return [name for name in (self.rows[0] if self.rows else ()) if name not in COLUMNS]

    def history(self) -> History:
        """The evaluations so far."""
        columns: dict[str, Any] = {
            name: np.array([row[name] for row in self.rows]) for name in COLUMNS
        }
        return History(
            metrics={name: np.array([row[name] for row in self.rows]) for name in self._metrics},
            primary=getattr(self.problem, "primary", None),
            strategy=STRATEGY,
            seed=self.settings.seed,
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
        extra: dict[str, Any] = {
            "elapsed": elapsed,
            "rows": self.rows,
            "staleness": [*(unfinished.staleness if unfinished else []), *self._staleness],
            "losses": [*(unfinished.losses if unfinished else []), *self._losses],
            "condemned": sorted(self.condemned),
            "sessions": self.sessions,
        }
        extra["layout"] = self.layout.entries
        buffers = {BUFFER + name: array for name, array in self.layout.buffers.items()}
        write_checkpoint(self.folder / CHECKPOINT, self.dispatcher, extra, buffers)
        if self.settings.export_model:
            state = self.layout.state(self.dispatcher.state.model)
            write_tensors(self.folder / MODEL, state)

    def status(self, elapsed: float, phase: str) -> None:
        """Say how it stands."""
        server = self.dispatcher
        recent = list(self._recent)
        between = recent[-1][0] - recent[0][0] if recent else 0.0
        last = self.rows[-1] if self.rows else {}
        pace = server.guard.pace
        norms, agreement = server.guard.typical_norms, server.guard.agreement.values()
        status: RunStatus = {
            "phase": phase,
            "elapsed": round(elapsed, 1),
            "sessions": self.sessions,
            "updates": server.counts.used,
            "of": self.settings.updates,
            "throughput": (len(recent) - 1) / between if between > 0 else 0.0,
            "staleness": _mean([staleness for _, staleness in recent]) if recent else None,
            "accuracy": last.get("test_accuracy"),
            "loss": last.get("test_loss"),
            "metrics": {name: last.get(name) for name in self._metrics},
            "epsilon": server.epsilon,
            "counts": server.counts.to_dict(),
            "held": server.held,
            "concurrency": server.concurrency,
            "policy": server.router.policy.name,
            "clients": [
                {
                    "name": client.name,
                    "number": client.number,
                    "status": client.status,
                    "waiting": len(client.queue) + len(client.out),
                    "running": round(client.running(elapsed), 3),
                    "used": client.used,
                    "refused": client.refused,
                    "routing": float(server.router.routing[client.number]),
                    "rate": client.estimate.rate() if client.estimate.tasks else None,
                    "planned": None if pace.planned is None else float(pace.planned[client.number]),
                    "seconds": client.estimate.mean_seconds if client.estimate.tasks else None,
                    "norm": round(float(norms[client.number]), 6),
                    "agreement": round(float(agreement[client.number]), 6),
                    "speed": round(float(client.estimate.rate() / pace.caps[client.number]), 6)
                    if client.estimate.tasks
                    else None,
                }
                for client in server.clients
                if not client.vacant
            ],
        }
        with self._writing:
            self.last_status = write_status(self.folder, status)

    def close(self) -> None:
        """No more is written."""
        self._evaluator.shutdown(wait=False, cancel_futures=True)
        self._closed.set()
        self._events.close()
        self._tasks.close()
        if self._json_log is not None:
            self._json_log.close()


def on_one_line(text: str) -> str:
    r"""Text that may hold anything as a line of a log: not long, and without control characters.

    >>> on_one_line("it failed\n0.0\tquarantined\tclient 7")
    'it failed 0.0 quarantined client 7'
    """
    short = text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]} ..."
    return "".join(letter if letter.isprintable() else " " for letter in short)


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values)) if values else math.nan

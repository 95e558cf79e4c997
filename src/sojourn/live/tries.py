"""The pilots of an explorer: started, listened to, stopped, and none left behind."""

import contextlib
import json
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from sojourn.errors import InvalidInput, MissingExtra
from sojourn.live.settings import Settings
from sojourn.network import Fleet

MOST_AT_ONCE = 2
MOST_KEPT = 12
GRADIENTS = 2000.0
"""About how many a pilot computes if nobody ever waits."""


def usual_horizon(fleet: Fleet) -> float:
    """Units of time of a pilot: the same for all settings of a fleet, to one digit.

    >>> usual_horizon(Fleet([0.01, 0.1, 1.0], counts=[10, 10, 10]))
    200.0
    """
    return float(f"{GRADIENTS / fleet.total_rate:.1g}")


@dataclass(eq=False)
class Try:
    """One pilot: what it runs with, and what it has said so far."""

    number: int
    settings: Settings
    process: "subprocess.Popen[str]"
    rows: list[dict[str, Any]] = field(default_factory=list)
    curvature: float | None = None
    done: int = 0
    rounds: int | None = None
    end: str | None = None
    error: str | None = None

    def listen(self) -> None:
        """Take in what the process says, until it ends."""
        assert self.process.stdout is not None
        with self.process.stdout as said:
            for line in said:
                with contextlib.suppress(ValueError):
                    self._take(json.loads(line))
        self.process.wait()
        self.end = self.end or "stopped"

    def _take(self, said: dict[str, Any]) -> None:
        if "row" in said:
            self.rows.append(said["row"])
        elif "curvature" in said:
            self.curvature = said["curvature"]
        elif "end" in said:
            self.end, self.error = said["end"], said.get("error")
        else:
            self.done, self.rounds = said["done"], said["rounds"]

    def stop(self) -> None:
        """End the process and wait until it is gone."""
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def to_table(self) -> dict[str, Any]:
        """What the page draws."""
        last = self.rows[-1] if self.rows else None
        return {
            "number": self.number,
            "words": self.settings.in_words(),
            "partition": self.settings.partition,
            "horizon": self.settings.horizon,
            "rows": list(self.rows),
            "done": self.done,
            "rounds": self.rounds,
            "end": self.end,
            "error": self.error,
            "accuracy": None if last is None else last["test_accuracy"],
            "loss": None if last is None else last["test_loss"],
        }


class Tries:
    """All pilots of one server; safe to ask from several threads."""

    def __init__(self, base: Fleet) -> None:
        self._base = base
        self._lock = threading.Lock()
        self._all: list[Try] = []
        self._count = 0
        self._closed = False

    def start(self, settings: Settings) -> Try:
        """Begin a pilot; ``settings`` has its horizon."""
        for package in ("torch", "sklearn"):
            if find_spec(package) is None:
                raise MissingExtra(package, extra="train")
        with self._lock:
            running = [one for one in self._all if one.end is None]
            if self._closed or len(running) >= MOST_AT_ONCE:
                raise InvalidInput(
                    f"{len(running)} pilots are running: wait for one to end, or stop it"
                )
            process = subprocess.Popen(
                [sys.executable, "-m", "sojourn.live.pilot"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._count += 1
            begun = Try(self._count, settings, process)
            self._all = [*self._all, begun][-MOST_KEPT:]
        assert process.stdin is not None
        question = {"fleet": _fleet_table(self._base), "settings": settings.to_table()}
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
        threading.Thread(target=begun.listen, daemon=True).start()
        return begun

    def listed(self) -> list[Try]:
        """The pilots that are kept, oldest first."""
        with self._lock:
            return list(self._all)

    def stop(self, number: int) -> None:
        """Stop one that is running; forget one that has ended."""
        with self._lock:
            chosen = [one for one in self._all if one.number == number]
            self._all = [one for one in self._all if one.number != number or one.end is None]
        for one in chosen:
            one.stop()

    @property
    def curvature(self) -> float | None:
        """The largest curvature of the loss, as the last pilot measured it."""
        seen = [one.curvature for one in self.listed() if one.curvature]
        return seen[-1] if seen else None

    def close(self) -> None:
        """End every process; no more can be started."""
        with self._lock:
            self._closed = True
        for one in self.listed():
            one.stop()


def _fleet_table(fleet: Fleet) -> dict[str, Any]:
    return {
        "rates": fleet.service_rates.tolist(),
        "counts": fleet.counts.tolist(),
        "names": fleet.names,
        "law": fleet.law,
        "columns": {name: values.tolist() for name, values in fleet.columns.items()},
    }

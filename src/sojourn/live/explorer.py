"""The explorer: one page of settings, the answers to what it asks, and the pilots that it starts."""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sojourn._support.checks import check_number
from sojourn.errors import InvalidInput, MissingExtra, SojournError
from sojourn.figures.palette import inks
from sojourn.figures.timeline import OPENING_ROWS, timelines_svg
from sojourn.fleet import Fleet, Network, uniform_routing
from sojourn.live.server import Answer, LocalServer, page
from sojourn.live.settings import (
    PARTITIONS,
    Settings,
    advice,
    class_rows,
    command,
    landscape,
    movable,
    summary,
    timeline,
)

MOST_COMPARED = 12
WIDEST = 1200.0
"""Of a timeline, in pixels."""
REPORTED = {"curvature", "done", "rounds", "end", "error"}
"""What a pilot reports beside the rows of its history."""
PARTS = ("numbers", "map", "timeline")
"""Parts of a view, the fastest first."""
MOST_AT_ONCE = 2
MOST_KEPT = 12
"""Pilots that run at a time, and that are remembered."""


@dataclass(eq=False)
class Try:
    """One pilot: what it runs with, and what it has said so far."""

    number: int
    settings: Settings
    process: "subprocess.Popen[str]"
    rows: list[dict[str, float]] = field(default_factory=list)
    curvature: float | None = None
    done: int = 0
    rounds: int | None = None
    end: str | None = None
    error: str | None = None

    def listen(self) -> None:
        """Take in what the process says, until it ends."""
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                with contextlib.suppress(ValueError):
                    self._take(json.loads(line))
        self.process.wait()
        self.end = self.end or "stopped"

    def _take(self, message: dict[str, Any]) -> None:
        """A row of the history; else the curvature, how far it is, or how it ended."""
        if "row" in message:
            self.rows.append(message["row"])
        for key in REPORTED & message.keys():
            setattr(self, key, message[key])

    def stop(self) -> None:
        """End the process and wait until it is gone."""
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def to_table(self) -> dict[str, object]:
        """What the page draws."""
        last = self.rows[-1] if self.rows else None
        return {
            **{key: getattr(self, key) for key in ("number", "done", "rounds", "end", "error")},
            "words": self.settings.in_words(),
            "partition": self.settings.partition,
            "horizon": self.settings.horizon,
            "rows": list(self.rows),
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
            running = [pilot for pilot in self._all if pilot.end is None]
            if self._closed or len(running) >= MOST_AT_ONCE:
                raise InvalidInput(
                    f"{len(running)} pilots are running: wait for one to end, or stop it"
                )
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sojourn.live.pilot"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._count += 1
            begun = Try(self._count, settings, process)
            self._all = [*self._all, begun][-MOST_KEPT:]
        assert process.stdin is not None
        base = Network(self._base, uniform_routing(self._base), 1)
        question = {"base": base.to_table(), "settings": settings.to_table()}
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
        threading.Thread(target=begun.listen, daemon=True).start()
        return begun

    def listed(self) -> list[Try]:
        """The last pilots, oldest first."""
        with self._lock:
            return list(self._all)

    def stop(self, number: int) -> None:
        """Stop one that is running; forget one that has ended."""
        with self._lock:
            chosen = [pilot for pilot in self._all if pilot.number == number]
            self._all = [
                pilot for pilot in self._all if pilot.number != number or pilot.end is None
            ]
        for pilot in chosen:
            pilot.stop()

    @property
    def curvature(self) -> float | None:
        """The largest curvature of the loss, as the last pilot measured it."""
        measured = [pilot.curvature for pilot in self.listed() if pilot.curvature]
        return measured[-1] if measured else None

    def close(self) -> None:
        """End every process; no more can be started."""
        with self._lock:
            self._closed = True
        for pilot in self.listed():
            pilot.stop()


class Explorer:
    """Answers for one fleet, called ``source`` on the command line."""

    def __init__(self, fleet: Fleet, source: str) -> None:
        self.original, self.source = fleet, source
        self.base = movable(fleet)
        self.tries = Tries(self.base)
        self._turns = threading.Lock()
        self._latest: dict[tuple[str, str], int] = {}
        self._locks = {kind: threading.Lock() for kind in ("map", "timeline", "advice")}

    @property
    def answers(self) -> dict[str, Answer]:
        """What the page may ask."""
        return {
            "view": self.view,
            "advice": self.advice,
            "compare": self.compare,
            "save": self.save,
            "try": self.begin,
            "stop": self.stop,
            "tries": self.listed,
        }

    def serve_on(self, port: int = 0) -> LocalServer:
        """The server of this explorer, not yet serving."""
        return LocalServer(page("explore", self.about()), self.answers, port=port)

    def prepare(self) -> threading.Thread:
        """Begin with what a page asks first, in a thread of its own, while a browser is opened.

        Nothing is kept of it but loaded kernels, which take most of the time of the first answers.
        """

        def ask() -> None:
            with contextlib.suppress(SojournError):  # said when the page asks
                self.view({"parts": ["numbers"]})
                self.advice({})
                self.view({"parts": ["timeline"]})

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        return thread

    def about(self) -> dict[str, object]:
        """What the page knows before it asks."""
        fleet, colours = self.base, inks(f"try {k}" for k in range(8))
        grouped = self.original.classes != fleet.classes
        return {
            "source": self.source,
            "fleet": self.original.in_words(),
            "note": f"{self.original.classes} speeds, grouped into {fleet.classes} classes"
            if grouped
            else "",
            "names": [fleet.label(k) for k in range(fleet.classes)],
            "settings": Settings(fleet, fleet.size).to_table(),
            "partitions": list(PARTITIONS),
            "inks": [vars(ink) for ink in colours.values()],
        }

    def view(self, asked: Mapping[str, object]) -> dict[str, object]:
        """What follows from settings; ``width`` is that of the timeline.

        ``parts`` (by default all) are ``numbers``, ``map`` and ``timeline``: a page asks for the
        numbers first, and for the slower pictures afterwards.
        """
        values = dict(asked)
        width = check_number("width", values.pop("width", WIDEST), least=200.0, most=WIDEST)
        parts, page = values.pop("parts", PARTS), values.pop("page", None)
        if not isinstance(parts, list | tuple) or not set(map(str, parts)) <= set(PARTS):
            raise InvalidInput(f"parts must be some of {', '.join(PARTS)}")
        settings = Settings.from_table(values, self.base)
        answer: dict[str, object] = {}
        if "numbers" in parts:
            answer |= {
                "summary": summary(settings, self.tries.curvature),
                "classes": class_rows(settings),
                "command": command(settings, self.source, self.original),
                "horizon": settings.pilot_time,
            }
        if "map" in parts:
            answer |= self._slow("map", page, lambda: {"map": landscape(settings)})
        if "timeline" in parts:
            answer |= self._slow("timeline", page, lambda: {"timeline": _drawn(settings, width)})
        return answer

    def _slow(
        self, kind: str, page: object, compute: Callable[[], dict[str, object]]
    ) -> dict[str, object]:
        """``compute()``, one of each kind at a time.

        Of the questions of one page that wait only the last is computed, so that a page that was
        closed, or moved on, leaves at most one computation behind.
        """
        asker = (kind, str(page))
        with self._turns:
            self._latest[asker] = turn = self._latest.get(asker, 0) + 1
        with self._locks[kind]:
            if page is not None and self._latest[asker] != turn:
                return {"superseded": True}
            return compute()

    def advice(self, asked: Mapping[str, object]) -> dict[str, object]:
        """What would be better."""
        values = dict(asked)
        page = values.pop("page", None)
        settings = Settings.from_table(values, self.base)
        return self._slow("advice", page, lambda: advice(settings, self.tries.curvature))

    def compare(self, asked: Mapping[str, object]) -> list[dict[str, object]]:
        """Several settings side by side."""
        listed = asked.get("settings")
        if not isinstance(listed, list) or len(listed) > MOST_COMPARED:
            raise InvalidInput(f"up to {MOST_COMPARED} settings can be compared")
        return [
            summary(Settings.from_table(entry, self.base), self.tries.curvature) for entry in listed
        ]

    def save(self, asked: Mapping[str, object]) -> dict[str, object]:
        """The text of a file to keep: ``strategy.toml`` or ``fleet.csv``."""
        values = dict(asked)
        name = values.pop("file", None)
        settings = Settings.from_table(values, self.base)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "saved"
            if name == "strategy.toml":
                settings.to_strategy().write(path)
            elif name == "fleet.csv":
                settings.fleet.to_csv(path)
            else:
                raise InvalidInput("what can be saved is strategy.toml and fleet.csv")
            return {"name": name, "text": path.read_text(encoding="utf-8")}

    def begin(self, asked: Mapping[str, object]) -> dict[str, object]:
        """Start a pilot with settings."""
        settings = Settings.from_table(asked, self.base)
        settings = replace(settings, horizon=settings.pilot_time)
        return self.tries.start(settings).to_table()

    def stop(self, asked: Mapping[str, object]) -> dict[str, object]:
        """Stop a pilot, or forget one that has ended."""
        number = asked.get("number")
        if not isinstance(number, int):
            raise InvalidInput("say which try: its number")
        self.tries.stop(number)
        return self.listed({})

    def listed(self, asked: Mapping[str, object]) -> dict[str, object]:
        """All pilots with their rows."""
        return {"tries": [pilot.to_table() for pilot in self.tries.listed()]}

    def close(self) -> None:
        """End what runs."""
        self.tries.close()


def _drawn(settings: Settings, width: float) -> dict[str, str]:
    picture = timeline(settings)
    panels = [("", picture)]
    svg = timelines_svg(panels, styled=False, width=width, stacked=True, most_rows=OPENING_ROWS)
    return {"svg": svg, "words": picture.in_words()}

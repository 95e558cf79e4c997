"""The explorer: one page of settings, and the answers to what it asks."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sojourn.checks import check_number
from sojourn.errors import InvalidInput
from sojourn.inputs import DEFAULT_CONSTANTS
from sojourn.live.advice import advice
from sojourn.live.numbers import class_rows, command, landscape, summary, timeline
from sojourn.live.page import page
from sojourn.live.server import Answer, LocalServer
from sojourn.live.settings import PARTITIONS, Settings, movable
from sojourn.live.tries import Tries, usual_horizon
from sojourn.network import Fleet
from sojourn.palette import inks

MOST_COMPARED = 12
WIDEST = 1200.0


class Explorer:
    """Answers for one fleet, called ``source`` on the command line."""

    def __init__(self, fleet: Fleet, source: str) -> None:
        self.original, self.source = fleet, source
        self.base = movable(fleet)
        self.tries = Tries(self.base)

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

    def about(self) -> dict[str, Any]:
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
            "constants": vars(DEFAULT_CONSTANTS),
            "inks": [vars(ink) for ink in colours.values()],
        }

    def view(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """All that follows from settings at once; ``width`` is that of the timeline."""
        values = dict(asked)
        width = check_number("width", values.pop("width", WIDEST), least=200.0, most=WIDEST)
        settings = Settings.from_table(values, self.base)
        picture = timeline(settings)
        return {
            "summary": summary(settings, self.tries.curvature),
            "classes": class_rows(settings),
            "map": landscape(settings),
            "timeline": {
                "svg": picture.to_svg(styled=False, width=width),
                "words": picture.in_words(),
            },
            "command": command(settings, self.source, self.original),
            "horizon": settings.horizon or usual_horizon(settings.fleet),
        }

    def advice(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What would be better."""
        return advice(Settings.from_table(asked, self.base), self.tries.curvature)

    def compare(self, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Several settings side by side."""
        listed = asked.get("settings")
        if not isinstance(listed, list) or len(listed) > MOST_COMPARED:
            raise InvalidInput(f"up to {MOST_COMPARED} settings can be compared")
        return [
            summary(Settings.from_table(one, self.base), self.tries.curvature) for one in listed
        ]

    def save(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The text of a file to keep: ``plan.toml`` or ``fleet.csv``."""
        values = dict(asked)
        name = values.pop("file", None)
        settings = Settings.from_table(values, self.base)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "saved"
            if name == "plan.toml":
                settings.to_plan().write(path)
            elif name == "fleet.csv":
                settings.fleet.to_csv(path)
            else:
                raise InvalidInput("what can be saved is plan.toml and fleet.csv")
            return {"name": name, "text": path.read_text(encoding="utf-8")}

    def begin(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Start a pilot with settings."""
        settings = Settings.from_table(asked, self.base)
        if settings.horizon is None:
            settings = replace(settings, horizon=usual_horizon(settings.fleet))
        return self.tries.start(settings).to_table()

    def stop(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Stop a pilot, or forget one that has ended."""
        number = asked.get("number")
        if not isinstance(number, int):
            raise InvalidInput("say which try: its number")
        self.tries.stop(number)
        return self.listed({})

    def listed(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """All pilots with their rows."""
        return {"tries": [one.to_table() for one in self.tries.listed()]}

    def close(self) -> None:
        """End what runs."""
        self.tries.close()

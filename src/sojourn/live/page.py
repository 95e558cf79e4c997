"""Pages of the live views: one HTML text each, with its style and script inside."""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from sojourn.timeline import DARK_RULES, LIGHT_RULES, SHAPES


def page(name: str, about: Mapping[str, Any]) -> str:
    """The page ``name`` (``explore`` or ``watch``), which knows ``about`` before it asks anything."""
    style = "\n".join(
        [
            files("sojourn.report").joinpath("templates/report.css").read_text("utf-8"),
            SHAPES,
            LIGHT_RULES,
            f"@media screen {{ :root.dark {{ {DARK_RULES} }} }}",
            _part("live.css"),
        ]
    )
    known = json.dumps(about).replace("<", "\\u003c").replace("&", "\\u0026")
    parts = {
        "/*body*/": _part(f"{name}.html"),
        "/*title*/": f"Sojourn {name}",
        "/*style*/": style,
        "/*about*/": known,
        "/*script*/": _part("live.js") + _part(f"{name}.js"),
    }
    text = _part("shell.html")
    for mark, part in parts.items():
        text = text.replace(mark, part)
    return text


def _part(name: str) -> str:
    return files("sojourn.live").joinpath("pages", name).read_text("utf-8")

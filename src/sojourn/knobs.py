"""The knobs of a rule or of its parts: the fields of a frozen dataclass."""

import dataclasses
from typing import Any


class Knobs:
    """Shows the knobs that are set."""

    def __repr__(self) -> str:
        knobs = ", ".join(f"{k}={v!r}" for k, v in set_knobs(self).items())
        return f"{type(self).__name__}({knobs})"


def set_knobs(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    found = {}
    for knob in dataclasses.fields(value):
        made = knob.default_factory
        default = knob.default if made is dataclasses.MISSING else made()
        if getattr(value, knob.name) != default:
            found[knob.name] = getattr(value, knob.name)
    return found

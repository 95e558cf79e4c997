"""A generator of logs as they are: tasks of five device types, and ten kinds of dirt in them."""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

RATES = {"téléphone": 0.2, "タブレット": 0.5, "ноутбук": 1.0, "desktop": 3.0, "server 🖥": 9.0}
"""Tasks per second of a device of each type."""
BEGINNING = 1_700_000_000.0
HEADER = "type,Device ID,start,end,battery"


@dataclass(frozen=True)
class Written:
    """What was written: the reason of every bad row by its line."""

    path: Path
    rows: int
    reasons: dict[int, str]

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(self.reasons.values()))


def _iso(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat()


def _replaced(row: list[str], place: int, text: str) -> str:
    return ",".join([*row[:place], text, *row[place + 1 :]])


def _undecodable(row: list[str]) -> str:
    return _replaced(row, 1, row[1] + "\udcff")


KINDS = {
    "device is missing": lambda row: _replaced(row, 1, "NaN"),
    "device has control characters or is not UTF-8": _undecodable,
    "start is missing": lambda row: _replaced(row, 2, "null"),
    "start is not a time": lambda row: _replaced(row, 2, "yesterday"),
    "end is not a time": lambda row: _replaced(row, 3, "2023-13-45T00:00:00Z"),
    "task does not end after its start": lambda row: ",".join([*row[:2], row[3], row[2], *row[4:]]),
    "start is far outside the log (wrong clock?)": lambda row: _replaced(row, 2, _iso(3600.0)),
    "number of fields is not 5": lambda row: ",".join(row[:-2]),
    "end is missing, and the device began another task later": lambda row: _replaced(row, 3, ""),
}
"""Dirt that replaces a row, by the reason that it is refused for."""
DUPLICATE = "row is a duplicate"
STRAY_QUOTE = "stray quote"


def write_log(
    path: Path, random: np.random.Generator, *, rows: int, dirt: float, devices: int = 20
) -> Written:
    """A log of about ``rows`` tasks, a share ``dirt`` of whose rows are bad, kinds in equal shares."""
    tasks: list[tuple[float, str, str, float]] = []
    last = set()
    for kind, rate in RATES.items():
        each = max(8, int(rows * rate / sum(RATES.values()) / devices))
        for number in range(devices):
            ends = BEGINNING + np.cumsum(random.gamma(2.0, 0.5 / rate, each) + 2e-6)
            starts = np.concatenate([[BEGINNING], ends[:-1]])
            name = f"{kind} {number}"
            tasks += [
                (a, name, kind, b) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
            ]
            last.add((name, starts[-1]))
    tasks.sort()
    kinds = [*KINDS, DUPLICATE, STRAY_QUOTE]
    lines, reasons = [HEADER], {}
    soiled = random.random(len(tasks)) < dirt
    chosen = random.integers(0, len(kinds), len(tasks))
    for i, (start, name, kind, end) in enumerate(tasks):
        written = _iso(start), _iso(end)
        if i % 3 == 1:  # some devices write epoch times in seconds, and some another zone
            written = f"{start:.6f}", f"{end:.6f}"
        row = [kind, name, *written, f"{random.random():.2f}"]
        what = kinds[chosen[i]] if soiled[i] and (name, start) not in last else None
        if what is None:
            lines.append(",".join(row))
        elif what == DUPLICATE:
            lines += [",".join(row), ",".join(row)]
            reasons[len(lines)] = DUPLICATE
        elif what == STRAY_QUOTE:
            lines.append('"' + ",".join(row))
            reasons[len(lines)] = "number of fields is not 5"
        else:
            lines.append(KINDS[what](row))
            reasons[len(lines)] = what
    text = "\n".join(lines) + "\n"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return Written(path, len(lines) - 1, reasons)

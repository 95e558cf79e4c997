"""What a reproduction found: statements of the paper, each with its outcome, and their file."""

import json
import math
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from reproduction.intervals import Interval
from reproduction.stored import (
    figure_from_json,
    figure_to_json,
    table_from_json,
    table_to_json,
)
from sojourn._support.configuration import parse_json
from sojourn._support.files import read_text, replacing
from sojourn.errors import InvalidFile
from sojourn.figures.figure import Figure, Table

Outcome = Literal["reproduces", "does not reproduce", "inconclusive", "data not found"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
IN_PART = "reproduces in part"
WHERE_CONCLUSIVE: dict[Outcome, str] = {
    "reproduces": "reproduces where conclusive",
    "does not reproduce": "does not reproduce where conclusive",
}
"""The verdict where some statements are decided, all the same way, and others are open."""

_FORMER_OUTCOMES: dict[str, Outcome] = {"cannot be told here": "inconclusive"}
"""What earlier versions wrote into their files."""

FILE = "finding.json"
DIGITS = 4
"""Significant digits of a figure's numbers: more than a page can show."""


@dataclass(frozen=True)
class Compared:
    """Two strategies under the same seeds: a difference or a ratio, its interval, how many pairs.

    ``unit`` is ``points`` (of accuracy, in per cent), ``spikes`` or ``times``. The interval holds at 95 % for all
    looks taken; its ends are ``None`` before the first look.
    """

    about: str
    unit: str
    estimate: float | None
    low: float | None
    high: float | None
    pairs: int

    @classmethod
    def of(cls, about: str, unit: str, interval: Interval, scale: float = 1.0) -> "Compared":
        """An interval as it is written, in the unit."""
        estimate, low, high = (
            scale * x if math.isfinite(x) else None
            for x in (interval.estimate, interval.low, interval.high)
        )
        return cls(about, unit, estimate, low, high, interval.pairs)

    def __str__(self) -> str:
        form = ".2f" if self.unit == "times" else "+.1f"
        if self.estimate is None:
            return f"{self.about} unknown"
        text = f"{self.about} {self.estimate:{form}}"
        if self.low is None or self.high is None:
            return text
        return f"{text} [{self.low:{form}}, {self.high:{form}}]"


@dataclass(frozen=True)
class Statement:
    """One thing the paper says, what was found here, and whether they agree.

    ``reading`` tells under which reading of an ambiguous text the comparison was made, ``about``
    of which of several cases the statement is judged here. A statement about training runs rests on
    ``compared``; one that could not be told ``needs`` about so many pairs, if anyone can say. ``size``
    is how large the runs were; empty for what is computed as in the paper.
    """

    says: str
    found: str
    outcome: Outcome
    reading: str = ""
    about: str = ""
    compared: tuple[Compared, ...] = ()
    needs: int | None = None
    size: str = ""

    @property
    def is_judged(self) -> bool:
        """Whether anything was computed or compared for it: not where its runs were not made."""
        return self.outcome != "inconclusive" or bool(self.compared) or not self.size

    @property
    def is_told(self) -> bool:
        """Whether the statement is decided, for the paper or against it."""
        return self.outcome in WHERE_CONCLUSIVE


@dataclass(frozen=True)
class Finding:
    """All that was found about one claim. The verdict is computed from the statements."""

    claim: str
    title: str
    source: str
    checked: str
    scale: str
    statements: tuple[Statement, ...]
    reduced: str = ""
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The statements in one word.

        Statements that could not be told here, or whose data are missing, decide nothing unless
        there is no other; but the verdict, whichever it is, then only goes as far as was told.

        >>> told = Statement("a", "b", "reproduces"), Statement("c", "d", "inconclusive")
        >>> Finding("1", "t", "s", "c", "paper", told).verdict
        'reproduces where conclusive'
        """
        outcomes = Counter(statement.outcome for statement in self.statements)
        if outcomes["reproduces"] and outcomes["does not reproduce"]:
            return IN_PART
        for outcome, hedged in WHERE_CONCLUSIVE.items():
            if 0 < outcomes[outcome] < len(self.statements):
                return hedged
        for outcome in OUTCOMES:
            if outcomes[outcome]:
                return outcome
        return "inconclusive"

    @property
    def rests_on(self) -> str:
        """The sizes of the runs that the verdict rests on: those of the statements that are decided."""
        told = [statement for statement in self.statements if statement.is_told]
        sizes = dict.fromkeys(statement.size for statement in told or self.statements)
        if not any(sizes):
            return "reduced" if self.reduced else "full size"
        words = "; ".join(filter(None, sizes))
        return words if told else f"nothing is decided: {words}"

    @property
    def tally(self) -> str:
        """How many statements have which outcome, in words."""
        outcomes = Counter(statement.outcome for statement in self.statements)
        total = len(self.statements)
        parts = [f"{outcomes[o]} {_PLURAL[o]}" for o in OUTCOMES if outcomes[o]]
        noun = "statement" if total == 1 else "statements"
        return f"{total} {noun}: {', '.join(parts)}" if parts else "no statement was checked"

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``finding.json`` into ``folder``, the verdict beside what it rests on."""
        values = {
            **{key: getattr(self, key) for key in _TEXTS},
            "verdict": self.verdict,
            "tally": self.tally,
            "statements": [asdict(statement) for statement in self.statements],
            "tables": [table_to_json(table) for table in self.tables],
            "figures": [figure_to_json(figure, DIGITS) for figure in self.figures],
            "provenance": self.provenance,
        }
        target = Path(folder) / FILE
        with replacing(target) as temporary:
            temporary.write_text(f"{_in_lines(values)}\n", encoding="utf-8")
        return target

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> "Finding":
        """Read ``finding.json``; the verdict is computed again, whatever the file says."""
        path = Path(folder) / FILE
        try:
            values = parse_json(read_text(path, encoding="utf-8"), str(path))
            statements = tuple(_statement(entry) for entry in values["statements"])
            for statement in statements:
                if statement.outcome not in OUTCOMES:
                    raise InvalidFile(f"{path}: '{statement.outcome}' is no outcome")
            return cls(
                **{key: str(values[key]) for key in _TEXTS},
                statements=statements,
                tables=tuple(table_from_json(entry) for entry in values["tables"]),
                figures=tuple(figure_from_json(entry) for entry in values["figures"]),
                provenance=dict(values["provenance"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidFile(f"{path}: not a finding as Sojourn writes it ({error!r})") from error


def _statement(entry: dict[str, Any]) -> Statement:
    compared = tuple(Compared(**one) for one in entry.get("compared", ()))
    outcome = _FORMER_OUTCOMES.get(entry["outcome"], entry["outcome"])
    return Statement(**{**entry, "outcome": outcome, "compared": compared})


def _in_lines(value: Any, indent: str = "") -> str:
    """JSON in which whatever holds no other table, such as a curve, is one line."""
    within = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not any(_holds_tables(one) for one in within):
        return json.dumps(value, allow_nan=False)
    deeper = f"{indent} "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_in_lines(one, deeper)}" for key, one in value.items()]
        opened, closed = "{}"
    else:
        parts, (opened, closed) = [_in_lines(one, deeper) for one in value], "[]"
    lines = ",\n".join(f"{deeper}{part}" for part in parts)
    return f"{opened}\n{lines}\n{indent}{closed}"


def _holds_tables(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_holds_tables, value)))


_TEXTS = ("claim", "title", "source", "checked", "scale", "reduced")
_PLURAL = {
    "reproduces": "reproduced",
    "does not reproduce": "not reproduced",
    "inconclusive": "inconclusive",
    "data not found": "without data",
}

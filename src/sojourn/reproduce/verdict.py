"""What a reproduction found: statements of the paper, each with its outcome, and their file."""

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from sojourn.errors import InvalidFile
from sojourn.figure import Figure, Table
from sojourn.files import replacing

Outcome = Literal["reproduces", "does not reproduce", "cannot be told here", "data not found"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
IN_PART = "reproduces in part"
AS_FAR_AS_TOLD: dict[Outcome, str] = {
    "reproduces": "reproduces, as far as told",
    "does not reproduce": "does not reproduce, as far as told",
}
"""The verdict where some statements are decided, all the same way, and others are open."""

FILE = "finding.json"


@dataclass(frozen=True)
class Statement:
    """One thing the paper says, what was found here, and whether they agree.

    ``reading`` tells under which reading of an ambiguous text the comparison was made, ``about``
    of which of several cases the statement is judged here.
    """

    says: str
    found: str
    outcome: Outcome
    reading: str = ""
    about: str = ""


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

        >>> told = Statement("a", "b", "reproduces"), Statement("c", "d", "cannot be told here")
        >>> Finding("1", "t", "s", "c", "paper", told).verdict
        'reproduces, as far as told'
        """
        outcomes = Counter(statement.outcome for statement in self.statements)
        if outcomes["reproduces"] and outcomes["does not reproduce"]:
            return IN_PART
        for outcome, hedged in AS_FAR_AS_TOLD.items():
            if 0 < outcomes[outcome] < len(self.statements):
                return hedged
        for outcome in OUTCOMES:
            if outcomes[outcome]:
                return outcome
        return "cannot be told here"

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
            "tables": [table.to_json() for table in self.tables],
            "figures": [figure.to_json() for figure in self.figures],
            "provenance": self.provenance,
        }
        target = Path(folder) / FILE
        with replacing(target) as temporary:
            temporary.write_text(json.dumps(values, indent=1, allow_nan=False), encoding="utf-8")
        return target

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> "Finding":
        """Read ``finding.json``; the verdict is computed again, whatever the file says."""
        path = Path(folder) / FILE
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            statements = tuple(Statement(**entry) for entry in values["statements"])
            for statement in statements:
                if statement.outcome not in OUTCOMES:
                    raise InvalidFile(f"{path}: '{statement.outcome}' is no outcome")
            return cls(
                **{key: str(values[key]) for key in _TEXTS},
                statements=statements,
                tables=tuple(Table.from_json(entry) for entry in values["tables"]),
                figures=tuple(Figure.from_json(entry) for entry in values["figures"]),
                provenance=dict(values["provenance"]),
            )
        except OSError as error:
            raise InvalidFile(f"{path}: cannot be read ({error.strerror})") from error
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise InvalidFile(f"{path}: not a finding as Sojourn writes it ({error!r})") from error


_TEXTS = ("claim", "title", "source", "checked", "scale", "reduced")
_PLURAL = {
    "reproduces": "reproduced",
    "does not reproduce": "not reproduced",
    "cannot be told here": "cannot be told here",
    "data not found": "without data",
}

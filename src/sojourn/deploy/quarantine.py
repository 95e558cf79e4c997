"""When a client gets no more tasks, whatever it answers: a rule, or its operator's word."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sojourn.checks import check_number, check_whole

NAMES_FILE = "quarantine.txt"
EVIDENCE = 1.0
"""Updates, at a time when all are of one mind, before a client's agreement is held against it."""
MAJORITY = 5
"""Clients of which most can be said to agree."""
POINTS_AWAY = -0.5
MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class Quarantine:
    """A client is put into quarantine after ``refused`` replies that were no good (0: never), or if
    on enough evidence its agreement with the others is ``agreement`` or less (-1: never).

    >>> Quarantine(refused=3).too_many(3)
    '3 replies refused'
    >>> Quarantine().points_away(agreement=-0.9, evidence=0.5)
    """

    refused: int = 10
    agreement: float = POINTS_AWAY

    def __post_init__(self) -> None:
        check_whole("refused", self.refused, least=0)
        check_number("agreement", self.agreement, least=-1.0, most=1.0)

    def too_many(self, refused: int) -> str | None:
        """Why a client is to be in quarantine after so many bad replies; ``None`` if it need not."""
        return f"{refused} replies refused" if self.refused and refused >= self.refused else None

    def points_away(self, *, agreement: float, evidence: float) -> str | None:
        """Why a client is to be in quarantine for its direction; ``None`` if it need not."""
        watched = self.agreement > -1.0 and evidence >= EVIDENCE
        if not (watched and agreement <= self.agreement):
            return None
        return f"its updates point away from the others' (agreement {agreement:.2f})"


def named_by_operator(folder: Path, known: Iterable[str]) -> set[str]:
    """The clients that stand in ``quarantine.txt`` in the run's folder, a name on each line.

    A file that cannot be read names nobody: nothing that lies in the folder may end the run.
    """
    try:
        handle = os.open(folder / NAMES_FILE, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            text = (file.read(MOST_BYTES) or b"").decode("utf-8", errors="replace")
    except OSError:
        return set()
    return {line.strip() for line in text.splitlines()} & set(known)

"""One value for all that protects a server from clients that lie, fail or answer too fast."""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sojourn._support.checks import check_number, check_whole
from sojourn.deployment.guard.agreement import Agreement
from sojourn.deployment.guard.norm import LARGEST_RATIO, Norm, NormState
from sojourn.deployment.guard.pacing import LARGEST_SPEED, Pace
from sojourn.deployment.guard.screens import (
    MAJORITY,
    Arrays,
    Gradient,
    Median,
    Reference,
    Screen,
    Submission,
    Verdict,
)
from sojourn.errors import InvalidInput, UnknownName
from sojourn.types import FloatArray

SCREENS: dict[str, type[Screen]] = {kind.name: kind for kind in (Norm, Reference, Median)}
NONE = "none"
NAMES_FILE = "quarantine.txt"
MOST_BYTES = 1_000_000
EVIDENCE = 1.0
"""Updates, at a time when all clients agree, before a client's agreement is held against it."""
POINTS_AWAY = -0.5
STANDS_OUT = 0.6
"""How far below the others' agreement that of a client is held against it on any evidence. Honest clients
were at most 0.51 below, where every client has the digits of one class."""
OPPOSED = -0.2
"""The agreement of a client's recent updates at which they point away from the others'. Of honest clients with a class
of the digits each 95 in 100 were above -0.17, of those that flip labels three in four below -0.29."""
_SCREEN, _AGREEMENT = "screen-", "agreement-"


@dataclass(frozen=True)
class Guard:
    """How a server protects itself; each part can be turned off.

    ``screens`` judge every update before it is used, one after the other. Nobody gets tasks faster
    than ``largest_speed`` times what is plausible (0: no limit). A client is put into quarantine
    after ``refused`` replies that were no good (0: never), or if on enough evidence its agreement
    with the others is ``agreement`` or less (-1: never), or far less than theirs is.

    >>> Guard(refused=3).too_many(3)
    '3 replies refused'
    >>> Guard().points_away(agreement=-0.9, evidence=0.5)
    """

    screens: tuple[Screen, ...] = (Norm(),)
    largest_speed: float = LARGEST_SPEED
    refused: int = 10
    agreement: float = POINTS_AWAY

    def __post_init__(self) -> None:
        check_whole("refused", self.refused, least=0)
        check_number("agreement", self.agreement, least=-1.0, most=1.0)

    @property
    def needs_reference(self) -> bool:
        """Whether a screen asks for the gradient of the server's own samples."""
        return any(screen.needs_reference for screen in self.screens)

    @property
    def trusts_majority(self) -> bool:
        """Whether the clients are the measure: not the server's samples, nor trust in everybody."""
        return bool(self.screens) and not self.needs_reference

    def too_many(self, refused: int) -> str | None:
        """Why a client is to be in quarantine after so many bad replies; ``None`` if it need not."""
        return f"{refused} replies refused" if self.refused and refused >= self.refused else None

    def points_away(
        self, *, agreement: float, evidence: float, stands_out: float = 0.0
    ) -> str | None:
        """Why a client is to be in quarantine for its direction; ``None`` if it need not."""
        if self.agreement <= -1.0:
            return None
        opposed = evidence >= EVIDENCE and agreement <= self.agreement
        alone = stands_out >= STANDS_OUT and agreement < 0.0
        if not (opposed or alone):
            return None
        return f"its updates point away from the others' (agreement {agreement:.2f})"


class GuardState:
    """What a guard remembers during one run with a model of ``size`` weights.

    ``planned`` are the clients' planned service rates, if there is a plan, and ``reference`` the
    gradient of the server's own samples for the screens that need it. ``key`` is known to the server
    alone: sketches of updates are drawn from it.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        size: int,
        clients: int,
        planned: FloatArray | None = None,
        reference: Gradient | None = None,
        key: bytes = b"",
    ) -> None:
        self.guard, self.clients = guard, clients
        self._compares = guard.trusts_majority and clients >= MAJORITY
        self.pace = Pace(clients, largest_speed=guard.largest_speed, planned=planned)
        self.agreement = Agreement(size=size, clients=clients, key=key)
        self.screens = [screen.begin(size, clients, reference) for screen in guard.screens]
        self._lives = np.zeros(clients, dtype=np.bool_)

    def lives(self, client: int, alive: bool) -> None:
        """Whether ``client`` takes part from now on."""
        self._lives[client] = alive

    def fleet(self, client: int) -> int:
        """How many clients take part: the living, those that were heard and left, and ``client``.

        Who was heard keeps its vote. Were it not counted, hostile clients could answer and leave, and
        so be a larger part of those who are left.
        """
        part = self._lives | self.agreement.heard
        part[client] = True
        return int(np.count_nonzero(part))

    def judge(self, given: Submission, round_: int = 0) -> Verdict:
        """What to do with a usable update of the model as it was after ``round_`` rounds."""
        if given.fleet is not None:
            self.agreement.fleet = given.fleet
        self.agreement.observe(given.client, given.update, round_)
        if self.points_away(given.client) is not None:
            return Verdict("hold", reason="its client points away from the others")
        if self._compares:
            given = replace(given, opposed=not self.agreement.recent[given.client] > OPPOSED)
        return self.screened(given)

    def screened(self, given: Submission) -> Verdict:
        """What the screens say: each is given what the one before let through."""
        scale = 1.0
        for state in self.screens:
            verdict = state.judge(given)
            if verdict.idle and self.guard.trusts_majority:
                reason = f"{verdict.reason}: next to nothing, as of those before"
                return Verdict("refuse", reason=reason, blame=False, idle=True)
            if verdict.outcome != "apply" or verdict.update is None:
                return verdict
            if verdict.update is not given.update:
                given, scale = replace(given, update=verdict.update), scale * verdict.scale
        return Verdict("apply", given.update, scale)

    def forget(self, client: int) -> None:
        """Another device takes the client's place."""
        self.agreement.forget(client)
        for state in self.screens:
            state.forget(client)

    def quarantine_reason(self, client: int, refused: int) -> str | None:
        """Why ``client``, with so many replies refused, gets no more tasks; ``None`` if it does."""
        return self.guard.too_many(refused) or self.points_away(client)

    def points_away(self, client: int) -> str | None:
        """Why its updates are not wanted, whatever they are like otherwise; ``None`` if they are."""
        if not self._compares:
            return None
        agreement, evidence = self.agreement.of(client)
        stands_out = self.agreement.stands_out(client) if agreement < 0.0 else 0.0
        return self.guard.points_away(agreement=agreement, evidence=evidence, stands_out=stands_out)

    @property
    def typical_norms(self) -> FloatArray:
        """What every client typically sends, ``(n,)``; NaN where it is not known."""
        for state in self.screens:
            if isinstance(state, NormState):
                return state.typical
        return np.full(self.clients, math.nan)

    def record(self) -> Arrays:
        """The memories as named arrays, for a checkpoint."""
        screens = {
            f"{_SCREEN}{screen.name}-{name}": array
            for screen, state in zip(self.guard.screens, self.screens, strict=True)
            for name, array in state.record().items()
        }
        agreement = self.agreement.record().items()
        return screens | {_AGREEMENT + name: array for name, array in agreement}

    def restore(self, arrays: Arrays) -> None:
        """Take up what `record` gave, as far as it is of the same screens."""
        for screen, state in zip(self.guard.screens, self.screens, strict=True):
            if own := named(arrays, f"{_SCREEN}{screen.name}-"):
                state.restore(own)
        self.agreement.restore(named(arrays, _AGREEMENT))


def named(arrays: Arrays, start: str) -> Arrays:
    """The arrays whose names begin with ``start``, without it."""
    return {k.removeprefix(start): a for k, a in arrays.items() if k.startswith(start)}


def screens_named(text: str, *, largest_ratio: float = LARGEST_RATIO) -> tuple[Screen, ...]:
    """The screens that ``text`` names, parted by commas; ``norm`` comes first unless it is ``none``.

    >>> screens_named("reference")
    (Norm(largest_ratio=1.5), Reference(every=1, least_cosine=0.0, largest_ratio=3.0))
    >>> screens_named("none")
    ()
    """
    names: Sequence[str] = [name.strip() for name in text.split(",") if name.strip()]
    names = names or [Norm.name]
    if NONE in names:
        if len(names) > 1:
            raise InvalidInput(f"screen '{text}': 'none' stands alone")
        return ()
    for name in names:
        if name not in SCREENS:
            raise UnknownName("screen", name, [*SCREENS, NONE])
    others = dict.fromkeys(name for name in names if name != Norm.name)
    return (Norm(largest_ratio), *(SCREENS[name]() for name in others))


def named_by_operator(folder: Path, known: Iterable[str]) -> set[str]:
    """The clients that stand in ``quarantine.txt`` in the run's folder, a name on each line.

    A file that cannot be read names nobody: nothing that lies in the folder may end the run.
    """
    try:
        # Without O_NONBLOCK a named pipe in the folder would stop the server.
        handle = os.open(folder / NAMES_FILE, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            text = (file.read(MOST_BYTES) or b"").decode("utf-8", errors="replace")
    except OSError:
        return set()
    return {line.strip() for line in text.splitlines()} & set(known)

"""Screens one after the other."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sojourn.deploy.screening.base import Gradient, Screen, Submission, Verdict
from sojourn.deploy.screening.median import Median
from sojourn.deploy.screening.norm import LARGEST_RATIO, Norm, NormGuard
from sojourn.deploy.screening.reference import Reference
from sojourn.errors import InvalidInput, UnknownName
from sojourn.types import FloatArray, Vector

SCREENS: dict[str, type[Screen]] = {kind.name: kind for kind in (Norm, Reference, Median)}
NONE = "none"


def screens_named(text: str, *, largest_ratio: float = LARGEST_RATIO) -> tuple[Screen, ...]:
    """The screens that ``text`` names, parted by commas; ``norm`` comes first unless it is ``none``.

    >>> screens_named("reference")
    (Norm(largest_ratio=1.5), Reference(every=1, least_cosine=0.0, largest_ratio=3.0))
    >>> screens_named("none")
    ()
    """
    names = [name.strip() for name in text.split(",") if name.strip()] or [Norm.name]
    if NONE in names:
        if len(names) > 1:
            raise InvalidInput(f"screen '{text}': 'none' stands alone")
        return ()
    for name in names:
        if name not in SCREENS:
            raise UnknownName("screen", name, [*SCREENS, NONE])
    others = dict.fromkeys(name for name in names if name != Norm.name)
    return (Norm(largest_ratio), *(SCREENS[name]() for name in others))


class Chain:
    """Every screen in turn, each given what the one before let through."""

    def __init__(
        self,
        screens: Sequence[Screen],
        *,
        size: int,
        clients: int,
        gradient: Gradient | None = None,
    ) -> None:
        self.screens = tuple(screens)
        self._guards = [screen.guard(size, clients, gradient) for screen in self.screens]
        self._clients = clients

    def judge(
        self,
        update: Vector,
        *,
        client: int,
        weights: Vector,
        version: int,
        weight: float = 1.0,
        earned: float = math.inf,
        descends: bool = True,
    ) -> Verdict:
        """What to do with an update of ``client`` that is not `unusable`."""
        given = Submission(update, client, weights, version, weight, earned, descends)
        scale = 1.0
        for guard in self._guards:
            verdict = guard.judge(given)
            if verdict.idle and self.trusts_majority:
                reason = f"{verdict.reason}: next to nothing, as of those before"
                return Verdict("refuse", reason=reason, blame=False, idle=True)
            if verdict.outcome != "apply" or verdict.update is None:
                return verdict
            given, scale = replace(given, update=verdict.update), scale * verdict.scale
        return Verdict("apply", given.update, scale)

    @property
    def trusts_majority(self) -> bool:
        """Whether the clients are the measure: not the server's samples, nor trust in everybody."""
        return bool(self.screens) and not any(screen.needs_reference for screen in self.screens)

    @property
    def typical_norms(self) -> FloatArray:
        """What every client typically sends, ``(n,)``; NaN where it is not known."""
        for guard in self._guards:
            if isinstance(guard, NormGuard):
                return guard.typical
        return np.full(self._clients, np.nan)

    def record(self) -> dict[str, NDArray[Any]]:
        """The memories as named arrays, for a checkpoint."""
        return {
            f"{screen.name}-{name}": array
            for screen, guard in zip(self.screens, self._guards, strict=True)
            for name, array in guard.record().items()
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `record` gave, as far as it is of the same screens."""
        for screen, guard in zip(self.screens, self._guards, strict=True):
            start = f"{screen.name}-"
            own = {k.removeprefix(start): a for k, a in arrays.items() if k.startswith(start)}
            if own:
                guard.restore(own)

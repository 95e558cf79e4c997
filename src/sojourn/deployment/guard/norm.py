r"""Clipping to the clients' typical norm, and to what their weight may be.

Let :math:`N_i` be what client i typically sends: the median norm of its last five updates. Of the
:math:`n` clients that are there, or were heard and left, :math:`F = \lfloor 3n/10 \rfloor` may be hostile.
:math:`M` is the :math:`(F+1)`-th largest :math:`N_i` of the clients heard so far; with F clients heard or
fewer there is none, and updates are held back. **Bound:** if at most F clients are hostile, :math:`M` is at
most the largest :math:`N_i` of an honest client that was heard, in whatever order and however often clients
answer, leave and return: F + 1 clients have :math:`N_i \ge M`, and one of them is honest. Clients that were
not heard yet are not counted as small or large, so that those who answer first decide nothing. An update of norm :math:`\|g\|` is multiplied by
:math:`\min(1, cM/\|g\|)`, and by a second factor if :math:`x = N_i/(cM)` of its client is above 1: who always
sends too much has the less influence the more it sends, and most of it who sends what is allowed. The factor is
:math:`1/x`. A client whose recent updates do not point away from the others' is spared until :math:`x` is
:math:`a`, ``SPARED``: its factor is :math:`\min(1, \max(1/x, a^2/x^2))`, which is again :math:`1/x` from
:math:`a^2` on. An honest client that alone has some class is such a one. Beside this a client spends weight: after :math:`t` rounds the weights
:math:`w` of its updates may sum to :math:`c\,t\,p_i w_i` and five more, where :math:`p_i w_i` is what
its share of the plan gives it in a round, :math:`1/n` if updates are weighted by
:math:`w_i = 1/(n p_i)`; what is beyond is cut off. Hostile clients, a fraction :math:`f` of all, then
move the model in :math:`t` rounds by at most

.. math:: \eta\, c M\, (c f t + 5 f n),

and by :math:`\eta c M f t` where they have got no more tasks than the plan gives them.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sojourn._support.checks import check_number
from sojourn.deployment.guard.screens import (
    MAJORITY,
    Arrays,
    Gradient,
    Screen,
    ScreenState,
    Submission,
    Verdict,
    norm_of,
    scaled,
    tolerated,
)
from sojourn.types import FloatArray

LARGEST_RATIO = 1.5
"""With a fifth of the clients hostile the honest are more than twice as strong: 4/5 against 3/10."""
ABSURD = 1e3
RECENT = 5
SPARED = 2.5
"""How many times the largest norm allowed a client that is not opposed to the others may typically send before its
updates count less. For ten honest clients with a class of the digits each the screen costs 0.7 % of the accuracy, and
2.8 % without this. Who sends far more is not spared: twice 1/x would be enough not to be called idle."""
BURST = 5.0
"""Weight that every client may spend before it has earned any."""
NEGLIGIBLE = 0.04
"""Of the largest norm allowed: who sends less again and again only keeps others waiting."""
AWHILE = 4
"""Updates for every client, on average, after which one that was not heard counts as gone."""


@dataclass(frozen=True)
class Norm(Screen):
    """Clip every update to ``largest_ratio`` times the clients' typical norm, and those of clients who
    typically send more than that to less.

    Until more clients have sent something than may be hostile, three in ten, nothing can be said about
    a norm, and updates are held back, because who answers first may be hostile; with fewer than five
    clients, where a majority means little, they are not. A norm a thousand times the largest allowed is
    refused as the client's fault, and as long as so few clients were not heard one a thousand times
    that of the weights (or 1, if that is larger) and of what the others have sent; what was refused
    counts there as a thousand times what was allowed at most.

    >>> state = Norm().begin(2, 3, None)
    >>> for client in range(3):
    ...     verdict = state.judge(Submission(np.array([3.0, 4.0]), client, np.ones(2), 0))
    >>> state.judge(Submission(np.array([30.0, 40.0]), 0, np.ones(2), 0)).update
    array([4.5, 6. ])
    """

    name: ClassVar[str] = "norm"
    largest_ratio: float = LARGEST_RATIO

    def __post_init__(self) -> None:
        check_number("largest_ratio", self.largest_ratio, least=1.0)

    def begin(self, size: int, clients: int, gradient: Gradient | None) -> "NormState":
        return NormState(clients, self.largest_ratio)


class NormState(ScreenState):
    """Every client's last norms; ``typical`` is what it usually sends, NaN before it sent any."""

    def __init__(self, clients: int, largest_ratio: float) -> None:
        self.largest_ratio = largest_ratio
        self.recent: FloatArray = np.full((clients, RECENT), np.nan)
        self.typical: FloatArray = np.full(clients, np.nan)
        self._fleet = clients
        self._holds = clients >= MAJORITY
        self.spent: FloatArray = np.zeros(clients)
        self.idle = np.zeros(clients, dtype=np.int64)
        self._turn = 0
        self._heard_at: FloatArray = np.full(clients, -np.inf)
        self._usual = math.nan
        self._heard = 0
        self._age = 0

    def judge(self, given: Submission) -> Verdict:
        norm = norm_of(given.update)
        if given.fleet is not None:
            self._fleet = given.fleet
        bound = self.bound()
        absurd = ABSURD * (self._scale(given) if math.isinf(bound) else bound)
        # Among few, one that is refused must not make room for the next as large.
        self._remember(given.client, norm if self._holds else min(norm, ABSURD * absurd))
        if norm > absurd:
            reason = f"its norm is {norm:.3g}, above the largest allowed, {absurd:.3g}"
            return Verdict("refuse", reason=reason)
        if self._heard < self._enough and self._holds:
            return Verdict("hold", reason=f"only {self._heard} clients were heard so far")
        if math.isinf(bound) and self._holds:
            bound = self.bound()
        scale = min(1.0, bound / norm) if norm > 0.0 else 1.0
        if self._holds:
            scale *= self._of_typical(float(self.typical[given.client]) / bound, given.opposed)
        idle = self._is_idle(given.client, scale * norm, bound)
        reason = f"its norm is {norm:.3g}, of which {scale * norm:.3g} would count" if idle else ""
        scale *= self._affordable(given)
        return Verdict("apply", *scaled(given.update, scale), reason=reason, idle=idle)

    @staticmethod
    def _of_typical(excess: float, opposed: bool) -> float:
        """The factor for a client that typically sends ``excess`` times the largest norm allowed."""
        if not excess > 1.0:
            return 1.0
        return 1.0 / excess if opposed else min(1.0, max(1.0, SPARED**2 / excess) / excess)

    def _scale(self, given: Submission) -> float:
        """What norms are like as far as can be told from too few clients: all may be held back."""
        if self._holds:
            return math.inf
        others = np.delete(self.typical, given.client) if self.typical.size > 1 else self.typical
        known = [max(1.0, norm_of(given.weights)), *others[~np.isnan(others)].tolist()]
        return float(max(known))

    def _is_idle(self, client: int, counts: float, bound: float) -> bool:
        """Whether next to nothing of a client's last updates counts, and of most clients' more.

        Those who have sent nothing for a while do not count among them: they may be gone.
        """
        self._turn += 1
        self._heard_at[client] = self._turn
        nothing = self._holds and counts <= NEGLIGIBLE * bound
        self.idle[client] = self.idle[client] + 1 if nothing else 0
        if self.idle[client] < RECENT:
            return False
        there = self._heard_at > self._turn - AWHILE * self.idle.size
        return bool(2 * np.count_nonzero(there & (self.idle >= RECENT)) <= np.count_nonzero(there))

    def _affordable(self, given: Submission) -> float:
        """The part of an update's weight that its client can pay for, which it then has spent."""
        if not self._holds:
            return 1.0
        left = self.largest_ratio * given.earned + BURST - self.spent[given.client]
        part = min(1.0, max(0.0, float(left) / given.weight))
        self.spent[given.client] += part * given.weight
        return part

    @property
    def _enough(self) -> int:
        """How many clients must have been heard before there is a bound."""
        return tolerated(self._fleet) + 1 if self._holds else min(3, self.typical.size + 1)

    def bound(self) -> float:
        """The norm that updates are clipped to now; infinite while too few were heard."""
        if self._heard < self._enough:
            return math.inf
        if self._age >= 1 + self._heard // 8:
            heard = self.typical[~np.isnan(self.typical)]
            rank = max(0, heard.size - 1 - tolerated(self._fleet))
            self._usual = float(np.partition(heard, rank)[rank])
            self._age = 0
        return self.largest_ratio * self._usual

    def forget(self, client: int) -> None:
        self._heard -= not math.isnan(self.typical[client])
        self.recent[client] = self.typical[client] = np.nan
        self.spent[client] = self.idle[client] = 0

    def record(self) -> Arrays:
        return {"recent": self.recent, "spent": self.spent, "idle": self.idle}

    def restore(self, arrays: Arrays) -> None:
        self.recent = np.array(arrays["recent"], dtype=np.float64)
        self.spent = np.array(arrays["spent"], dtype=np.float64)
        self.idle = np.array(arrays["idle"], dtype=np.int64)
        self.typical = np.array([_median(row) for row in self.recent])
        self._heard = int(np.count_nonzero(~np.isnan(self.typical)))
        self._age = self.typical.size + 1

    def _remember(self, client: int, norm: float) -> None:
        if norm == 0.0:
            return
        if math.isnan(self.typical[client]):
            self._heard += 1
            self._age = self.typical.size + 1
        row = self.recent[client]
        row[1:] = row[:-1]
        row[0] = norm
        self.typical[client] = _median(row)
        self._age += 1


def _median(row: FloatArray) -> float:
    known = sorted(norm for norm in row.tolist() if not math.isnan(norm))
    return known[(len(known) - 1) // 2] if known else math.nan

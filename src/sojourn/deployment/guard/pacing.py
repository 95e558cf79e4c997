r"""No client gets tasks faster than is plausible.

How fast a client answers decides how many tasks it gets, and whoever answers at once with nothing
would get nearly all of them. So the k-th task of client i is not sent before it could plausibly have
done those before: a client earns tasks at the rate

.. math:: c_i = s\, b_i\, q, \qquad q = \text{the } (\lfloor n/5 \rfloor + 1)\text{-th largest } \hat\mu_j / b_j

where :math:`\hat\mu_j` are the estimated service rates, :math:`b_j` the planned ones (1 where there
is no plan) and :math:`s` is ``largest_speed``; with a plan :math:`q` is at least 1. What it has not
used is kept, up to five tasks. A fifth of the clients cannot raise :math:`q`, however fast they
claim to be. With fewer than five clients there is no limit.
"""

import math

import numpy as np

from sojourn.types import FloatArray

LARGEST_SPEED = 2.0
BURST = 5.0
HOSTILE_FRACTION = 5
"""One client in so many may lie about its speed."""


class Pace:
    """Which client may be sent a task now. ``largest_speed`` 0 means that there is no limit.

    >>> pace = Pace(10, largest_speed=2.0, planned=np.ones(10))
    >>> pace.learn(np.ones(10), now=0.0)
    >>> sum(pace.take(0, now=0.0) for _ in range(100))
    5
    >>> sum(pace.take(0, now=1.0) for _ in range(100))
    2
    """

    def __init__(
        self, clients: int, *, largest_speed: float, planned: FloatArray | None = None
    ) -> None:
        self.largest_speed = largest_speed
        self.limited = largest_speed > 0 and clients >= HOSTILE_FRACTION
        self.planned = planned
        self.caps: FloatArray = np.full(clients, np.inf)
        self._credit: FloatArray = np.full(clients, BURST)
        self._since: FloatArray = np.zeros(clients)

    def learn(self, rates: FloatArray, *, now: float) -> None:
        """Clients seem to be as fast as this; see the module for what follows."""
        if not self.limited:
            return
        relative = rates if self.planned is None else rates / self.planned
        rank = relative.size - 1 - relative.size // HOSTILE_FRACTION
        quantile = float(np.partition(relative, rank)[rank])
        self._earn(now)
        if self.planned is None:
            self.caps = np.full(rates.size, self.largest_speed * quantile)
        else:
            self.caps = self.largest_speed * max(1.0, quantile) * self.planned

    def take(self, client: int, *, now: float) -> bool:
        """Whether a task may be sent to ``client``; if so it is one of those it has earned."""
        if not self.limited:
            return True
        if np.isinf(self.caps[client]):
            self._credit[client] = BURST
        else:
            earned = max(0.0, now - self._since[client]) * self.caps[client]
            self._credit[client] = min(BURST, self._credit[client] + earned)
        self._since[client] = max(now, self._since[client])
        if self._credit[client] < 1.0:
            return False
        self._credit[client] -= 1.0
        return True

    def plausible(self, rates: FloatArray) -> FloatArray:
        """``rates``, none above what is plausible."""
        return np.minimum(rates, self.caps)

    def _earn(self, now: float) -> None:
        if math.isfinite(self.caps[0]):  # before the first rates were learnt none is
            self._credit += np.maximum(0.0, now - self._since) * self.caps
            np.minimum(self._credit, BURST, out=self._credit)
        self._since = np.maximum(now, self._since)

r"""Client-level differential privacy: updates are clipped and get Gaussian noise before anything else.

An update :math:`g` becomes :math:`g \min(1, C/\|g\|) + \mathcal N(0, (\sigma C)^2 I)`, with
:math:`C` = ``clip`` and :math:`\sigma` = ``noise``, as soon as it has arrived: screens, rule, model and
every file of the run see only that. Two runs are neighbours if they differ by one client, whose clipped
updates are zero in one of them, as in DP-FedAvg (McMahan et al. 2018); so each of its answers is a
Gaussian mechanism of sensitivity :math:`C`.

:math:`k` results of one client compose to a Gaussian mechanism of noise :math:`\sigma/\sqrt k`, exactly,
however they are interleaved with those of others; so no accountant is needed, and

.. math:: \delta(\varepsilon) = \Phi\!\left(\frac{\mu}{2} - \frac{\varepsilon}{\mu}\right)
   - e^{\varepsilon}\, \Phi\!\left(-\frac{\mu}{2} - \frac{\varepsilon}{\mu}\right),
   \qquad \mu = \frac{\sqrt k}{\sigma}

is tight (Balle and Wang 2018; Dong, Roth and Su 2022). The epsilon of a run is that of the client that
has answered most often. It holds against whoever sees the model, not against the server, which sees
updates before the noise; and not for what clients say of their speed by answering.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from sojourn._support.checks import check_number
from sojourn.types import Vector

MOST_EPSILON = 1e6
EPSILON = "epsilon"
"""What the metric of the privacy spent is called in histories."""


@dataclass(frozen=True)
class Privacy:
    """How updates are made private, and how much of it may be spent.

    ``clip`` is the largest norm of an update, ``noise`` the standard deviation of the noise in units of
    it, ``delta`` the probability with which more may leak, and ``budget`` the epsilon at which a run
    ends (infinite: it does not).

    >>> privacy = Privacy(clip=1.0, noise=4.0, delta=1e-5)
    >>> round(privacy.epsilon(1), 3), round(privacy.epsilon(100), 2)
    (0.926, 13.21)
    >>> Privacy(clip=1.0, noise=4.0, delta=1e-5, budget=2.0).answers()
    4
    """

    clip: float
    noise: float
    delta: float = 1e-5
    budget: float = math.inf

    def __post_init__(self) -> None:
        check_number("clip", self.clip, above=0.0)
        check_number("noise", self.noise, above=0.0)
        check_number("delta", self.delta, above=0.0, most=0.5)

    def apply(self, update: Vector, random: np.random.Generator) -> Vector:
        """A finite update, clipped and with noise, in its own precision."""
        norm = float(np.linalg.norm(update.astype(np.float64)))
        scale = min(1.0, self.clip / norm) if norm > 0.0 else 1.0
        noise = random.normal(scale=self.noise * self.clip, size=update.shape)
        return np.asarray(scale * update + noise, dtype=update.dtype)

    def epsilon(self, answers: int) -> float:
        r"""The :math:`\varepsilon` that a client which answered so often has spent."""
        from scipy import optimize, special  # a client's process needs none of it

        if answers == 0:
            return 0.0
        mu = math.sqrt(answers) / self.noise

        def excess(epsilon: float) -> float:
            first = special.log_ndtr(mu / 2.0 - epsilon / mu)
            second = epsilon + special.log_ndtr(-mu / 2.0 - epsilon / mu)
            return float(np.exp(first) - np.exp(second)) - self.delta

        if excess(0.0) <= 0.0:
            return 0.0
        most = 1.0
        while excess(most) > 0.0 and most < MOST_EPSILON:
            most *= 2.0
        return (
            float(optimize.brentq(excess, 0.0, most, xtol=1e-10))
            if excess(most) <= 0.0
            else math.inf
        )

    def answers(self) -> int | None:
        """How often one client may answer within the budget; ``None`` if there is no limit."""
        if math.isinf(self.budget):
            return None
        most = 1
        while self.epsilon(most) <= self.budget:
            most *= 2
        return bisect_right(range(most), self.budget, key=self.epsilon) - 1

"""Rules for rounds in which every client makes a number of attempts at the present weights."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from sojourn._support.checks import check_number, check_per_client, check_whole
from sojourn._support.extensions import per_client, real, whole
from sojourn.errors import InvalidInput
from sojourn.rules.arrays import count_of, placed
from sojourn.rules.base import Buffered, GradientRule, Run
from sojourn.rules.server import Move
from sojourn.rules.state import Arrival, ServerState
from sojourn.types import FloatArray, IntArray, Vector


@dataclass(frozen=True, kw_only=True, repr=False)
class MindFlayer(Buffered, GradientRule):
    r"""Step along what the attempts of a round have given, once all of them are over.

    .. math:: x \leftarrow x - \gamma \frac{\sum \text{gradients that came}}{\sum_i p_i B_i}

    Client i makes :math:`B_i` attempts at the present weights, each cut short after a while, and
    succeeds with probability :math:`p_i`. ``attempts`` is :math:`\sum_i B_i`, by default n, and
    ``success`` the mean :math:`\sum_i p_i B_i / \sum_i B_i`; the policy `sojourn.dispatch.Attempts`
    has the :math:`B_i` and how long an attempt may take; `mindflayer_attempts` finds them. A round
    without any gradient makes no version. For times with heavy tails, and for data alike at all
    clients. Maranjyan, Omar and Richtárik, arXiv 2410.04285; their code still runs clients that
    have no attempts.
    """

    name: ClassVar[str] = "mindflayer"
    policy: ClassVar[str] = "attempts"
    hears_of_cuts: ClassVar[bool] = True
    numbers: ClassVar[tuple[str, ...]] = ("buffered", "over")
    attempts: int | None = whole(None)
    success: float = real(1.0, above=0.0, most=1.0)

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        if arrival.staleness > 0:
            return state, False
        if not arrival.cut:
            state = self.gather(state, arrival.update)
        wanted = run.clients if self.attempts is None else self.attempts
        state = state.remembering(over=int(state.numbers["over"]) + 1)
        if state.numbers["over"] < wanted:
            return state, True
        if state.numbers["buffered"]:
            step = -run.learning_rate / (self.success * wanted)
            state = self.server.move(
                state, Move(state.arrays["buffer"], step, run.learning_rate), arrival
            )
        return state.remembering(buffered=0, over=0), True


def mindflayer_attempts(times: ArrayLike, success: ArrayLike, noise: float) -> IntArray:
    r"""How many attempts every client should make in a round of `MindFlayer`: ``(n,)``.

    .. math:: t(k) = \Bigl(\sum_{j \le k} \frac{p_j}{T_j}\Bigr)^{-1}
       \Bigl(S + \sum_{j \le k} p_j\Bigr), \qquad
       B_i = \lceil \min_k t(k)/T_i - 1 \rceil

    for the first k clients in order of ``times`` :math:`T_i`, the longest an attempt may take, where
    t is least, and 0 for the others. ``success`` is :math:`p_i`, shape ``(n,)`` both, and ``noise``
    :math:`\sigma^2/\varepsilon`; :math:`S = \max(1, \sigma^2/\varepsilon)`.

    >>> mindflayer_attempts([1.0, 2.0, 100.0], [0.5, 0.5, 0.5], noise=4.0).tolist()
    [6, 3, 0]
    """
    longest, p = (np.asarray(values, dtype=np.float64) for values in (times, success))
    check_number("noise", noise, least=0.0)
    if longest.ndim != 1 or longest.shape != p.shape or not longest.size:
        raise InvalidInput("times and success must be lists of one number for every client")
    if not (np.all(longest > 0) and np.all((p > 0) & (p <= 1))):
        raise InvalidInput("times must be positive, and success between 0 and 1")
    order = np.argsort(longest, kind="stable")
    rate, heard = np.cumsum(p[order] / longest[order]), np.cumsum(p[order])
    durations = (max(1.0, float(noise)) + heard) / rate
    best = int(np.argmin(durations))
    found = np.zeros(longest.size, dtype=np.int64)
    first = order[: best + 1]
    found[first] = np.maximum(0, np.ceil(durations[best] / longest[first] - 1.0))
    return found


@dataclass(frozen=True, kw_only=True, repr=False)
class Shadowheart(Buffered, GradientRule):
    r"""Step along compressed sums of gradients, weighted by what they are worth.

    .. math:: x \leftarrow x - \gamma
       \frac{\sum_i w_i \sum_{j \le k_i} C_{ij}(\sum_{l \le b_i} g_{il})}{\sum_i w_i k_i b_i}, \qquad
       w_i = \frac{1}{b_i \omega + \omega\sigma^2/\varepsilon + k_i \sigma^2/\varepsilon}

    Client i takes :math:`b_i` gradients at the present weights (``gradients``) and sends
    :math:`k_i` compressions of their sum (``messages``), each of ``coordinates`` :math:`c` of the d
    coordinates at random, times d/c, so that :math:`\omega = d/c - 1`; both are one number for all
    clients or one for each, and ``noise`` is :math:`\sigma^2/\varepsilon`. Compression is linear, so
    it is done here, gradient by gradient. `shadowheart_numbers` finds b and k;
    the policy `sojourn.dispatch.Attempts` has ``attempts`` = b and ``sending`` = :math:`k_i` times
    the time of a message. ``seed`` chooses the coordinates. For data alike at all
    clients. Tyurin, Pozzi, Ilin and Richtárik, arXiv 2402.04785, whose code may also limit
    :math:`k_i` to d/c.
    """

    name: ClassVar[str] = "shadowheart"
    policy: ClassVar[str] = "attempts"
    gradients: int | tuple[int, ...] = per_client(1, partial(check_whole, least=0))
    messages: int | tuple[int, ...] = per_client(1, partial(check_whole, least=0))
    coordinates: int | None = whole(None)
    noise: float = real(1.0, least=0.0)
    seed: int = whole(0, least=0)

    def begin(self, weights: Vector, clients: int) -> ServerState:
        """The state before the first arrival, if the numbers fit the problem."""
        for name in ("gradients", "messages"):
            check_per_client(f"{name} of the rule '{self.name}'", getattr(self, name), clients)
        if self.coordinates is not None and self.coordinates > count_of(weights):
            raise InvalidInput(
                f"coordinates of the rule '{self.name}' must be at most the {count_of(weights)} that there "
                f"are; it is {self.coordinates}"
            )
        if not self._taking_part(clients).any():
            raise InvalidInput(f"the rule '{self.name}' needs a client with gradients and messages")
        return super().begin(weights, clients)

    def take(self, state: ServerState, arrival: Arrival, run: Run) -> tuple[ServerState, bool]:
        part, size = self._taking_part(run.clients), count_of(state.weights)
        if arrival.staleness > 0 or not part[arrival.client]:
            return state, False
        b, k = self._numbers(run.clients)
        worth = self._worth(b, k, size)
        message = self._mask(state.version, arrival.client, int(k[arrival.client]), size)
        message *= worth[arrival.client]
        update = placed(message, state.weights) * arrival.update
        state = self.gather(state, update)
        if state.numbers["buffered"] < b[part].sum():
            return state, True
        step = -run.learning_rate / float((worth * k * b)[part].sum())
        move = Move(state.arrays["buffer"], step, run.learning_rate)
        return self.server.move(state, move, arrival).remembering(buffered=0), True

    def quotas(self, clients: int) -> list[int]:
        """How many gradients a round takes of every client."""
        b, _ = self._numbers(clients)
        return [int(count) for count in np.where(self._taking_part(clients), b, 0)]

    def _numbers(self, clients: int) -> tuple[FloatArray, FloatArray]:
        both = (self.gradients, self.messages)
        b, k = (np.broadcast_to(np.array(x, dtype=np.float64), (clients,)) for x in both)
        return b, k

    def _taking_part(self, clients: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        b, k = self._numbers(clients)
        return np.asarray((b > 0) & (k > 0))

    def _worth(self, b: FloatArray, k: FloatArray, size: int) -> FloatArray:
        omega = size / (self.coordinates or size) - 1.0
        cost = b * omega + (omega + k) * self.noise
        return np.divide(1.0, cost, out=np.ones(cost.size), where=cost > 0)

    def _mask(self, version: int, client: int, messages: int, size: int) -> FloatArray:
        """How often each coordinate is sent, times d/c."""
        sent = self.coordinates or size
        if sent == size:
            return np.full(size, float(messages))
        random = np.random.default_rng([self.seed, version, client])
        mask = np.zeros(size)
        for _ in range(messages):
            mask[random.choice(size, sent, replace=False)] += size / sent
        return mask


def equilibrium_time(
    compute: ArrayLike, message: ArrayLike, *, omega: float, noise: float
) -> float:
    r"""The time that a client of `Shadowheart` computes, and then sends, in every round.

    .. math:: t^* = \min_j \max\{\max(h_j, \tau_j), s_j\}, \qquad s_j = \Bigl[\sum_{i \le j}
       \frac{1}{2\tau_i\omega + 4\tau_i\omega h_i (\sigma^2/\varepsilon)/s_j
       + 2 h_i \sigma^2/\varepsilon}\Bigr]^{-1}

    in order of :math:`\max(h_i, \tau_i)`; ``compute`` is :math:`h_i`, the time of a gradient, and
    ``message`` :math:`\tau_i`, that of a message, shape ``(n,)`` both; ``omega`` is the
    compression's variance, ``noise`` :math:`\sigma^2/\varepsilon`. Cost: O(n^2).

    >>> equilibrium_time([1.0, 1.0], [0.0, 0.0], omega=0.0, noise=8.0)
    8.0
    """
    h, tau = (np.asarray(values, dtype=np.float64) for values in (compute, message))
    if (
        h.ndim != 1
        or h.shape != tau.shape
        or not h.size
        or not (np.all(h > 0) and np.all(tau >= 0))
    ):
        raise InvalidInput("compute and message must be lists of positive times, one per client")
    check_number("omega", omega, least=0.0)
    check_number("noise", noise, least=0.0)
    longest = np.maximum(h, tau)
    order = np.argsort(longest, kind="stable")
    plain = (2.0 * tau * omega + 2.0 * h * noise)[order]
    inverse = (4.0 * tau * omega * h * noise)[order]
    times = []
    for j in range(1, h.size + 1):
        exact = np.any(plain[:j] == 0.0)  # somebody's news are: once is enough
        alone = 0.0 if exact else _balance(plain[:j], inverse[:j])
        times.append(max(float(longest[order[j - 1]]), alone))
    return min(times)


def _balance(a: FloatArray, b: FloatArray) -> float:
    r"""The s at which :math:`\sum_i s^2/(a_i s + b_i)`, which grows with s, is 1."""

    from scipy.optimize import brentq  # a server needs none of it, and it is slow to import

    def excess(s: float) -> float:
        return float(np.sum(s * s / (a * s + b))) - 1.0

    least, most = 0.5 / float(np.sum(1.0 / a)), 2.0 * float(a.max() + np.sqrt(b.max()))
    return float(brentq(excess, least, most, xtol=1e-300, rtol=1e-14))


def shadowheart_numbers(
    compute: ArrayLike, message: ArrayLike, *, omega: float, noise: float
) -> tuple[IntArray, IntArray]:
    r"""Gradients :math:`b_i = \lfloor t^*/h_i \rfloor` and messages :math:`\lfloor t^*/\tau_i \rfloor`.

    Arguments are those of `equilibrium_time`; where a message takes no time one is sent. Who cannot
    do both in that time has zero of both.

    >>> b, k = shadowheart_numbers([1.0, 2.0, 50.0], [0.5, 1.0, 1.0], omega=1.0, noise=1.0)
    >>> b.tolist(), k.tolist()
    ([2, 1, 0], [5, 2, 0])
    """
    t = equilibrium_time(compute, message, omega=omega, noise=noise) * (1.0 + 1e-12)
    h, tau = (np.asarray(values, dtype=np.float64) for values in (compute, message))
    b = np.floor(t / h).astype(np.int64)
    k = np.floor(np.divide(t, tau, out=np.ones(h.size), where=tau > 0)).astype(np.int64)
    able = (b > 0) & (k > 0)
    return np.where(able, b, 0), np.where(able, k, 0)

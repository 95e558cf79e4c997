r"""The paper's bounds on the gradient norm, per round (G) and per unit of time (H), and what follows.

All gradients are with respect to the routing probability of *one client* of each class, all others
held fixed; multiply by ``counts`` for the derivative along a whole class. Where clients do not count
the same, every :math:`1/p_i` and :math:`1/p_i^2` is times :math:`\omega_i^2` (``Fleet.relative_weights``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sojourn.boundforms import PAPER, Form
from sojourn.checks import check_positive, check_rounds, check_scale
from sojourn.constants import LearningConstants
from sojourn.errors import InvalidInput, Unreachable
from sojourn.jackson import occupancy
from sojourn.network import Network
from sojourn.types import FloatArray


@dataclass(frozen=True, eq=False)
class Bound:
    """A bound's value, its gradient in the routing (shape ``(k,)``), and its terms by name."""

    value: float
    gradient: FloatArray
    terms: Mapping[str, float]

    def __repr__(self) -> str:
        terms = ", ".join(f"{name} {value:.6g}" for name, value in self.terms.items())
        return f"Bound({self.value:.8g}: {terms})"


@dataclass(frozen=True, eq=False)
class Horizon:
    """Rounds or time until an accuracy is reached, with its gradient and the learning rate used."""

    value: float
    gradient: FloatArray
    learning_rate: float

    def __repr__(self) -> str:
        return f"Horizon({self.value:.8g} at learning rate {self.learning_rate:.4g})"


@dataclass(frozen=True, eq=False)
class Penalties:
    r"""The network's part in the bounds, with gradients of shape ``(k,)``; the rest is constants.

    ``routing`` is :math:`S_1 = \sum \omega_i^2/p_i`, ``staleness`` :math:`S_2 = \sum \omega_i^2
    E[D_i]/p_i^2`; ``form`` says which bound they make.
    """

    network: Network
    throughput: float
    log_throughput_gradient: FloatArray
    routing: float
    routing_gradient: FloatArray
    staleness: float
    staleness_gradient: FloatArray
    form: Form = PAPER

    def weighted(self, constants: LearningConstants) -> tuple[float, float, FloatArray, FloatArray]:
        r""":math:`b = L B S_1/n^2` and :math:`c = L^2 B m S_2/n^2`, then their gradients.

        The bound's noise is :math:`\eta b` and its staleness :math:`\eta^2 c`. In general, with
        :math:`K - 1` updates collected before one is made,

        .. math:: c = \frac{L^2}{n^2} V \Bigl(S_2 + \frac{K - 1}{2} S_1\Bigr), \qquad
                  V = B (m + K - 1) \text{ or, tight, } \sigma^2 + 2 M^2 (m + K - 2)

        and :math:`\eta` is the learning rate divided by :math:`K`, what one update counts.
        """
        noise = constants.smoothness * constants.noise / self.network.size**2
        more = self.form.buffer - 1
        if self.form.bound == "paper":
            delay = constants.smoothness * noise * (self.network.concurrency + more)
        else:
            others = 2.0 * constants.heterogeneity**2 * (self.network.concurrency - 1 + more)
            delay = (constants.smoothness / self.network.size) ** 2
            delay *= constants.gradient_noise**2 + others
        stale, slope = self.staleness, self.staleness_gradient
        if more:
            stale = stale + 0.5 * more * self.routing
            slope = slope + 0.5 * more * self.routing_gradient
        return (
            noise * self.routing,
            delay * stale,
            noise * self.routing_gradient,
            delay * slope,
        )


def penalties(network: Network, form: Form = PAPER) -> Penalties:
    r"""Throughput, :math:`S_1` and :math:`S_2` of a network, with gradients. Cost: one steady state.

    .. math::

        \frac{\partial \log\lambda}{\partial p_j} = \frac{E[X_j] - E[\xi_j]}{p_j}, \qquad
        \frac{\partial S_2}{\partial p_j} = \frac{C_j}{p_j} - \frac{2 E[X_j]}{p_j^3}
            - \frac{E[X_s]}{p_j^2}, \qquad
        C_j = \sum_i \frac{c_i}{p_i^2} \mathrm{Cov}[X_i + p_i X_s, X_j]

    Here :math:`X_j` and :math:`\xi_j` count client j's tasks at the client and on its links, and
    :math:`X_s` those at the server (``sojourn.jackson.occupancy``).
    """
    p, fleet, counts = network.routing, network.fleet, network.fleet.counts
    worth = 1.0 if fleet.weight is None else fleet.relative_weights**2
    weights = worth / p**2
    tasks = occupancy(network, weights)
    held = tasks.mean_held
    slope = tasks.weighted_covariance - 2.0 * held * weights
    if tasks.mean_at_server > 0.0:
        slope -= tasks.mean_at_server * worth / p
    return Penalties(
        network=network,
        throughput=tasks.throughput,
        log_throughput_gradient=(held - tasks.mean_held_full) / p,
        routing=float(counts @ (worth / p)),
        routing_gradient=-weights,
        staleness=float(counts @ (tasks.relative_delay(p) * weights)),
        staleness_gradient=slope / p,
        form=form,
    )


def per_round_bound(
    network: Network,
    constants: LearningConstants,
    *,
    learning_rate: float,
    rounds: float,
    bound: str = "paper",
    buffer: int = 1,
) -> Bound:
    r"""The bound G on the mean squared gradient norm over rounds 0 to T (times 8).

    .. math:: G = \frac{A}{\eta (T+1)} + \frac{\eta L B}{n^2} S_1 + \frac{\eta^2 L^2 B m}{n^2} S_2

    ``rounds`` is :math:`T` (so 0 makes the first term :math:`A/\eta`), ``learning_rate``
    :math:`\eta`. A guarantee only below ``max_learning_rate``, a proxy above. Terms: ``progress``,
    ``noise``, ``staleness``. ``bound="tight"`` is the tighter one, ``buffer`` the updates that the server
    collects for each that it makes: see `Form`. Paper: equation (5); its gradient (appendix G) with the diagonal of (9) corrected.

    >>> from sojourn.network import Fleet, uniform_routing
    >>> fleet = Fleet([1.0, 1.0])
    >>> constants = LearningConstants(1.0, 1.0, 1.0, 0.0)
    >>> per_round_bound(Network(fleet, uniform_routing(fleet), 3), constants,
    ...                 learning_rate=0.1, rounds=99)
    Bound(0.26: progress 0.1, noise 0.1, staleness 0.06)
    """
    eta = check_scale("learning_rate", learning_rate)
    return per_round(
        penalties(network, Form(bound, buffer)), constants, learning_rate=eta, rounds=rounds
    )


def per_time_bound(
    network: Network,
    constants: LearningConstants,
    *,
    learning_rate: float,
    rounds: float,
    bound: str = "paper",
    buffer: int = 1,
) -> Bound:
    r"""The bound per unit of time, :math:`H = G/\lambda`, with the terms of G so divided.

    .. math:: \frac{\partial H}{\partial p_j} = \frac1\lambda \frac{\partial G}{\partial p_j}
              + H\, \frac{E[\xi_j] - E[X_j]}{p_j}

    Paper: Proposition 4.1 (11) and appendix H.

    >>> from sojourn.network import Fleet, uniform_routing
    >>> fleet = Fleet([1.0, 1.0])
    >>> constants = LearningConstants(1.0, 1.0, 1.0, 0.0)
    >>> per_time_bound(Network(fleet, uniform_routing(fleet), 3), constants,
    ...                learning_rate=0.1, rounds=99).value
    0.173333...
    """
    eta = check_scale("learning_rate", learning_rate)
    return per_time(
        penalties(network, Form(bound, buffer)), constants, learning_rate=eta, rounds=rounds
    )


def per_round(
    s: Penalties, constants: LearningConstants, *, learning_rate: float, rounds: float
) -> Bound:
    """``per_round_bound`` of a network whose penalties are known."""
    eta = check_positive("learning_rate", learning_rate) / s.form.buffer
    check_rounds(rounds)
    b, c, b_gradient, c_gradient = s.weighted(constants)
    terms = {
        "progress": constants.initial_gap / (eta * (rounds + 1.0)),
        "noise": eta * b,
        "staleness": eta**2 * c,
    }
    return Bound(
        value=sum(terms.values()),
        gradient=eta * b_gradient + eta**2 * c_gradient,
        terms=terms,
    )


def per_time(
    s: Penalties, constants: LearningConstants, *, learning_rate: float, rounds: float
) -> Bound:
    """``per_time_bound`` of a network whose penalties are known."""
    g = per_round(s, constants, learning_rate=learning_rate, rounds=rounds)
    value = g.value / s.throughput
    return Bound(
        value=value,
        gradient=g.gradient / s.throughput - value * s.log_throughput_gradient,
        terms={name: term / s.throughput for name, term in g.terms.items()},
    )


def max_learning_rate(network: Network, constants: LearningConstants, form: Form = PAPER) -> float:
    r"""The learning rate below which G and H are guarantees.

    .. math:: \eta_{\max} = \frac1{4L} \min\Bigl\{
        \Bigl(\frac{m^2}{n^2} |\mu| \sum_i \frac1{\mu_i p_i^2}\Bigr)^{-1/2},
        \frac{2 n^2}{\sum_i 1/p_i} \Bigr\}

    Far below what works in practice (``docs/limits.md``). Zero for a network with links, a server
    that takes time or clients that come and go, for which no such rate is proved. For the tight bound, and with a buffer of :math:`K` for both,

    .. math:: \frac{K}{4L} \min\Bigl\{ \Bigl(\frac{m + K - 2}{3 n^2} \sum_i \frac{1}{p_i}
        \Bigl(\frac{m |\mu|}{\mu_i} + K - 1\Bigr)\Bigr)^{-1/2}, \frac{3 n^2}{4 \sum_i 1/p_i} \Bigr\}

    (``docs/theory.md``). Paper: appendix C.

    >>> from sojourn.network import Fleet, uniform_routing
    >>> fleet = Fleet([1.0, 1.0])
    >>> max_learning_rate(Network(fleet, uniform_routing(fleet), 1), LearningConstants(1, 1, 1, 0))
    0.125
    """
    return _max_learning_rate(network, constants, form)[0]


def rounds_to_accuracy(
    network: Network,
    constants: LearningConstants,
    *,
    squared_gradient_norm: float,
    guaranteed: bool = False,
    bound: str = "paper",
    buffer: int = 1,
) -> Horizon:
    r"""Rounds until the mean squared gradient norm is at most ``squared_gradient_norm``, at the best learning rate.

    .. math:: T(\eta) = \frac{A}{\eta (\epsilon/8 - \eta b - \eta^2 c)}, \qquad
              b = \frac{L B}{n^2} S_1, \quad c = \frac{L^2 B m}{n^2} S_2

    least where :math:`\epsilon/8 = 2 \eta b + 3 \eta^2 c`. With ``guaranteed`` the learning rate
    stays at or below ``max_learning_rate``. Not in the paper, whose Proposition 4.2 gives an order of
    magnitude.

    >>> from sojourn.network import Fleet, uniform_routing
    >>> fleet = Fleet([1.0, 1.0])
    >>> rounds_to_accuracy(Network(fleet, uniform_routing(fleet), 1), LearningConstants(1, 1, 1, 0),
    ...                    squared_gradient_norm=0.8)
    Horizon(400 at learning rate 0.05)
    """
    s = penalties(network, Form(bound, buffer))
    return horizon(s, constants, squared_gradient_norm=squared_gradient_norm, guaranteed=guaranteed)


def time_to_accuracy(
    network: Network,
    constants: LearningConstants,
    *,
    squared_gradient_norm: float,
    guaranteed: bool = False,
    bound: str = "paper",
    buffer: int = 1,
) -> Horizon:
    r"""Time until what ``rounds_to_accuracy`` counts the rounds to: its rounds divided by the throughput.

    An objective in routing and concurrency alone, without a learning rate or a number of rounds.

    >>> from sojourn.network import Fleet, uniform_routing
    >>> fleet = Fleet([1.0, 1.0])
    >>> time_to_accuracy(Network(fleet, uniform_routing(fleet), 1), LearningConstants(1, 1, 1, 0),
    ...                  squared_gradient_norm=0.8)
    Horizon(400 at learning rate 0.05)
    """
    s = penalties(network, Form(bound, buffer))
    found = horizon(
        s, constants, squared_gradient_norm=squared_gradient_norm, guaranteed=guaranteed
    )
    return per_time_horizon(s, found)


def horizon(
    s: Penalties,
    constants: LearningConstants,
    *,
    squared_gradient_norm: float,
    guaranteed: bool = False,
    learning_rate: float | None = None,
) -> Horizon:
    """``rounds_to_accuracy`` of a network whose penalties are known, or at a given learning rate."""
    target = check_positive("squared_gradient_norm", squared_gradient_norm) / 8.0
    b, c, b_gradient, c_gradient = s.weighted(constants)
    capped = False
    if learning_rate is not None:
        eta = check_positive("learning_rate", learning_rate) / s.form.buffer
    else:
        if constants.noise == 0.0 and not guaranteed:
            raise Unreachable(
                "without gradient noise and heterogeneity the bound allows any learning rate and "
                "no time to accuracy follows from it: ask for guaranteed=True, or give sigma or M"
            )
        best = b + math.sqrt(b * b + 3 * c * target)
        eta = target / best if best > 0 else math.inf
        if guaranteed:
            cap, cap_gradient = _max_learning_rate(s.network, constants, s.form)
            cap, cap_gradient = cap / s.form.buffer, cap_gradient / s.form.buffer
            if cap == 0.0:
                raise InvalidInput(
                    "no learning rate is proved for a network with links, a server that takes "
                    "time or clients that come and go: leave out guaranteed, and take the bound for a proxy"
                )
            capped = eta > cap
            eta = min(eta, cap)
    left = target - eta * b - eta**2 * c
    if left <= 0:
        raise Unreachable(
            f"a mean squared gradient norm of {squared_gradient_norm:g} is out of reach at learning rate {s.form.buffer * eta:g}: the bound's noise and "
            f"staleness alone are {8 * (eta * b + eta**2 * c):.4g}. Ask for more than that, or for a "
            f"learning rate below {s.form.buffer * _reachable_rate(target, b, c):.3g}."
        )
    rounds = constants.initial_gap / (eta * left)
    # At the best learning rate the derivative in it vanishes; at the cap it does not.
    gradient = rounds / left * (eta * b_gradient + eta**2 * c_gradient)
    if capped:
        gradient -= rounds * (target - 2 * eta * b - 3 * eta**2 * c) / (eta * left) * cap_gradient
    return Horizon(value=rounds, gradient=gradient, learning_rate=s.form.buffer * eta)


def per_time_horizon(s: Penalties, rounds: Horizon) -> Horizon:
    """A horizon in rounds as one in time."""
    time = rounds.value / s.throughput
    return Horizon(
        value=time,
        gradient=rounds.gradient / s.throughput - time * s.log_throughput_gradient,
        learning_rate=rounds.learning_rate,
    )


def _reachable_rate(target: float, b: float, c: float) -> float:
    """The learning rate at which noise and staleness alone use up ``target``."""
    return 2 * target / (b + math.sqrt(b * b + 4 * c * target))


def _max_learning_rate(
    network: Network, constants: LearningConstants, form: Form
) -> tuple[float, FloatArray]:
    p, mu, counts = network.routing, network.fleet.service_rates, network.fleet.counts
    worth = network.fleet.relative_weights**2
    if network.has_stations or network.fleet.comes_and_goes:
        return 0.0, np.zeros(p.size)
    if form != PAPER:
        return _tight_max_learning_rate(network, constants, form.buffer)
    ratio = network.concurrency / network.size
    speed = network.fleet.total_rate
    delay = ratio**2 * speed * float(counts @ (worth / (mu * p**2)))
    spread = float(counts @ (worth / p)) / network.size**2
    scale = 1.0 / (4.0 * constants.smoothness)
    if delay**-0.5 <= 2.0 / spread:
        value = scale * delay**-0.5
        return value, value / delay * ratio**2 * speed * worth / (mu * p**3)
    value = scale * 2.0 / spread
    return value, value / spread * worth / (network.size * p) ** 2


def _tight_max_learning_rate(
    network: Network, constants: LearningConstants, buffer: int
) -> tuple[float, FloatArray]:
    p, n, counts = network.routing, network.size, network.fleet.counts
    m, waiting = network.concurrency, network.concurrency + buffer - 2
    worth = network.fleet.relative_weights**2
    scale, spread = buffer / (4.0 * constants.smoothness), float(counts @ (worth / p))
    longest = worth * (m * network.fleet.total_rate / network.fleet.service_rates + buffer - 1)
    delay = waiting / (3.0 * n**2) * float(counts @ (longest / p))
    by_spread = 3.0 * n**2 / (4.0 * spread)
    if delay * by_spread**2 >= 1.0:
        value = scale * delay**-0.5
        return value, value / (2.0 * delay) * waiting / (3.0 * n**2) * longest / p**2
    value = scale * by_spread
    return value, value * worth / (spread * p**2)

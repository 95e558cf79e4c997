r"""The paper's bounds on the gradient norm, per round (G) and per time unit (H), and what follows.

All gradients are with respect to the routing probability of *one client* of each class, all others
held fixed; multiply by ``counts`` for the derivative along a whole class. Where clients do not
count the same, every :math:`1/p_i` and :math:`1/p_i^2` is times :math:`\omega_i^2`
(``Fleet.relative_weights``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sojourn._support.checks import check_positive, check_rounds, check_scale, check_whole
from sojourn._support.configuration import Table
from sojourn.errors import InvalidInput, UnknownName, Unreachable
from sojourn.fleet import Network
from sojourn.theory.constants import LearningConstants
from sojourn.theory.jackson import occupancy
from sojourn.types import FloatArray

BOUNDS = ("paper", "tight")


@dataclass(frozen=True)
class Form:
    r"""The form of G and H.

    ``bound`` is ``"paper"`` or ``"tight"``, in whose staleness term gradient noise of different
    tasks does not add up (``docs/theory.md``). ``buffer`` is :math:`K`: the server collects so many
    updates and makes them at once, with their mean; learning rates are then those of such a step.

    >>> Form(buffer=5)
    Form(bound='paper', buffer=5)
    """

    bound: str = "paper"
    buffer: int = 1

    def __post_init__(self) -> None:
        if self.bound not in BOUNDS:
            raise UnknownName("bound", self.bound, BOUNDS)
        object.__setattr__(self, "buffer", check_whole("buffer", self.buffer))

    def to_table(self) -> dict[str, object]:
        """What differs from the paper's form, as plain values."""
        bound = {} if self.bound == "paper" else {"bound": self.bound}
        return bound | ({} if self.buffer == 1 else {"buffer": self.buffer})

    @classmethod
    def from_table(cls, table: Table) -> "Form":
        """The form that `to_table` wrote; other keys are left to the caller."""
        bound = table.take("bound", str, default="paper")
        return cls(bound, table.take("buffer", int, default=1))


PAPER = Form()


@dataclass(frozen=True, eq=False)
class Sum:
    """A value, its gradient in the routing (shape ``(k,)``), and its terms by name."""

    value: float
    gradient: FloatArray
    terms: Mapping[str, float]

    def __repr__(self) -> str:
        terms = ", ".join(f"{name} {value:.6g}" for name, value in self.terms.items())
        return f"{type(self).__name__}({self.value:.8g}: {terms})"


class Bound(Sum):
    """A bound's value, its gradient in the routing (shape ``(k,)``), and its terms by name."""


@dataclass(frozen=True, eq=False)
class Horizon:
    """Rounds or time until an accuracy is reached, with its gradient and the learning rate used."""

    value: float
    gradient: FloatArray
    learning_rate: float

    def __repr__(self) -> str:
        return f"Horizon({self.value:.8g} at learning rate {self.learning_rate:.4g})"


@dataclass(frozen=True)
class ScheduledHorizon:
    r"""Rounds and time until an accuracy is reached with :math:`\eta = C/T^\alpha`.

    ``terms`` are the numbers of rounds that each condition asks for; ``rounds`` is the largest of them.
    """

    rounds: float
    time: float
    learning_rate: float
    terms: Mapping[str, float]


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
    :math:`X_s` those at the server (``sojourn.theory.jackson.occupancy``).
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
    ``noise``, ``staleness``. ``bound="tight"`` is the tighter one, ``buffer`` the updates that the
    server collects for each that it makes: see `Form`. Paper: equation (5); its gradient (appendix
    G) with the diagonal of (9) corrected.

    >>> from sojourn.fleet import Fleet, uniform_routing
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
    r"""The bound per time unit, :math:`H = G/\lambda`, with the terms of G so divided.

    .. math:: \frac{\partial H}{\partial p_j} = \frac1\lambda \frac{\partial G}{\partial p_j}
              + H\, \frac{E[\xi_j] - E[X_j]}{p_j}

    Paper: Proposition 4.1 (11) and appendix H.

    >>> from sojourn.fleet import Fleet, uniform_routing
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
    that takes time or intermittent clients, for which no such rate is proved. For the tight bound,
    and with a buffer of :math:`K` for both,

    .. math:: \frac{K}{4L} \min\Bigl\{ \Bigl(\frac{m + K - 2}{3 n^2} \sum_i \frac{1}{p_i}
        \Bigl(\frac{m |\mu|}{\mu_i} + K - 1\Bigr)\Bigr)^{-1/2}, \frac{3 n^2}{4 \sum_i 1/p_i} \Bigr\}

    (``docs/theory.md``). Paper: appendix C.

    >>> from sojourn.fleet import Fleet, uniform_routing
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
    r"""Rounds to a mean squared gradient norm of ``squared_gradient_norm``, at the best rate.

    .. math:: T(\eta) = \frac{A}{\eta (\epsilon/8 - \eta b - \eta^2 c)}, \qquad
              b = \frac{L B}{n^2} S_1, \quad c = \frac{L^2 B m}{n^2} S_2

    least where :math:`\epsilon/8 = 2 \eta b + 3 \eta^2 c`. With ``guaranteed`` the learning rate
    stays at or below ``max_learning_rate``. Not in the paper, whose Proposition 4.2 gives an order of
    magnitude.

    >>> from sojourn.fleet import Fleet, uniform_routing
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
    r"""Time to the accuracy of ``rounds_to_accuracy``: its rounds divided by the throughput.

    An objective in routing and concurrency alone, without a learning rate or a number of rounds.

    >>> from sojourn.fleet import Fleet, uniform_routing
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


def scheduled_rounds_to_accuracy(
    network: Network,
    constants: LearningConstants,
    *,
    squared_gradient_norm: float,
    scale: float,
    exponent: float,
) -> ScheduledHorizon:
    r"""Rounds until an accuracy with the learning rate :math:`\eta = C/T^\alpha` of Proposition 4.2.

    ``squared_gradient_norm`` is :math:`\epsilon`, ``scale`` :math:`C`, ``exponent`` :math:`\alpha` in (0, 1).
    The paper's terms, with the constants that make each of the three terms of :math:`8 G` at most
    :math:`\epsilon/3`, and its condition :math:`\eta \le \eta_{\max}`:

    .. math:: T_\epsilon = \max\Bigl\{
        \Bigl(\frac{24 A}{C \epsilon}\Bigr)^{\frac1{1-\alpha}},
        \Bigl(\frac{24 C L B S_1}{\epsilon n^2}\Bigr)^{\frac1\alpha},
        \Bigl(\frac{24 C^2 L^2 B m S_2}{\epsilon n^2}\Bigr)^{\frac1{2\alpha}},
        \Bigl(\frac{C}{\eta_{\max}}\Bigr)^{\frac1\alpha} \Bigr\}

    and the time is :math:`T_\epsilon/\lambda`. The terms are called ``progress``, ``noise``,
    ``staleness`` and ``proof``; the last is infinite where no learning rate is proved.
    `rounds_to_accuracy` with ``guaranteed=True`` needs fewer rounds: it takes the best fixed rate.
    Cost: one steady state. Paper: Proposition 4.2.

    >>> from sojourn.fleet import Fleet, uniform_routing
    >>> fleet = Fleet([1.0, 1.0])
    >>> found = scheduled_rounds_to_accuracy(
    ...     Network(fleet, uniform_routing(fleet), 1), LearningConstants(1, 1, 1, 0),
    ...     squared_gradient_norm=0.8, scale=1.0, exponent=0.5)
    >>> round(found.rounds), {name: round(rounds) for name, rounds in found.terms.items()}
    (900, {'progress': 900, 'noise': 900, 'staleness': 0, 'proof': 64})
    """
    target = check_positive("squared_gradient_norm", squared_gradient_norm) / 24.0
    factor = check_positive("scale", scale)
    if not 0.0 < exponent < 1.0:
        raise InvalidInput(f"exponent must lie between 0 and 1; it is {exponent!r}")
    s = penalties(network)
    b, c, _, _ = s.weighted(constants)
    largest = max_learning_rate(network, constants)
    terms = {
        "progress": (constants.initial_gap / (factor * target)) ** (1.0 / (1.0 - exponent)),
        "noise": (factor * b / target) ** (1.0 / exponent),
        "staleness": (factor**2 * c / target) ** (0.5 / exponent),
        "proof": (factor / largest) ** (1.0 / exponent) if largest > 0.0 else math.inf,
    }
    rounds = max(terms.values())
    return ScheduledHorizon(rounds, rounds / s.throughput, factor / rounds**exponent, terms)


def stationary_start(
    network: Network, constants: LearningConstants, *, learning_rate: float, buffer: int = 1
) -> float:
    r"""What the tasks under way at a stationary start add to the tight bound, :math:`R`.

    .. math:: \frac{1}{T+1} \sum_{k=0}^{T} E|\nabla f(w_k)|^2 \le 8 \Bigl(G + \frac{R}{T+1}\Bigr), \qquad
        R = \frac{M^2}{4} W + \frac{\gamma L}{2 n^2} \bigl(\sigma^2 + (2 M^2 + 4 L A)(m - 1)\bigr) S_2
            + \frac{2 \gamma^2 L^3 A (m + K - 2)}{n^2} U

    for :math:`G` with ``bound="tight"`` and :math:`\eta` (``learning_rate``) up to
    `max_learning_rate` of that form, with :math:`\gamma = \eta/K`,
    :math:`W = \frac1n \sum_i \omega_i E[X_i]/p_i` and
    :math:`U = \sum_i \frac{\omega_i^2 E[X_i]}{p_i^2} (\frac{m |\mu|}{2 \mu_i} + K - 1)`. All of them
    are zero for one task. The proof is in ``docs/theory.md``. Cost: one steady state.

    >>> from sojourn.fleet import Fleet, uniform_routing
    >>> fleet, constants = Fleet([1.0, 1.0]), LearningConstants(1.0, 1.0, 1.0, 2.0)
    >>> stationary_start(Network(fleet, uniform_routing(fleet), 1), constants, learning_rate=0.1)
    0.0
    >>> round(stationary_start(Network(fleet, uniform_routing(fleet), 2), constants, learning_rate=0.1), 4)
    1.69
    """
    form = Form("tight", buffer)
    gamma = check_scale("learning_rate", learning_rate) / form.buffer
    if network.has_delays or network.fleet.is_intermittent:
        raise InvalidInput(
            "the tight bound is proved for clients alone: leave out links, the server's rate and "
            "absences of clients"
        )
    fleet, p, n, m = network.fleet, network.routing, network.size, network.concurrency
    waiting = fleet.counts * occupancy(network, np.ones(p.size)).mean_held
    omega = fleet.relative_weights
    spread = float(waiting @ (omega / p)) / n
    squares = waiting * (omega / p) ** 2
    longest = 0.5 * m * fleet.total_rate / fleet.service_rates + form.buffer - 1
    smooth, gap = constants.smoothness, constants.initial_gap
    moments = 2.0 * constants.heterogeneity**2 + 4.0 * smooth * gap
    second = constants.gradient_noise**2 + moments * (m - 1)
    late = 2.0 * gamma**2 * smooth**3 * gap * (m + form.buffer - 2) / n**2
    return (
        0.25 * constants.heterogeneity**2 * spread
        + 0.5 * gamma * smooth / n**2 * second * float(squares.sum())
        + late * float(squares @ longest)
    )


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
                    "time or intermittent clients: leave out guaranteed, and use the bound as a proxy"
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
    if network.has_delays or network.fleet.is_intermittent:
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

r"""Where the m tasks are at time 0, exact draws of the stationary state among them.

In steady state the numbers of tasks are independent geometric variables conditioned on their sum
(paper, Proposition 1). The total of a class of c identical clients is then a negative binomial
variable, and given its total a class is spread over its members uniformly over all compositions.

The totals are drawn by rejection: all classes but one freely, at the tilt where the free mean is m,
and the draw is accepted with the probability, relative to its largest value, that the remaining
class makes up the difference. When no class holds a fair share of the variance, half of the classes
are drawn and the other half, by itself a network of the same form, takes the remainder
(probabilistic divide and conquer); the probability of its total is a Fourier sum. Nothing depends
on the tilt but speed.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import gammaln

from sojourn.errors import InvalidInput, UnknownName
from sojourn.fleet import Network
from sojourn.simulation.stations import DOWNLINK, SERVER, SERVICE, UPLINK
from sojourn.types import FloatArray, IntArray

STARTS = ("spread", "stationary")

Start = str | ArrayLike


_FAIR_SHARE = 1 / 64
_SMALL_VARIANCE = 64.0
"""The largest class makes up what the others leave if it has this share of the variance, or if the
variance is small: then a try succeeds often enough. Else half of the classes are drawn before it."""


def start_name(start: Start) -> str:
    """``"spread"``, ``"stationary"``, or ``"given"`` for a state of one's own."""
    if not isinstance(start, str):
        return "given"
    if start not in STARTS:
        raise UnknownName("start", start, STARTS)
    return start


def first_clients(
    network: Network, start: Start, tasks: int, random: np.random.Generator
) -> IntArray:
    """The client of each of the first tasks, shape ``(tasks,)``.

    ``"spread"`` deals the tasks out round-robin (client 0, 1, ..., n-1, 0, ...); ``"stationary"``
    draws the state from the product form; anything else is the number of tasks of each client,
    shape ``(n,)``.
    """
    name = start_name(start)
    n = network.size
    if name == "spread":
        return np.arange(tasks, dtype=np.int64) % n
    state = stationary_state(network, random) if name == "stationary" else _given(n, start, tasks)
    return np.repeat(np.arange(n, dtype=np.int64), state)


def _given(n: int, start: Start, tasks: int) -> IntArray:
    state = np.asarray(start, dtype=np.float64)
    if state.shape != (n,) or not np.all((state >= 0) & (state == np.floor(state))):
        raise InvalidInput(
            f"a start of one's own must be {n} whole numbers, the tasks of each client at time 0; "
            f"its shape is {state.shape}"
        )
    if state.sum() != tasks:
        raise InvalidInput(
            f"a start of one's own must hold concurrency = {tasks} tasks; it holds {state.sum():g}"
        )
    return state.astype(np.int64)


def stationary_state(network: Network, random: np.random.Generator) -> IntArray:
    r"""The number of tasks at each client in steady state, drawn exactly, shape ``(n,)``.

    .. math:: \pi_{n,m}(x) = \frac{1}{Z_{n,m}} \prod_i \rho_i^{x_i}, \qquad \sum_i x_i = m

    Cost: O(k + n log n) for k classes when a class or client holds a fair share of the
    variance, else some tens of operations per class. Paper: Proposition 1.

    >>> from sojourn.fleet import built_in_fleet, uniform_routing
    >>> fleet = built_in_fleet("three-clusters")
    >>> network = Network(fleet, uniform_routing(fleet), 30)
    >>> int(stationary_state(network, np.random.default_rng(1)).sum())
    30
    """
    counts = network.fleet.counts
    totals = _class_totals(network.loads, counts, network.concurrency, random)
    return _spread_over_members(totals, counts, random)


def stationary_journeys(
    network: Network, random: np.random.Generator
) -> tuple[IntArray, NDArray[np.uint8]]:
    r"""The client of each task in steady state with links and server, and its stage, ``(tasks,)`` each.

    .. math:: \pi(x, l, s) \propto \prod_i \rho_i^{x_i} \frac{\theta_i^{l_i}}{l_i!} \cdot \mu_s^{-s}

    drawn exactly. An update at the server is of client i with probability :math:`p_i`; those there
    stand in random order. Cost: O(k + n) for each try; about as many tries as the square root of
    what the largest class holds of the variance.
    """
    fleet, n = network.fleet, network.size
    counts, loads = fleet.counts, network.loads
    down, up = (network.routing * fleet.column(name) for name in ("downlink", "uplink"))
    if network.server_rate is not None:
        counts, loads = np.append(counts, 1), np.append(loads, 1.0 / network.server_rate)
    theta = float(fleet.counts @ (down + up))
    totals, links = _totals_and_links(loads, counts, theta, network.concurrency, random)
    served = _spread_over_members(totals[: fleet.classes], fleet.counts, random)
    on_links = np.zeros(2 * n, dtype=np.int64)
    if links:
        means = np.concatenate([fleet.expand(down), fleet.expand(up)])
        on_links = random.multinomial(links, means / means.sum())
    at_server = np.zeros(n, dtype=np.int64)
    if network.server_rate is not None:
        p = network.client_routing
        at_server = random.multinomial(int(totals[-1]), p / p.sum())
    everyone = np.arange(n, dtype=np.int64)
    parts = [
        (np.repeat(everyone, served), SERVICE),
        (np.repeat(everyone, on_links[:n]), DOWNLINK),
        (np.repeat(everyone, on_links[n:]), UPLINK),
        (random.permutation(np.repeat(everyone, at_server)), SERVER),
    ]
    stages = [np.full(clients.size, stage, dtype=np.uint8) for clients, stage in parts]
    return np.concatenate([clients for clients, _ in parts]), np.concatenate(stages)


def _totals_and_links(
    loads: FloatArray, counts: IntArray, theta: float, tasks: int, random: np.random.Generator
) -> tuple[IntArray, int]:
    """Tasks of each class and on all links: one of these makes up what the others leave."""
    if theta == 0.0:
        return _class_totals(loads, counts, tasks, random), 0
    gap = _free_gaps(loads, counts, tasks, theta)
    log_mean = np.log(theta / loads.max()) + np.log1p(-float(gap[np.argmax(loads)]))
    on_links = float(np.exp(log_mean))
    mean = (1.0 - gap) / gap
    variance = counts * mean * (1.0 + mean)
    largest = int(np.argmax(variance))
    if variance[largest] > on_links:
        return _fill_largest(gap, counts, tasks, largest, random, on_links)
    peak = np.floor(on_links) * log_mean - gammaln(np.floor(on_links) + 1.0)
    while True:
        totals = random.negative_binomial(counts, gap)
        left = tasks - int(totals.sum())
        if left >= 0 and np.log1p(-random.random()) <= left * log_mean - gammaln(left + 1.0) - peak:
            return totals, left


def _spread_over_members(
    totals: IntArray, counts: IntArray, random: np.random.Generator
) -> IntArray:
    state = np.repeat(totals, counts)
    ends = np.cumsum(counts)
    for k in np.flatnonzero(counts > 1).tolist():
        members = slice(ends[k] - counts[k], ends[k])
        state[members] = _composition(int(totals[k]), int(counts[k]), random)
    return state


def _composition(total: int, parts: int, random: np.random.Generator) -> IntArray:
    """``total`` as an ordered sum of ``parts`` whole numbers, uniformly (stars and bars)."""
    bars = np.sort(random.choice(total + parts - 1, parts - 1, replace=False, shuffle=False))
    edges = np.concatenate(([-1], bars, [total + parts - 1]))
    return np.asarray(np.diff(edges) - 1, dtype=np.int64)


def _class_totals(
    loads: FloatArray, counts: IntArray, tasks: int, random: np.random.Generator
) -> IntArray:
    if counts.size == 1 or tasks == 0:
        totals = np.zeros(counts.size, dtype=np.int64)
        totals[0] = tasks
        return totals
    gap = _free_gaps(loads, counts, tasks)
    mean = (1.0 - gap) / gap
    variance = counts * mean * (1.0 + mean)
    largest = int(np.argmax(variance))
    if variance[largest] >= _FAIR_SHARE * variance.sum() or variance.sum() < _SMALL_VARIANCE:
        return _fill_largest(gap, counts, tasks, largest, random)[0]
    half = np.zeros(counts.size, dtype=bool)
    half[np.argsort(variance)[::2]] = True
    drawn, left = _draw_half(gap[~half], counts[~half], gap[half], counts[half], tasks, random)
    totals = np.empty(counts.size, dtype=np.int64)
    totals[~half] = drawn
    totals[half] = _class_totals(loads[half], counts[half], left, random)
    return totals


def _free_gaps(loads: FloatArray, counts: IntArray, tasks: int, theta: float = 0.0) -> FloatArray:
    """``1 - rho_i z`` at the z where independent geometric variables have sum ``tasks`` on average.

    A Poisson variable of mean ``theta`` z counts too.
    """
    relative = loads / loads.max()
    below = 1.0 - relative
    links = theta / loads.max()

    def excess(log_epsilon: float) -> float:
        gap = below + relative * np.exp(log_epsilon)
        on_links = links * -np.expm1(log_epsilon)
        return float(np.log(counts @ ((1.0 - gap) / gap) + on_links) - np.log(tasks))

    lowest = np.log(0.5 / (1.0 + tasks))
    highest = -1e-12
    rare = excess(highest) > 0  # less than 1e-12 of a task per client: any tilt will do
    root = highest if rare else brentq(excess, lowest, highest, xtol=1e-12)
    return np.asarray(below + relative * np.exp(root))


def _fill_largest(
    gap: FloatArray,
    counts: IntArray,
    tasks: int,
    largest: int,
    random: np.random.Generator,
    on_links: float = 0.0,
) -> tuple[IntArray, int]:
    """Tasks of each class and on links: the largest class makes up what the others leave."""
    weight = _class_weight(gap, counts, largest)
    others = np.arange(counts.size) != largest
    while True:
        totals = np.zeros(counts.size, dtype=np.int64)
        totals[others] = random.negative_binomial(counts[others], gap[others])
        links = int(random.poisson(on_links)) if on_links else 0
        left = tasks - int(totals.sum()) - links
        if left >= 0 and np.log1p(-random.random()) <= weight(left):
            totals[largest] = left
            return totals, links


def _class_weight(gap: FloatArray, counts: IntArray, k: int) -> Callable[[int], float]:
    """The log probability of a total of class ``k``, relative to the most probable one."""
    count, log_ratio = int(counts[k]), np.log1p(-gap[k])

    def log_weight(total: int) -> float:
        return float(gammaln(count + total) - gammaln(total + 1.0) + total * log_ratio)

    peak = log_weight(int((count - 1) * (1.0 - gap[k]) / gap[k]))
    return lambda total: log_weight(total) - peak


def _draw_half(
    gap: FloatArray,
    counts: IntArray,
    other_gap: FloatArray,
    other_counts: IntArray,
    tasks: int,
    random: np.random.Generator,
) -> tuple[IntArray, int]:
    """Totals of one half of the classes, and what they leave to the other half."""
    angles, transform = _fourier(other_gap, other_counts)
    step = angles[1] - angles[0]
    peak = step / np.pi * (0.5 + np.abs(transform[1:]).sum())
    while True:
        totals = random.negative_binomial(counts, gap)
        left = tasks - int(totals.sum())
        if left < 0:
            continue
        waves = (transform[1:] * np.exp(-1j * angles[1:] * left)).real
        if random.random() * peak < step / np.pi * (0.5 + waves.sum()):
            return totals, left


def _fourier(gap: FloatArray, counts: IntArray) -> tuple[FloatArray, np.ndarray]:
    """The characteristic function of the sum of the totals, up to where it vanishes."""
    mean = (1.0 - gap) / gap
    deviation = np.sqrt(float(counts @ (mean * (1.0 + mean))))
    points = max(16, int(np.ceil(40.0 * deviation)))
    angles, values = [], []
    for j in range(points // 2):
        angle = 2.0 * np.pi * j / points
        turn = np.exp(1j * angle)
        value = np.exp(counts @ -np.log1p(mean * (1.0 - turn)))
        angles.append(angle)
        values.append(value)
        if abs(value) < 1e-18:
            break
    return np.array(angles), np.array(values)

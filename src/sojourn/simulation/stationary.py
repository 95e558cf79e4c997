r"""Exact draws of the network's stationary state.

In steady state the numbers of tasks are independent geometric variables conditioned on their sum
(paper, Proposition 1). The total of a class of c identical clients is then a negative binomial
variable, and given its total a class is spread over its members uniformly over all compositions.

The totals are drawn by rejection: all classes but one freely, at the tilt where the free mean is m, and the
draw is accepted with the probability, relative to its largest value, that the remaining class makes
up the difference. When no class holds a fair share of the variance, half of the classes are drawn and the
other half, by itself a network of the same form, takes the remainder (probabilistic divide and
conquer); the probability of its total is a Fourier sum. Nothing depends on the tilt but speed.
"""

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln

from sojourn.network import Network
from sojourn.types import FloatArray, IntArray

_FAIR_SHARE = 1 / 64
_SMALL_VARIANCE = 64.0


def stationary_state(network: Network, random: np.random.Generator) -> IntArray:
    r"""The number of tasks at each client in steady state, drawn exactly, shape ``(n,)``.

    .. math:: \pi_{n,m}(x) = \frac{1}{Z_{n,m}} \prod_i \rho_i^{x_i}, \qquad \sum_i x_i = m

    Cost: O(k + n log n) for k classes when a class or client holds a fair share of the
    variance, else some tens of operations per class. Paper: Proposition 1.

    >>> from sojourn.network import built_in_fleet, uniform_routing
    >>> fleet = built_in_fleet("three-clusters")
    >>> network = Network(fleet, uniform_routing(fleet), 30)
    >>> int(stationary_state(network, np.random.default_rng(1)).sum())
    30
    """
    counts = network.fleet.counts
    totals = _class_totals(network.loads, counts, network.concurrency, random)
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
        return _fill_largest(gap, counts, tasks, largest, random)
    half = np.zeros(counts.size, dtype=bool)
    half[np.argsort(variance)[::2]] = True
    drawn, left = _draw_half(gap[~half], counts[~half], gap[half], counts[half], tasks, random)
    totals = np.empty(counts.size, dtype=np.int64)
    totals[~half] = drawn
    totals[half] = _class_totals(loads[half], counts[half], left, random)
    return totals


def _free_gaps(loads: FloatArray, counts: IntArray, tasks: int) -> FloatArray:
    """``1 - rho_i z`` at the z where independent geometric variables have sum ``tasks`` on average."""
    relative = loads / loads.max()
    below = 1.0 - relative

    def excess(log_epsilon: float) -> float:
        gap = below + relative * np.exp(log_epsilon)
        return float(np.log(counts @ ((1.0 - gap) / gap)) - np.log(tasks))

    lowest = np.log(0.5 / (1.0 + tasks))
    highest = -1e-12
    rare = excess(highest) > 0  # less than 1e-12 of a task per client: any tilt will do
    root = highest if rare else brentq(excess, lowest, highest, xtol=1e-12)
    return np.asarray(below + relative * np.exp(root))


def _fill_largest(
    gap: FloatArray, counts: IntArray, tasks: int, largest: int, random: np.random.Generator
) -> IntArray:
    count, log_ratio = int(counts[largest]), np.log1p(-gap[largest])
    others = np.arange(counts.size) != largest

    def log_weight(total: int) -> float:
        return float(gammaln(count + total) - gammaln(total + 1.0) + total * log_ratio)

    peak = log_weight(int((count - 1) * (1.0 - gap[largest]) / gap[largest]))
    while True:
        totals = np.zeros(counts.size, dtype=np.int64)
        totals[others] = random.negative_binomial(counts[others], gap[others])
        left = tasks - int(totals.sum())
        if left >= 0 and np.log1p(-random.random()) <= log_weight(left) - peak:
            totals[largest] = left
            return totals


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

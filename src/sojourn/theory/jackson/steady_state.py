"""Steady state of the closed network: mean-value analysis, or a contour integral for many tasks."""

import cmath
import math
from typing import Literal, NamedTuple

import numpy as np

from sojourn._support.compiling import njit, read_only
from sojourn.errors import UnknownName
from sojourn.types import FloatArray, IntArray

Engine = Literal["auto", "mean-value", "contour"]
ENGINES = ("auto", "mean-value", "contour")

LARGEST_MEAN_VALUE_POPULATION = 100
"""Up to here mean-value analysis, at 2 ns per client and task, costs less than the contour."""


class SteadyState(NamedTuple):
    r"""What the bounds and their gradients need, per client of each class."""

    throughput: float
    r""":math:`\lambda`, with ``concurrency`` tasks."""
    mean_tasks: FloatArray
    r""":math:`E[X_i]`, with one task fewer."""
    weighted_covariance: FloatArray
    r""":math:`C_j = \mathrm{Cov}[F, X_j]`, :math:`F = \sum_i c_i w_i (X_i + L_i)`."""
    mean_on_links: FloatArray | None = None
    r""":math:`E[L_i]`, with one task fewer; ``None`` without links."""
    links_covariance: FloatArray | None = None
    r""":math:`\mathrm{Cov}[F, L_j]`; ``None`` without links."""


def steady_state(
    loads: FloatArray,
    counts: IntArray,
    concurrency: int,
    weights: FloatArray | None = None,
    *,
    links: FloatArray | None = None,
    engine: Engine = "auto",
) -> SteadyState:
    r"""Throughput, mean tasks and weighted covariances of the closed network.

    ``loads`` is :math:`\rho_i = p_i/\mu_i` (any scale: throughput scales with its inverse),
    ``counts`` the clients per class, ``weights`` :math:`w` (zeros by default), shape ``(k,)`` each;
    ``concurrency`` is :math:`m`. ``links`` is :math:`\theta_i`, shape ``(k,)``: what a task spends
    on average on a client's links, times :math:`p_i`; only means matter there, whatever the law. A
    server that takes time is a class of one with load :math:`1/\mu_s`. The contour falls back to
    mean-value analysis when its own error flag says so, even if it was asked for. Cost: O(km) or
    O(k).

    Paper: Proposition 2.1 (4), Theorem 3.1 (8) and (9), Proposition 4.1 (12).

    >>> state = steady_state(np.array([0.5, 0.5]), np.array([1, 1]), 3)
    >>> state.throughput, state.mean_tasks.tolist()
    (1.5, [1.0, 1.0])
    """
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    population = concurrency - 1
    # Covariances do not see a constant; without it, mean-value analysis keeps four digits more.
    w = np.zeros(loads.size) if weights is None else weights - weights[loads.argmax()]
    theta = 0.0 if links is None else float(counts @ links)
    weighted = 0.0 if links is None else float(counts @ (w * links))
    smallest = {"auto": LARGEST_MEAN_VALUE_POPULATION + 1, "contour": 1, "mean-value": concurrency}
    counts = read_only(counts)
    accurate = False
    if population >= smallest[engine]:
        accurate, throughput, mean, covariance, passing, rise = contour_integral(
            loads, counts, population, w, theta, weighted
        )
    if not accurate:
        throughput, mean, covariance, passing, rise = mean_value_analysis(
            loads, counts, population, w, theta, weighted
        )
    if links is None:
        return SteadyState(throughput, mean, covariance)
    on_links = passing * links
    return SteadyState(throughput, mean, covariance, on_links, on_links * (w - rise))


@njit(cache=True, nogil=True, error_model="numpy")
def mean_value_analysis(
    loads: FloatArray,
    counts: IntArray,
    population: int,
    weights: FloatArray,
    links: float,
    weighted_links: float,
) -> tuple[float, FloatArray, FloatArray, float, float]:
    r"""Throughput, means and weighted covariances, by recursion on the population.

    .. math::

        Q_j(k) &= u_k \rho_j (1 + Q_j(k-1)), \qquad
            u_k = k \Big/ \Bigl(\theta + \sum_i c_i \rho_i (1 + Q_i(k-1))\Bigr) \\
        C_j(k) &= \rho_j u_k C_j(k-1) + Q_j(k) \bigl(w_j + S(k-1) - S(k)\bigr), \qquad
            S(k) = \sum_i c_i w_i (Q_i(k) + u_k \theta_i)

    ``loads`` is :math:`\rho`, ``counts`` :math:`c`, ``weights`` :math:`w`, each of shape ``(k,)``;
    ``links`` is :math:`\theta = \sum_i c_i \theta_i`, the mean time that a task spends on links, and
    ``weighted_links`` :math:`\sum_i c_i w_i \theta_i`.
    Returns :math:`u_{M+1}` (the throughput with one task more than ``population`` :math:`M`),
    :math:`Q(M) = E[X]` and :math:`C_j = \mathrm{Cov}(F, X_j)`, where
    :math:`F = \sum_i c_i w_i (X_i + L_i)` and :math:`L_i` are the tasks on links; then what tells of
    these, :math:`u_M` and :math:`h = S(M) - S(M-1)`: :math:`E[L_j] = \theta_j u_M` and
    :math:`\mathrm{Cov}(F, L_j) = E[L_j] (w_j - h)`. All quantities stay
    of the order of the answer: nothing can overflow. Cost: O(kM).
    """
    k = loads.size
    mean = np.zeros(k)
    covariance = np.zeros(k)
    before = 0.0
    u = 0.0
    rise = 0.0
    for tasks in range(1, population + 1):
        work = links
        for j in range(k):
            work += counts[j] * loads[j] * (1.0 + mean[j])
        u = tasks / work
        weighted = u * weighted_links
        for j in range(k):
            mean[j] = u * loads[j] * (1.0 + mean[j])
            weighted += counts[j] * weights[j] * mean[j]
        for j in range(k):
            covariance[j] = loads[j] * u * covariance[j] + mean[j] * (
                weights[j] + before - weighted
            )
        rise = weighted - before
        before = weighted
    work = links
    for j in range(k):
        work += counts[j] * loads[j] * (1.0 + mean[j])
    return (population + 1) / work, mean, covariance, u, rise


STEP = 0.25
"""Distance of the contour's points, in standard deviations of the integrand."""
POINTS = 48
"""The most points on one half of the parabola."""
POINTS_BENT = 192
"""The most points on one half of the path that levels off, taken when the parabola fails."""
NEGLIGIBLE = 1e-17
"""Relative weight at which the contour may end."""
ADDS_UP, ROUNDED = 1e-13, 1e-11
"""How far the mean tasks may be from adding up, relative to all: else points are too far apart.

The second is for the last path, and for a million classes, whose roundings add up too.
"""
FOLD = 16
"""Factors multiplied before their logarithm is taken."""
SMALL, TERMS = 0.1, 8
"""Below this size logarithms and exponentials less their first terms go by as many terms of a series."""

_kernel = njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})


@_kernel
def saddle_point(
    loads: FloatArray, counts: IntArray, population: float, links: float = 0.0
) -> FloatArray:
    r"""Means :math:`A_i` of the open network that holds ``population`` tasks on average.

    With :math:`r_i = \rho_i/\rho_{\max}`, :math:`v` the mean at the most loaded client and
    :math:`\theta` = ``links`` the mean time on links,

    .. math:: A_i = \frac{r_i v}{1 + (1 - r_i) v}, \qquad
              \sum_i c_i A_i + \frac{\theta}{\rho_{\max}} \frac{v}{1 + v} = M,

    increasing in :math:`v`: Newton's method in :math:`(\log v, \log M)`, kept inside a bracket.
    """
    k = loads.size
    top = loads.max()
    at_top = 0.0
    total = 0.0
    for i in range(k):
        total += counts[i] * (loads[i] / top)
        if loads[i] == top:
            at_top += counts[i]
    relative = links / top
    total += relative
    low = population / total
    high = population / at_top
    v = low
    for _ in range(100):
        value = 0.0
        slope = 0.0
        for i in range(k):
            denominator = 1.0 / (1.0 + (top - loads[i]) / top * v)
            a = counts[i] * (loads[i] / top) * v * denominator
            value += a
            slope += a * denominator
        on_links = relative * v / (1.0 + v)
        value += on_links
        slope += on_links / (1.0 + v)
        if value < population:
            low = max(low, v)
        else:
            high = min(high, v)
        following = v * math.exp(math.log(population / value) * value / slope)
        if not low <= following <= high:
            following = math.sqrt(low * high)
        converged = abs(following - v) <= 1e-15 * v
        v = following
        if converged:
            break
    means = np.empty(k)
    for i in range(k):
        means[i] = loads[i] / top * v / (1.0 + (top - loads[i]) / top * v)
    return means


@_kernel
def contour_integral(
    loads: FloatArray,
    counts: IntArray,
    population: int,
    weights: FloatArray,
    links: float,
    weighted_links: float,
) -> tuple[bool, float, FloatArray, FloatArray, float, float]:
    r"""Throughput, means and weighted covariances from the generating function.

    .. math:: Z_M = \frac1{2\pi i} \oint e^{\theta z} \prod_i (1 - \rho_i z)^{-c_i}
              \frac{dz}{z^{M+1}}

    In :math:`s = \log z` the path is :math:`s_0 + it + x(t)` through the saddle :math:`s_0`: a
    parabola, or where that fails one that levels off (``_bend``); on both the trapezoid rule
    converges geometrically. Given :math:`z`, the :math:`X_i` are independent and geometric with
    mean :math:`A_i(z)`, and the tasks on a client's links Poisson with mean :math:`\theta_i z`, so
    averages over the path give :math:`E[X_i]`, the covariances, :math:`1/\lambda = E[1/z]`,
    :math:`u_M = E[z]` and :math:`h = -\mathrm{Cov}(F, z)/u_M`. With :math:`d = e^{s - s_0} - 1` and
    the means :math:`A_i` at the saddle,

    .. math:: A_i(z) - A_i = \frac{A_i (1 + A_i) d}{1 - A_i d},

    which loses no digits. Arguments and results as in ``mean_value_analysis``, after a flag: false
    when the last point's weight is not negligible, as happens for very small populations, or when the
    mean tasks do not add up to :math:`M`. Cost: O(k) for each of 48 points, rarely of 192 more.
    """
    means = saddle_point(loads, counts, population, links)
    scale = means.max() / (1.0 + means.max()) / loads.max()
    kappa2, beta, level = _bend(means, counts, links * scale)
    step = STEP / math.sqrt(kappa2)
    centred = _centre(weights, means, counts, kappa2, links * scale, weighted_links * scale)
    top = np.argmax(means)
    middle = weights[top] - centred[top]
    weighted = (weighted_links - links * middle) * scale
    result = (math.inf, 0.0, means, means, 0.0, 0.0)
    for most, levelling, allowed in ((POINTS, 0.0, ADDS_UP), (POINTS_BENT, level, ROUNDED)):
        t = step * np.arange(min(most, int(math.pi / step))).astype(np.float64)
        rest = 1.0 / (1.0 + levelling * t * t)
        x = beta * t * t * rest
        slope = 2.0 * beta * t * rest * rest
        result = _along(means, counts, centred, links * scale, weighted, scale, t, x, slope)
        if result[0] <= allowed:
            break
    astray, throughput, mean, covariance, passing, rise = result
    return astray <= allowed, throughput, mean, covariance, passing, middle + rise


@_kernel
def _bend(means: FloatArray, counts: IntArray, on_links: float) -> tuple[float, float, float]:
    r""":math:`\kappa_2` and the path's :math:`x(t) = \beta t^2/(1 + \ell t^2)`: beta and ell.

    At the saddle :math:`\beta = \kappa_3/(6\kappa_2)` is the curvature of steepest descent. One
    heavily loaded client over many others makes the integrand a pole of mean :math:`A` (of order
    :math:`a`) times a Gaussian of variance :math:`V`, which the first cumulants tell; the Gaussian
    grows again to the right of :math:`aA/V`, where :math:`x(t)` levels off. ``on_links``, a Poisson
    number's mean, is each of its cumulants.
    """
    kappa2 = 0.0
    kappa3 = 0.0
    kappa4 = 0.0
    for i in range(means.size):
        a = means[i]
        spread = counts[i] * a * (1.0 + a)
        kappa2 += spread
        kappa3 += spread * (1.0 + 2.0 * a)
        kappa4 += spread * (1.0 + 6.0 * a * (1.0 + a))
    kappa2 += on_links
    kappa3 += on_links
    kappa4 += on_links
    beta = kappa3 / (6.0 * kappa2)
    pole = kappa4 / (3.0 * kappa3)
    order = kappa3 / (2.0 * pole**3)
    variance = max(kappa2 - order * pole**2, 0.0)
    return kappa2, beta, beta * variance / (order * pole)


@_kernel
def _along(
    means: FloatArray,
    counts: IntArray,
    centred: FloatArray,
    on_links: float,
    weighted: float,
    scale: float,
    t: FloatArray,
    x: FloatArray,
    slope: FloatArray,
) -> tuple[float, float, FloatArray, FloatArray, float, float]:
    """How far the tasks are from adding up, infinitely if the path does not end; and the averages of
    ``contour_integral`` over the path.
    """
    k = means.size
    points = t.size
    # d and the sum of weighted changes at every point, as real and imaginary parts.
    d_re, d_im = np.empty(points), np.empty(points)
    for q in range(points):
        d_re[q], d_im[q] = _expm1(x[q], t[q])
    exponent, sum_re, sum_im = _path_sums(means, counts, centred, d_re, d_im)
    for q in range(points):
        sum_re[q] += weighted * d_re[q]
        sum_im[q] += weighted * d_im[q]
    alone, crowd = _tasks(means, counts)
    # Tasks on links are Poisson, as those of a class of very many clients would be.
    crowd += on_links

    w_re, w_im = np.empty(points), np.empty(points)
    mass = 0.0
    inverse = 0.0
    mean_change = 0.0
    used = 0
    for q in range(points):
        s = complex(x[q], t[q])
        w = np.exp(exponent[q] - alone * s + crowd * _expm1_less(s))
        w *= complex(1.0, -slope[q]) * (2.0 if q else 1.0)
        if abs(w) < NEGLIGIBLE * mass:
            break
        used = q + 1
        w_re[q], w_im[q] = w.real, w.imag
        mass += w.real
        inverse += (w / complex(1.0 + d_re[q], d_im[q])).real
        mean_change += w.real * sum_re[q] - w.imag * sum_im[q]
    mean_change /= mass

    mean = np.empty(k)
    covariance = np.empty(k)
    astray = 0.0
    for i in range(k):
        a = means[i]
        shift = 0.0
        product = 0.0
        variance = 0.0
        for q in range(used):
            r_re, r_im = 1.0 - a * d_re[q], -a * d_im[q]
            size = a * (1.0 + a) / (r_re * r_re + r_im * r_im)
            c_re = size * (d_re[q] * r_re + d_im[q] * r_im)
            c_im = size * (d_im[q] * r_re - d_re[q] * r_im)
            wc_re = w_re[q] * c_re - w_im[q] * c_im
            wc_im = w_re[q] * c_im + w_im[q] * c_re
            shift += wc_re
            product += wc_re * sum_re[q] - wc_im * sum_im[q]
            # The change of A(1 + A) is c (1 + 2A + c).
            variance += wc_re * (1.0 + 2.0 * a + c_re) - wc_im * c_im
        shift /= mass
        astray += counts[i] * shift
        mean[i] = a + shift
        covariance[i] = (
            product / mass - shift * mean_change + centred[i] * (a * (1.0 + a) + variance / mass)
        )
    growth, rise = _links(w_re[:used], w_im[:used], d_re, d_im, sum_re, sum_im)
    astray += on_links * (growth - 1.0)
    error = abs(astray) / (alone + crowd) if used < points else math.inf
    return error, scale * mass / inverse, mean, covariance, scale * growth, rise


@_kernel
def _links(
    w_re: FloatArray,
    w_im: FloatArray,
    d_re: FloatArray,
    d_im: FloatArray,
    sum_re: FloatArray,
    sum_im: FloatArray,
) -> tuple[float, float]:
    r""":math:`E[z]/z_0` and :math:`-\mathrm{Cov}(F, z)/E[z]`, from the changes of F at each point."""
    mass = 0.0
    drift = 0.0
    change = 0.0
    product = 0.0
    for q in range(w_re.size):
        wd_re = w_re[q] * d_re[q] - w_im[q] * d_im[q]
        wd_im = w_re[q] * d_im[q] + w_im[q] * d_re[q]
        mass += w_re[q]
        drift += wd_re
        change += w_re[q] * sum_re[q] - w_im[q] * sum_im[q]
        product += wd_re * sum_re[q] - wd_im * sum_im[q]
    drift /= mass
    return 1.0 + drift, (drift * change - product) / mass / (1.0 + drift)


@_kernel
def _path_sums(
    means: FloatArray, counts: IntArray, weights: FloatArray, d_re: FloatArray, d_im: FloatArray
) -> tuple[np.ndarray, FloatArray, FloatArray]:
    r"""The exponent of the integrand and :math:`\sum_i c_i w_i (A_i(z) - A_i)` at each point.

    The exponent is :math:`\sum_i c_i (-\log(1 - A_i d) - A_i (s - s_0))`. Of a class of many clients
    each is tiny and their sum is not, so what cancels is left out from the start: such a class gives
    :math:`c_i (-\log(1 - A_i d) - A_i d)`. Single clients give their logarithm alone, whole factors
    being multiplied first: its branch does not matter, since it is exponentiated.
    """
    points = d_re.size
    exponent = np.zeros(points, dtype=np.complex128)
    sum_re, sum_im = np.zeros(points), np.zeros(points)
    f_re, f_im = np.ones(points), np.zeros(points)
    pending = 0
    for i in range(means.size):
        a = means[i]
        weight = counts[i] * weights[i] * a * (1.0 + a)
        for q in range(points):
            r_re, r_im = 1.0 - a * d_re[q], -a * d_im[q]
            scale = weight / (r_re * r_re + r_im * r_im)
            sum_re[q] += scale * (d_re[q] * r_re + d_im[q] * r_im)
            sum_im[q] += scale * (d_im[q] * r_re - d_re[q] * r_im)
        if counts[i] == 1:
            for q in range(points):
                r_re, r_im = 1.0 - a * d_re[q], -a * d_im[q]
                g_re = f_re[q] * r_re - f_im[q] * r_im
                f_im[q] = f_re[q] * r_im + f_im[q] * r_re
                f_re[q] = g_re
            pending += 1
        else:
            for q in range(points):
                exponent[q] += counts[i] * _log_less(complex(a * d_re[q], a * d_im[q]))
        if pending == FOLD or i == means.size - 1:
            for q in range(points):
                exponent[q] -= np.log(complex(f_re[q], f_im[q]))
                f_re[q], f_im[q] = 1.0, 0.0
            pending = 0
    return exponent, sum_re, sum_im


@_kernel
def _tasks(means: FloatArray, counts: IntArray) -> tuple[float, float]:
    """The open network's tasks at clients that are alone in their class, and at all others."""
    alone = 0.0
    crowd = 0.0
    for i in range(means.size):
        if counts[i] == 1:
            alone += means[i]
        else:
            crowd += counts[i] * means[i]
    return alone, crowd


@_kernel
def _centre(
    weights: FloatArray,
    means: FloatArray,
    counts: IntArray,
    kappa2: float,
    on_links: float,
    weighted: float,
) -> FloatArray:
    """Weights less their mean under the open network's variances.

    The tasks are constant in number, so a constant added to all weights changes no covariance;
    without the mean the covariances' leading terms cancel here and not in their sum. The weight of
    the most loaded client, where cancellation is worst, is subtracted first.
    """
    reference = weights[np.argmax(means)]
    mean = 0.0
    for i in range(weights.size):
        mean += counts[i] * means[i] * (1.0 + means[i]) / kappa2 * (weights[i] - reference)
    mean += (weighted - on_links * reference) / kappa2
    centred = np.empty(weights.size)
    for i in range(weights.size):
        difference = weights[i] - reference
        centred[i] = difference - mean
    return centred


@_kernel
def _expm1(re: float, im: float) -> tuple[float, float]:
    growth = math.expm1(re)
    half = math.sin(0.5 * im)
    return growth - (1.0 + growth) * 2.0 * half * half, (1.0 + growth) * math.sin(im)


@_kernel
def _expm1_less(s: complex) -> complex:
    """``exp(s) - 1 - s``, of full relative accuracy near zero."""
    if abs(s.real) + abs(s.imag) < SMALL:
        series = 1.0 + 0.0j
        for n in range(TERMS + 3, 2, -1):
            series = 1.0 + s / n * series
        return 0.5 * s * s * series
    d_re, d_im = _expm1(s.real, s.imag)
    return complex(d_re - s.real, d_im - s.imag)


@_kernel
def _log_less(x: complex) -> complex:
    r""":math:`-\log(1 - x) - x`, of full relative accuracy near zero.

    There it is :math:`x y + 2 (y^3/3 + y^5/5 + \dots)` with :math:`y = x/(2 - x)`.
    """
    if abs(x.real) + abs(x.imag) < SMALL:
        y = x / (2.0 - x)
        square = y * y
        series = 0.0j
        for n in range(TERMS, 0, -1):
            series = square * series + 1.0 / (2 * n + 1)
        return x * y + 2.0 * y * square * series
    return -cmath.log(1.0 - x) - x

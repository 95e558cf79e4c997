r"""The steady state to many digits, by two ways that share nothing with the engines but the theory.

``by_recursion`` is mean-value analysis in long arithmetic, where no sum has terms of two signs.
``by_steepest_descent`` integrates the generating function along the path on which its logarithm
:math:`\varphi` falls as :math:`-\tau^2/2`, found point by point; what it gives at half the step
tells its error.
"""

from typing import NamedTuple

import numpy as np
from mpmath import mp, mpf

DIGITS = 50
LARGEST_RECURSION = 150
STEPS, REACH = (mpf("0.35"), mpf("0.175"), mpf("0.0875")), 9
CONVERGED = mpf("1e-13")


class Precise(NamedTuple):
    """Throughput with ``population + 1`` tasks and the mean tasks of a client with ``population``."""

    throughput: mpf
    mean_tasks: list[mpf]


def precise_steady_state(
    loads: np.ndarray, counts: np.ndarray, population: int, *, longest: int = LARGEST_RECURSION
) -> Precise | None:
    """By recursion up to ``longest`` tasks; beyond, ``None`` if the path's error cannot be shown to be small."""
    with mp.workdps(DIGITS):
        rho, c = [mpf(float(x)) for x in loads], [mpf(int(x)) for x in counts]
        if population <= longest:
            return by_recursion(rho, c, population)
        return by_steepest_descent(rho, c, population)


def by_recursion(rho: list[mpf], counts: list[mpf], population: int) -> Precise:
    mean = [mpf(0)] * len(rho)
    for tasks in range(1, population + 2):
        times = [r * (1 + q) for r, q in zip(rho, mean, strict=True)]
        throughput = tasks / mp.fdot(counts, times)
        if tasks <= population:
            mean = [throughput * t for t in times]
    return Precise(throughput, mean)


def by_steepest_descent(rho: list[mpf], counts: list[mpf], population: int) -> Precise | None:
    top = max(rho)
    means = _open_means([r / top for r in rho], counts, population)
    most = max(means)
    scale = most / (1 + most) / top
    for step in STEPS:
        points = _path(means, counts, population, step)
        if points is None:
            continue
        coarse, fine = (_averages(points[::every], means) for every in (2, 1))
        pairs = zip([coarse[0], *coarse[1]], [fine[0], *fine[1]], strict=True)
        if all(abs(a - b) <= CONVERGED * abs(b) for a, b in pairs):
            return Precise(scale * fine[0], fine[1])
    return None


def _open_means(r: list[mpf], counts: list[mpf], population: int) -> list[mpf]:
    """The means of the open network, with ``population`` tasks on average; Newton's method."""

    def means(v: mpf) -> list[mpf]:
        return [x * v / (1 + (1 - x) * v) for x in r]

    v = population / mp.fdot(counts, r)
    for _ in range(400):
        now = means(v)
        slope = mp.fsum(c * x / (1 + (1 - x) * v) ** 2 for c, x in zip(counts, r, strict=True))
        step = (population - mp.fdot(counts, now)) / slope
        v += step
        if abs(step) < mpf("1e-45") * v:
            break
    return means(v)


def _path(means: list[mpf], counts: list[mpf], population: int, h: mpf) -> list[tuple] | None:
    r"""``(d, weight)`` at :math:`\tau = 0, h, 2h, \dots`, with :math:`d = z/z_0 - 1`."""
    kappa2 = mp.fsum(c * a * (1 + a) for c, a in zip(counts, means, strict=True))
    points = [(mp.mpc(0), mp.sqrt(1 / kappa2) / 2)]
    before, s, speed = mp.mpc(0), mp.mpc(0), mp.mpc(0, mp.sqrt(1 / kappa2))
    for k in range(1, int(REACH / h) + 1):
        tau = k * h
        before, s = s, s + h * speed if k == 1 else before + 2 * h * speed
        for _ in range(60):
            d = mp.expm1(s)
            phi = -population * s
            slope = mp.mpc(-population)
            for c, a in zip(counts, means, strict=True):
                phi -= c * mp.log1p(-a * d)
                slope += c * a * (1 + d) / (1 - a * d)
            step = (phi + tau * tau / 2) / slope
            s -= step
            if abs(step) < mpf("1e-14") * abs(s):
                break
        else:
            return None
        if not abs(s.imag) <= mp.pi or s.imag <= 0:
            return None
        speed = -tau / slope
        weight = mp.exp(-tau * tau / 2) * speed / mp.mpc(0, 1)
        points.append((mp.expm1(s), weight))
    return points


def _averages(points: list[tuple], means: list[mpf]) -> tuple[mpf, list[mpf]]:
    """1/E[z_0/z] and the mean tasks: averages over the path and its mirror image."""
    mass = mp.fsum(w.real for _, w in points)
    inverse = mp.fsum((w / (1 + d)).real for d, w in points)
    mean = [
        a + mp.fsum((w * a * (1 + a) * d / (1 - a * d)).real for d, w in points) / mass
        for a in means
    ]
    return mass / inverse, mean

"""The law and the mean of observed durations, by likelihood, running tasks included."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize, minimize_scalar
from scipy.special import gammaincc, gammaln, log_ndtr

from sojourn._support.estimate import Estimate
from sojourn.errors import InvalidInput
from sojourn.fleet.from_logs.log import Durations
from sojourn.fleet.laws import Law
from sojourn.types import FloatArray

NEARLY_CONSTANT = 0.05
"""Coefficient of variation below which durations are called deterministic."""
FEWEST = 8
"""Finished tasks below which only the exponential law is fitted."""
HALF_WIDTH = 1.9207
"""Half the 95 % quantile of chi squared with one degree of freedom."""

LogLikelihood = Callable[[FloatArray, FloatArray, float, float], float]


@dataclass(frozen=True)
class Fit:
    """A law of given ``mean``, with a 95 % interval for it, and what other laws were worth.

    ``criteria`` maps the name of every law tried to its Bayesian information criterion; the least
    one is chosen.
    """

    law: Law
    mean: float
    low: float
    high: float
    criteria: Mapping[str, float]


def _exponential(t: FloatArray, r: FloatArray, mean: float, shape: float) -> float:
    return -t.size * math.log(mean) - float(t.sum() + r.sum()) / mean


def _gamma(t: FloatArray, r: FloatArray, mean: float, shape: float) -> float:
    scale = mean / shape
    density = (shape - 1.0) * np.log(t) - t / scale - shape * math.log(scale) - gammaln(shape)
    with np.errstate(divide="ignore"):
        return float(density.sum() + np.log(gammaincc(shape, r / scale)).sum())


def _lognormal(t: FloatArray, r: FloatArray, mean: float, shape: float) -> float:
    middle = math.log(mean) - shape * shape / 2.0
    logs = np.log(t)
    z = (logs - middle) / shape
    density = -0.5 * z * z - logs - math.log(shape) - 0.5 * math.log(2.0 * math.pi)
    return float(density.sum() + log_ndtr((middle - np.log(r)) / shape).sum())


def _weibull(t: FloatArray, r: FloatArray, mean: float, shape: float) -> float:
    scale = mean / math.gamma(1.0 + 1.0 / shape)
    relative = np.log(t / scale)
    density = math.log(shape / scale) + (shape - 1.0) * relative - np.exp(shape * relative)
    return float(density.sum() - ((r / scale) ** shape).sum())


_LAWS: Mapping[str, tuple[LogLikelihood, str | None]] = {
    "exponential": (_exponential, None),
    "gamma": (_gamma, "shape"),
    "lognormal": (_lognormal, "sigma"),
    "weibull": (_weibull, "shape"),
}
_LIMITS = (math.log(0.15), math.log(400.0))
"""Between which the logarithm of a shape is sought."""


def fit_law(seen: Durations) -> Fit:
    r"""The most likely law of ``seen`` and its mean with a 95 % interval.

    Each law's mean and shape maximise :math:`\sum \log f(t_j) + \sum \log P(S > r_j)` over finished
    tasks :math:`t` and running ones :math:`r`; the law with the least Bayesian information criterion
    is chosen among exponential, gamma, lognormal and Weibull, or deterministic if durations vary by
    less than 5 %. The interval is where the profile likelihood is within 1.92 of its maximum. Fewer
    than 8 finished tasks are taken to be exponential.

    >>> times = np.random.default_rng(1).lognormal(0.0, 1.0, 200)
    >>> fit_law(Durations(times, np.zeros(0))).law.name
    'lognormal'
    """
    t, r = seen.finished, seen.running[seen.running > 0]
    if not t.size:
        raise InvalidInput("there must be a task that has finished, to say how long tasks take")
    centre = seen.total / t.size
    if t.size >= FEWEST and t.std() < NEARLY_CONSTANT * t.mean():
        found = Estimate.from_samples(t)
        mean, margin = float(found.mean), 1.96 * float(found.standard_error)
        return Fit(Law("deterministic"), mean, mean - margin, mean + margin, {})
    criteria, peaks = {}, {}
    for name, (likelihood, parameter) in _LAWS.items():
        if parameter is None:
            peaks[name] = (centre, 1.0, likelihood(t, r, centre, 1.0))
        elif t.size >= FEWEST:
            peaks[name] = _peak(likelihood, t, r, centre)
        else:
            continue
        parameters = 1 if parameter is None else 2
        criteria[name] = parameters * math.log(t.size) - 2.0 * peaks[name][2]
    best = min(criteria, key=lambda name: criteria[name])
    likelihood, parameter = _LAWS[best]
    mean, shape, _ = peaks[best]
    low, high = _interval(likelihood, t, r, peaks[best], fixed=parameter is None)
    law = Law(best) if parameter is None else Law(best, **{parameter: shape})
    return Fit(law, mean, low, high, criteria)


def _peak(
    likelihood: LogLikelihood, t: FloatArray, r: FloatArray, centre: float
) -> tuple[float, float, float]:
    def loss(at: FloatArray) -> float:
        value = -likelihood(t, r, math.exp(at[0]), math.exp(at[1]))
        return value if math.isfinite(value) else 1e300

    start = np.array([math.log(centre), 0.0])
    box = [(start[0] - 5.0, start[0] + 5.0), _LIMITS]
    found = minimize(loss, start, method="Nelder-Mead", bounds=box, options={"xatol": 1e-6})
    return math.exp(found.x[0]), math.exp(found.x[1]), -float(found.fun)


def _interval(
    likelihood: LogLikelihood,
    t: FloatArray,
    r: FloatArray,
    peak: tuple[float, float, float],
    *,
    fixed: bool,
) -> tuple[float, float]:
    """Where the likelihood, at the best shape for each mean, is still near its maximum."""
    mean, shape, highest = peak

    def below(log_mean: float) -> float:
        def loss(log_shape: float) -> float:
            value = -likelihood(t, r, math.exp(log_mean), math.exp(log_shape))
            return value if math.isfinite(value) else 1e300

        if fixed:
            return highest + loss(0.0) - HALF_WIDTH
        around = math.log(shape)
        bounds = (max(_LIMITS[0], around - 1.5), min(_LIMITS[1], around + 1.5))
        best = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
        # Where the likelihood has two peaks the search may end at the lower one.
        return highest + min(float(best.fun), loss(around)) - HALF_WIDTH

    ends = []
    for sign in (-1.0, 1.0):
        step = 0.1
        while below(math.log(mean) + sign * step) < 0.0 and step < 20.0:
            step *= 2.0
        near, far = math.log(mean), math.log(mean) + sign * step
        if below(far) > 0.0:
            far = brentq(below, min(near, far), max(near, far), xtol=1e-6)
        ends.append(math.exp(far))
    return ends[0], ends[1]

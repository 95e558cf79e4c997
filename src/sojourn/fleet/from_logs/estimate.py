"""Laws and means of observed durations, devices of like speed as classes, and the fleet they make."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from scipy.optimize import brentq, minimize, minimize_scalar
from scipy.special import chdtri, gammaincc, gammaln, log_ndtr, stdtrit

from sojourn._support.estimate import Estimate
from sojourn._support.progress import Progress, Silent
from sojourn.errors import InvalidInput
from sojourn.fleet import Fleet
from sojourn.fleet.from_logs.log import Durations, TaskLog
from sojourn.fleet.from_logs.presence import Presence, latest_time, mean_times
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
"""Between which the logarithm of a shape is searched."""


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


BY_CHANCE = 1e-3
"""Probability below which differences of speed within a class would be called no chance."""
ALIKE = 0.05
"""Relative difference of speeds that makes no class of its own, however certain."""
USUAL_TASKS = 100.0
"""Tasks of a device that weigh as much in its variance as all the others do."""
FEWEST_FOR_DRIFT = 30
NO_CHANCE = 4.0
"""Finished tasks, and standard errors of the slope, from which on a drift is reported."""
ONE_BY_CHANCE = 0.05
"""Probability that one of the devices of a class is said to drift and does not."""


@dataclass(frozen=True, eq=False)
class ClassEstimate:
    """Devices of one speed: their rate with a 95 % interval, and their law."""

    devices: tuple[str, ...]
    tasks: int
    running: int
    rate: float
    rate_low: float
    rate_high: float
    fit: Fit
    drift: float | None = None
    """Relative change of durations from the beginning of the log to its end, where significant."""
    drifting: Mapping[str, float] = field(default_factory=dict)
    """The same of single devices, where the class as a whole does not drift; largest change first."""
    downlink: Fit | None = None
    uplink: Fit | None = None
    mean_up: float | None = None
    mean_down: float | None = None
    spread: float | None = None
    """Ratio of the fastest device's rate to the slowest's, where they differ significantly."""


def estimate_fleet(
    seen: Mapping[str, Durations],
    *,
    grouped: bool = True,
    presence: Mapping[str, Presence] | None = None,
    classes: int | Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> tuple[Fleet, tuple[ClassEstimate, ...]]:
    """The fleet behind observed durations, slowest class first.

    With ``grouped``, devices in the order of speed are cut into the fewest classes within which log
    rates differ no more than by chance (chi squared at 0.1 %) and 5 %, and of these cuts into the one
    with the least differences; else every device is a class. ``classes`` is a number of classes to
    cut them into instead, or maps devices to the names of their classes, as a log may. Then each
    class has its law and rate by likelihood (``fit_law``), the laws and means of its link times, how
    long its devices are there and away in ``presence``, and how much longer tasks took at the end of
    the log, if that is significant. A device without a finished task is refused.
    Cost: O(d^2) for d devices and a fit per class.

    >>> random = np.random.default_rng(2)
    >>> seen = {f"device {i}": Durations(random.exponential(2.0 ** (i % 2), 300), np.zeros(0))
    ...         for i in range(6)}
    >>> estimate_fleet(seen)[0]
    Fleet(6 clients in 2 classes, rates 0.5... to 1.0...)
    """
    for device, durations in seen.items():
        if not durations.finished.size:
            raise InvalidInput(
                f"{device} has not finished a task, so its rate is unknown: leave it out"
            )
    if not seen:
        raise InvalidInput("there are no devices")
    if isinstance(classes, int) and not 1 <= classes <= len(seen):
        raise InvalidInput(
            f"classes must be 1 to the number of devices, {len(seen)}; it is {classes}"
        )
    groups = [_Group((device,), durations, (durations,)) for device, durations in seen.items()]
    groups.sort(key=lambda group: group.log_rate)
    named = classes if isinstance(classes, Mapping) else {}
    if named:
        groups, names = _by_name(groups, named)
    else:
        edges = list(range(len(groups) + 1))
        if isinstance(classes, int):
            edges = _given_classes(groups, classes)
        elif grouped:
            edges = _fewest_classes(groups)
        groups = [_joined(groups[a:b]) for a, b in pairwise(edges)]
        names = [_name(group.devices) for group in groups]
    there = _until_the_end(presence or {}, seen)
    report = progress or Silent()
    report.start("fitting laws", len(groups))
    estimates = []
    for group in groups:
        estimates.append(_estimated(group, there))
        report.advance(1)
    fleet = Fleet(
        [one.rate for one in estimates],
        [len(one.devices) for one in estimates],
        names,
        law=[str(one.fit.law) for one in estimates],
        extra=_link_laws(estimates),
        **_columns(estimates),
    )
    return fleet, tuple(estimates)


def _until_the_end(
    presence: Mapping[str, Presence], seen: Mapping[str, Durations]
) -> dict[str, Presence]:
    """Presences that had not ended last until the end of the log, or of the presences if later."""
    if not presence:
        return {}
    end = seen.until if isinstance(seen, TaskLog) and seen.until is not None else -math.inf
    now = max(end, latest_time(presence))
    return {device: one.until(now) for device, one in presence.items()}


def _columns(classes: Sequence[ClassEstimate]) -> dict[str, list[float]]:
    """Mean times on links, there and away; a class of which nothing is known has no such time."""
    found = {}
    for name in ("downlink", "uplink"):
        fits = [getattr(one, name) for one in classes]
        if any(fit is not None for fit in fits):
            found[name] = [0.0 if fit is None else fit.mean for fit in fits]
    if any(one.mean_down for one in classes):
        # Always there: as long as any class is there, and never away.
        longest = max(one.mean_up or 0.0 for one in classes)
        found["mean_up"] = [one.mean_up or longest for one in classes]
        found["mean_down"] = [one.mean_down or 0.0 for one in classes]
    return found


def _link_laws(classes: Sequence[ClassEstimate]) -> dict[str, list[str]]:
    """The laws of the link times, as columns that are carried along."""
    found = {}
    for name in ("downlink", "uplink"):
        fits = [getattr(one, name) for one in classes]
        if any(fit is not None for fit in fits):
            found[f"{name}_law"] = ["" if fit is None else str(fit.law) for fit in fits]
    return found


@dataclass(frozen=True, eq=False)
class _Group:
    devices: tuple[str, ...]
    seen: Durations
    members: tuple[Durations, ...]

    @property
    def log_rate(self) -> float:
        return math.log(self.seen.finished.size / self.seen.total)

    @property
    def relative_variance(self) -> float:
        """Of a duration, over its mean squared; that of the exponential law for a few tasks."""
        t = self.seen.finished
        return float(t.var(ddof=1)) / float(t.mean()) ** 2 if t.size >= 8 else 1.0


def _variances(groups: list[_Group]) -> FloatArray:
    """Of every device's log rate, whatever the law, and what makes no difference beside it.

    The variance of a few durations is uncertain, so a device's own is shrunk towards the mean of all.
    """
    own = np.array([group.relative_variance for group in groups])
    tasks = np.array([group.seen.finished.size for group in groups], dtype=np.float64)
    usual = float(tasks @ own / tasks.sum())
    shared = (tasks * own + USUAL_TASKS * usual) / (tasks + USUAL_TASKS)
    return np.asarray(shared / tasks + ALIKE**2)


def _scatters(groups: list[_Group]) -> Iterator[FloatArray]:
    """For 1 to n groups, how much the last 1 to all of them differ, all of them first."""
    weight = 1.0 / _variances(groups)
    logs = np.array([group.log_rate for group in groups])
    sums = [np.concatenate([[0.0], np.cumsum(weight * logs**power)]) for power in range(3)]
    for end in range(1, len(groups) + 1):
        w, first, second = (total[end] - total[:end] for total in sums)
        yield np.maximum(second - first * first / w, 0.0)


def _fewest_classes(groups: list[_Group]) -> list[int]:
    """Edges between classes: the fewest that hold together, by dynamic programming."""
    n = len(groups)
    most = chdtri(np.arange(n, dtype=np.float64), BY_CHANCE)
    classes, spent, begins = np.zeros(n + 1), np.zeros(n + 1), np.zeros(n + 1, dtype=np.int64)
    for end, spread in enumerate(_scatters(groups), 1):
        holds = spread <= most[end - 1 :: -1]
        holds[-1] = True  # one device is a class
        fewest = classes[:end] == classes[:end][holds].min()
        begin = int(np.where(holds & fewest, spent[:end] + spread, np.inf).argmin())
        classes[end], spent[end] = classes[begin] + 1, spent[begin] + spread[begin]
        begins[end] = begin
    edges = [n]
    while edges[-1]:
        edges.append(int(begins[edges[-1]]))
    return edges[::-1]


def _given_classes(groups: list[_Group], number: int) -> list[int]:
    """Edges between so many classes with the least differences within, by dynamic programming."""
    n, scatters = len(groups), list(_scatters(groups))
    least = np.full(n + 1, np.inf)
    least[0] = 0.0
    begins = np.zeros((number + 1, n + 1), dtype=np.int64)
    for classes in range(1, number + 1):
        before, least = least, np.full(n + 1, np.inf)
        for end in range(classes, n + 1):
            spent = before[:end] + scatters[end - 1]
            begins[classes, end] = int(spent.argmin())
            least[end] = spent[begins[classes, end]]
    edges = [n]
    for classes in range(number, 0, -1):
        edges.append(int(begins[classes, edges[-1]]))
    return edges[::-1]


def _by_name(groups: list[_Group], names: Mapping[str, str]) -> tuple[list[_Group], list[str]]:
    """Classes as the log names them, slowest first; devices without a name are one class."""
    members: dict[str, list[_Group]] = {}
    for group in groups:
        members.setdefault(names.get(group.devices[0], "unnamed"), []).append(group)
    joined = {name: _joined(own) for name, own in members.items()}
    order = sorted(joined, key=lambda name: joined[name].log_rate)
    return [joined[name] for name in order], order


def _spread(group: _Group) -> float | None:
    """How many times as fast as the slowest device the fastest is, where that is significant."""
    if len(group.members) < 2:
        return None
    each = [
        _Group((name,), own, (own,)) for name, own in zip(group.devices, group.members, strict=True)
    ]
    logs = np.array([one.log_rate for one in each])
    weight = 1.0 / _variances(each)
    scatter = float(weight @ (logs - weight @ logs / weight.sum()) ** 2)
    if scatter <= chdtri(len(each) - 1.0, BY_CHANCE):
        return None
    return math.exp(float(logs.max() - logs.min()))


def _joined(groups: list[_Group]) -> _Group:
    devices = tuple(device for group in groups for device in group.devices)
    seen = Durations.joined([group.seen for group in groups])
    return _Group(devices, seen, tuple(group.seen for group in groups))


def _estimated(group: _Group, presence: Mapping[str, Presence]) -> ClassEstimate:
    fit, seen = fit_law(group.seen), group.seen
    drift = slowing(group.members)
    coming = mean_times(presence[device] for device in group.devices if device in presence)
    up, down = (None, None) if coming is None else coming
    return ClassEstimate(
        devices=group.devices,
        tasks=int(group.seen.finished.size),
        running=int(group.seen.running.size),
        rate=1.0 / fit.mean,
        rate_low=1.0 / fit.high,
        rate_high=1.0 / fit.low,
        fit=fit,
        drift=drift,
        drifting=_drifting(group) if drift is None else {},
        downlink=_link(seen.downlink),
        uplink=_link(seen.uplink),
        mean_up=up,
        mean_down=down,
        spread=_spread(group),
    )


def _link(times: FloatArray) -> Fit | None:
    """The law of times on a link; no time at all is deterministic."""
    if not times.size:
        return None
    if not (times > 0.0).any():
        return Fit(Law("deterministic"), 0.0, 0.0, 0.0, {})
    positive = fit_law(Durations(times[times > 0.0], np.zeros(0)))
    share = float((times > 0.0).mean())
    return replace(
        positive,
        mean=float(times.mean()),
        low=share * positive.low,
        high=share * positive.high,
    )


def _drifting(group: _Group) -> dict[str, float]:
    """The devices of a class whose own durations drift, and by what, the largest change first."""
    changes = {
        device: change
        for device, own in zip(group.devices, group.members, strict=True)
        if (change := slowing([own], tests=len(group.devices))) is not None
    }
    return dict(sorted(changes.items(), key=lambda item: -abs(math.log1p(item[1]))))


def slowing(members: Sequence[Durations], tests: int = 1) -> float | None:
    """By what tasks took longer at the end than at the beginning, relatively; ``None``: by chance.

    The logarithms of durations against the times at which tasks were begun, in a straight line
    whose height is each device's own; significant where the slope is more than four standard errors
    from level, and so far that one of as many ``tests`` of level lines is with a probability of 5 %
    at most.

    >>> time = np.arange(1000.0)
    >>> work = np.random.default_rng(1).gamma(9.0, 1.0, 1000)
    >>> slowing([Durations(work, np.zeros(0), time)]) is None
    True
    >>> round(slowing([Durations(work * 2.0 ** (time / 1000), np.zeros(0), time)]), 1)
    1.1
    """
    timed = [one for one in members if one.begun.size == one.finished.size > 1]
    if sum(one.begun.size for one in timed) < FEWEST_FOR_DRIFT:
        return None
    x = np.concatenate([one.begun - one.begun.mean() for one in timed])
    logs = [np.log(one.finished) for one in timed]
    y = np.concatenate([values - values.mean() for values in logs])
    spread = float(x @ x)
    if spread == 0.0:
        return None
    slope = float(x @ y) / spread
    free = x.size - len(timed) - 1
    error = math.sqrt(float(((y - slope * x) ** 2).sum()) / free / spread)
    by_chance = -float(stdtrit(free, ONE_BY_CHANCE / tests / 2.0)) if tests > 1 else 0.0
    if not abs(slope) > max(NO_CHANCE, by_chance) * error:
        return None
    span = max(one.begun.max() for one in timed) - min(one.begun.min() for one in timed)
    return math.expm1(slope * span)


def _name(devices: tuple[str, ...]) -> str:
    others = len(devices) - 1
    return devices[0] if not others else f"{devices[0]} and {others} more"

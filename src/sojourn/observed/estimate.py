"""Devices of like speed as classes, and the fleet that they make."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import chdtri

from sojourn.errors import InvalidInput
from sojourn.network import Fleet
from sojourn.observed.fit import Fit, fit_law
from sojourn.observed.log import Durations
from sojourn.observed.presence import Presence, mean_times
from sojourn.types import FloatArray

BY_CHANCE = 1e-3
"""Probability below which differences of speed within a class would be called no chance."""
ALIKE = 0.05
"""Relative difference of speeds that makes no class of its own, however certain."""
USUAL_TASKS = 100.0
"""Tasks of a device that tell as much of its variance as all the others do."""
FEWEST_FOR_DRIFT = 30
NO_CHANCE = 4.0
"""Finished tasks, and standard errors of the slope, from which on a drift is told."""


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
    """By what tasks took longer at the end of the log than at its beginning, where it is no chance."""
    downlink: float | None = None
    uplink: float | None = None
    mean_up: float | None = None
    mean_down: float | None = None


def estimate_fleet(
    seen: Mapping[str, Durations],
    *,
    grouped: bool = True,
    presence: Mapping[str, Presence] | None = None,
) -> tuple[Fleet, tuple[ClassEstimate, ...]]:
    """The fleet behind observed durations, slowest class first.

    With ``grouped``, devices in the order of speed are cut into the fewest classes within which log
    rates differ no more than by chance (chi squared at 0.1 %) and 5 %, and of these cuts into the one
    with the least differences; else every device is a class. Then each class has its law and rate by
    likelihood (``fit_law``), the means of what is told of its links, how long its devices are there
    and away in ``presence``, and what tasks came to take longer over the log, if that is no chance.
    A device without a finished task is refused: it says too little.
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
    groups = [_Group((device,), durations, (durations,)) for device, durations in seen.items()]
    groups.sort(key=lambda group: group.log_rate)
    edges = _fewest_classes(groups) if grouped else list(range(len(groups) + 1))
    groups = [_joined(groups[a:b]) for a, b in pairwise(edges)]
    classes = tuple(_estimated(group, presence or {}) for group in groups)
    fleet = Fleet(
        [one.rate for one in classes],
        [len(one.devices) for one in classes],
        [_name(one.devices) for one in classes],
        law=[str(one.fit.law) for one in classes],
        **_columns(classes),
    )
    return fleet, classes


def _columns(classes: tuple[ClassEstimate, ...]) -> dict[str, Any]:
    """What the log tells of links and absences; a class of which it tells nothing has none."""
    found = {}
    for name in ("downlink", "uplink", "mean_up", "mean_down"):
        values = [getattr(one, name) for one in classes]
        if any(value is not None for value in values):
            found[name] = [0.0 if value is None else value for value in values]
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

    A few tasks tell the variance of durations badly, so a device's own is drawn towards what is
    usual among all.
    """
    own = np.array([group.relative_variance for group in groups])
    tasks = np.array([group.seen.finished.size for group in groups], dtype=np.float64)
    usual = float(tasks @ own / tasks.sum())
    shared = (tasks * own + USUAL_TASKS * usual) / (tasks + USUAL_TASKS)
    return np.asarray(shared / tasks + ALIKE**2)


def _fewest_classes(groups: list[_Group]) -> list[int]:
    """Edges between classes: the fewest that hold together, by dynamic programming."""
    n = len(groups)
    weight = 1.0 / _variances(groups)
    logs = np.array([group.log_rate for group in groups])
    sums = [np.concatenate([[0.0], np.cumsum(weight * logs**power)]) for power in range(3)]
    most = chdtri(np.arange(n, dtype=np.float64), BY_CHANCE)
    classes, spent, begins = np.zeros(n + 1), np.zeros(n + 1), np.zeros(n + 1, dtype=np.int64)
    for end in range(1, n + 1):
        w, first, second = (total[end] - total[:end] for total in sums)
        spread = np.maximum(second - first * first / w, 0.0)
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


def _joined(groups: list[_Group]) -> _Group:
    devices = tuple(device for group in groups for device in group.devices)
    seen = Durations.joined([group.seen for group in groups])
    return _Group(devices, seen, tuple(group.seen for group in groups))


def _estimated(group: _Group, presence: Mapping[str, Presence]) -> ClassEstimate:
    fit, seen = fit_law(group.seen), group.seen
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
        drift=slowing(group.members),
        downlink=float(seen.downlink.mean()) if seen.downlink.size else None,
        uplink=float(seen.uplink.mean()) if seen.uplink.size else None,
        mean_up=up,
        mean_down=down,
    )


def slowing(members: Sequence[Durations]) -> float | None:
    """By what tasks took longer at the end than at the beginning, relatively; ``None``: by chance.

    The logarithms of durations against the times at which tasks were begun, in a straight line whose
    height is each device's own; told where the slope is more than four standard errors from level.

    >>> time = np.arange(1000.0)
    >>> work = np.random.default_rng(1).gamma(9.0, 1.0, 1000)
    >>> slowing([Durations(work, np.zeros(0), time)]) is None
    True
    >>> round(slowing([Durations(work * 2.0 ** (time / 1000), np.zeros(0), time)]), 1)
    1.1
    """
    told = [one for one in members if one.begun.size == one.finished.size > 1]
    if sum(one.begun.size for one in told) < FEWEST_FOR_DRIFT:
        return None
    x = np.concatenate([one.begun - one.begun.mean() for one in told])
    logs = [np.log(one.finished) for one in told]
    y = np.concatenate([values - values.mean() for values in logs])
    spread = float(x @ x)
    if spread == 0.0:
        return None
    slope = float(x @ y) / spread
    error = math.sqrt(float(((y - slope * x) ** 2).sum()) / (x.size - len(told) - 1) / spread)
    if not abs(slope) > NO_CHANCE * error:
        return None
    span = max(one.begun.max() for one in told) - min(one.begun.min() for one in told)
    return math.expm1(slope * span)


def _name(devices: tuple[str, ...]) -> str:
    others = len(devices) - 1
    return devices[0] if not others else f"{devices[0]} and {others} more"

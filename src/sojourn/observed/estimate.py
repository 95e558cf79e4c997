"""Devices of like speed as classes, and the fleet that they make."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import chdtri

from sojourn.errors import InvalidInput
from sojourn.network import Fleet
from sojourn.observed.fit import Fit, fit_law
from sojourn.observed.log import Durations

BY_CHANCE = 1e-3
"""Probability below which differences of speed within a class would be called no chance."""


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


def estimate_fleet(
    seen: Mapping[str, Durations], *, grouped: bool = True
) -> tuple[Fleet, tuple[ClassEstimate, ...]]:
    """The fleet behind observed durations, slowest class first.

    With ``grouped``, devices in the order of speed are cut into the fewest classes within which log
    rates differ no more than by chance (chi squared at 0.1 %), and of these cuts into the one with
    the least differences; else every device is a class. Then each class has its law and rate by
    likelihood (``fit_law``). A device without a finished task is refused: it says too little.
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
    groups = [_Group((device,), durations) for device, durations in seen.items()]
    groups.sort(key=lambda group: group.log_rate)
    edges = _fewest_classes(groups) if grouped else list(range(len(groups) + 1))
    groups = [_joined(groups[a:b]) for a, b in pairwise(edges)]
    classes = tuple(_estimated(group) for group in groups)
    fleet = Fleet(
        [one.rate for one in classes],
        [len(one.devices) for one in classes],
        [_name(one.devices) for one in classes],
        law=[str(one.fit.law) for one in classes],
    )
    return fleet, classes


@dataclass(frozen=True, eq=False)
class _Group:
    devices: tuple[str, ...]
    seen: Durations

    @property
    def log_rate(self) -> float:
        return math.log(self.seen.finished.size / self.seen.total)

    @property
    def variance(self) -> float:
        """Of the log rate, whatever the law; that of the exponential law for a few tasks."""
        t = self.seen.finished
        relative = float(t.var(ddof=1)) / float(t.mean()) ** 2 if t.size >= 8 else 1.0
        return max(relative, 1e-6) / t.size


def _fewest_classes(groups: list[_Group]) -> list[int]:
    """Edges between classes: the fewest that hold together, by dynamic programming."""
    n = len(groups)
    weight = np.array([1.0 / group.variance for group in groups])
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
    finished = np.concatenate([group.seen.finished for group in groups])
    return _Group(devices, Durations(finished, np.concatenate([g.seen.running for g in groups])))


def _estimated(group: _Group) -> ClassEstimate:
    fit = fit_law(group.seen)
    return ClassEstimate(
        devices=group.devices,
        tasks=int(group.seen.finished.size),
        running=int(group.seen.running.size),
        rate=1.0 / fit.mean,
        rate_low=1.0 / fit.high,
        rate_high=1.0 / fit.low,
        fit=fit,
    )


def _name(devices: tuple[str, ...]) -> str:
    others = len(devices) - 1
    return devices[0] if not others else f"{devices[0]} and {others} more"

"""Service-time laws: the shape of a client's service time around its mean 1/mu."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sojourn.errors import InvalidInput, UnknownName
from sojourn.types import FloatArray

Draw = Callable[..., FloatArray]


class _Row(NamedTuple):
    draw: Draw
    defaults: Mapping[str, float]
    above: float = 0.0
    whole: bool = False


def _hyperexponential(random: np.random.Generator, size: int, scv: float) -> FloatArray:
    fast = 0.5 * (1.0 + math.sqrt((scv - 1.0) / (scv + 1.0)))
    rate = np.where(random.random(size) < fast, 2.0 * fast, 2.0 * (1.0 - fast))
    return random.standard_exponential(size) / rate


# Each row draws ``size`` times of mean 1; its parameter must lie above ``above``.
_LAWS: Mapping[str, _Row] = {
    "exponential": _Row(lambda random, size: random.standard_exponential(size), {}),
    "deterministic": _Row(lambda random, size: np.ones(size), {}),
    "lognormal": _Row(
        lambda random, size, sigma: random.lognormal(-sigma * sigma / 2.0, sigma, size),
        {"sigma": 1.0},
    ),
    "gamma": _Row(
        lambda random, size, shape: random.standard_gamma(shape, size) / shape, {"shape": 0.5}
    ),
    "erlang": _Row(
        lambda random, size, stages: random.standard_gamma(stages, size) / stages,
        {"stages": 2},
        whole=True,
    ),
    "hyperexponential": _Row(_hyperexponential, {"scv": 4.0}, above=1.0),
    "weibull": _Row(
        lambda random, size, shape: random.weibull(shape, size) / math.gamma(1.0 + 1.0 / shape),
        {"shape": 0.5},
    ),
    "pareto": _Row(
        lambda random, size, shape: (1.0 + random.pareto(shape, size)) * ((shape - 1.0) / shape),
        {"shape": 2.5},
        above=1.0,
    ),
}

LAW_NAMES = (*_LAWS, "trace")


@dataclass(frozen=True, init=False)
class Law:
    r"""A service-time law: client i's times are :math:`S/\mu_i`, with :math:`E[S] = 1`.

    ========================  ===========  =======================================================
    law                       parameter    shape of S
    ========================  ===========  =======================================================
    exponential (the paper)                memoryless
    deterministic                          always 1
    lognormal                 sigma = 1    standard deviation of log S
    gamma                     shape = 0.5  squared coefficient of variation 1/shape
    erlang                    stages = 2   sum of that many exponential stages
    hyperexponential          scv = 4      two exponentials, balanced means; variance scv > 1
    weibull                   shape = 0.5  heavier than exponential below 1, lighter above
    pareto                    shape = 2.5  power-law tail; shape > 1 so that the mean is finite
    trace                                  observed durations (``read_trace``), rescaled to mean 1
    ========================  ===========  =======================================================

    >>> Law("lognormal", sigma=0.5)
    Law('lognormal', sigma=0.5)
    >>> print(Law("pareto"))
    pareto(shape=2.5)
    """

    name: str
    parameters: tuple[tuple[str, float], ...]
    observed: tuple[tuple[float, ...], ...]

    def __init__(self, name: str, **parameters: float) -> None:
        if name not in _LAWS:
            if name == "trace":
                raise InvalidInput(
                    "the law 'trace' needs observed durations: read them with read_trace"
                )
            raise UnknownName("law", name, LAW_NAMES)
        row = _LAWS[name]
        for key in parameters:
            if key not in row.defaults:
                raise UnknownName(f"parameter of the law {name}", key, row.defaults)
        values = {**row.defaults, **parameters}
        for key, value in values.items():
            _check_parameter(name, key, value, row)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "parameters", tuple(values.items()))
        object.__setattr__(self, "observed", ())

    @classmethod
    def from_durations(cls, observed: "list[list[float]]") -> "Law":
        """Draw from observed durations, one list per class of the fleet (or one for all classes).

        Each list is rescaled to mean 1, so the fleet's service rates keep setting the speed.
        """
        law = object.__new__(cls)
        for number, durations in enumerate(observed, start=1):
            values = np.asarray(durations, dtype=np.float64)
            if values.size == 0 or not np.all(np.isfinite(values) & (values > 0)):
                raise InvalidInput(
                    f"the durations of class {number} must be positive numbers, at least one"
                )
        object.__setattr__(law, "name", "trace")
        object.__setattr__(law, "parameters", ())
        object.__setattr__(
            law,
            "observed",
            tuple(tuple((np.asarray(d) / np.mean(d)).tolist()) for d in observed),
        )
        return law

    def draw(self, random: np.random.Generator, size: int) -> FloatArray:
        """``size`` service times of mean 1; for a trace, uniform numbers that pick observations."""
        if self.name == "trace":
            return random.random(size)
        return _LAWS[self.name].draw(random, size, **dict(self.parameters))

    def __str__(self) -> str:
        if self.name == "trace":
            return f"trace({sum(map(len, self.observed))} durations)"
        inner = ", ".join(f"{key}={value:g}" for key, value in self.parameters)
        return f"{self.name}({inner})" if inner else self.name

    def __repr__(self) -> str:
        if self.name == "trace":
            return f"Law({self})"
        return ", ".join([f"Law('{self.name}'", *(f"{k}={v:g}" for k, v in self.parameters)]) + ")"


def as_law(law: "str | Law") -> Law:
    """A law by name with its usual parameter, or the law given."""
    return law if isinstance(law, Law) else Law(law)


def _check_parameter(law: str, key: str, value: float, row: _Row) -> None:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= row.above:
        raise InvalidInput(
            f"{key} of the law {law} must be a number above {row.above:g}; it is {value!r}"
        )
    if row.whole and value != int(value):
        raise InvalidInput(f"{key} of the law {law} must be a whole number; it is {value!r}")

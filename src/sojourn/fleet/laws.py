"""Service-time laws: the shape of a client's service time around its mean 1/mu."""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from sojourn._support.csv_table import class_in, number_in, read_csv
from sojourn._support.extensions import from_table, is_extension, to_table
from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.fleet.fleet import Fleet
from sojourn.fleet.network import Network
from sojourn.types import FloatArray

Draw = Callable[..., FloatArray]


@runtime_checkable
class ServiceLaw(Protocol):
    """What the simulator needs of a law; a law of one's own is any value that has these two."""

    @property
    def name(self) -> str:
        """What configuration calls it."""

    def sample(self, random: np.random.Generator, size: int) -> FloatArray:
        """``size`` service times of mean 1."""


class _Row(NamedTuple):
    draw: Draw
    defaults: Mapping[str, float]
    scv: Callable[..., float]
    above: float = 0.0
    least: float = 0.0
    most: float = math.inf
    whole: bool = False


def fast_share(scv: float) -> float:
    """The share :math:`f` of fast times of a hyperexponential law, at rate 2f; the others have 2(1 - f)."""
    return 0.5 * (1.0 + math.sqrt((scv - 1.0) / (scv + 1.0)))


def _hyperexponential(random: np.random.Generator, size: int, scv: float) -> FloatArray:
    fast = fast_share(scv)
    rate = np.where(random.random(size) < fast, 2.0 * fast, 2.0 * (1.0 - fast))
    return random.standard_exponential(size) / rate


# Each row draws ``size`` times of mean 1; its parameter must lie above ``above``.
_LAWS: Mapping[str, _Row] = {
    "exponential": _Row(lambda random, size: random.standard_exponential(size), {}, lambda: 1.0),
    "deterministic": _Row(lambda random, size: np.ones(size), {}, lambda: 0.0),
    "lognormal": _Row(
        lambda random, size, sigma: random.lognormal(-sigma * sigma / 2.0, sigma, size),
        {"sigma": 1.0},
        lambda sigma: math.expm1(sigma * sigma),
        most=10.0,
    ),
    "gamma": _Row(
        lambda random, size, shape: random.standard_gamma(shape, size) / shape,
        {"shape": 0.5},
        lambda shape: 1.0 / shape,
        least=1e-3,
        most=1e12,
    ),
    "erlang": _Row(
        lambda random, size, stages: random.standard_gamma(stages, size) / stages,
        {"stages": 2},
        lambda stages: 1.0 / stages,
        most=1e12,
        whole=True,
    ),
    "hyperexponential": _Row(
        _hyperexponential, {"scv": 4.0}, lambda scv: scv, above=1.0, most=1e12
    ),
    "weibull": _Row(
        lambda random, size, shape: random.weibull(shape, size) / math.gamma(1.0 + 1.0 / shape),
        {"shape": 0.5},
        lambda shape: math.gamma(1.0 + 2.0 / shape) / math.gamma(1.0 + 1.0 / shape) ** 2 - 1.0,
        least=0.05,
        most=1e6,
    ),
    "pareto": _Row(
        lambda random, size, shape: (1.0 + random.pareto(shape, size)) * ((shape - 1.0) / shape),
        {"shape": 2.5},
        lambda shape: 1.0 / (shape * (shape - 2.0)) if shape > 2.0 else math.inf,
        above=1.0,
        most=1e6,
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
    trace                                  observed durations: `Trace`, read by ``read_trace``
    ========================  ===========  =======================================================

    >>> Law("lognormal", sigma=0.5)
    Law('lognormal', sigma=0.5)
    >>> print(Law("pareto"))
    pareto(shape=2.5)
    """

    name: str
    parameters: tuple[tuple[str, float], ...]

    def __init__(self, name: str, **parameters: float) -> None:
        if name not in _LAWS:
            if name == "trace":
                raise InvalidInput(
                    "the law 'trace' needs observed durations: read them with read_trace, give "
                    'Trace(durations) or, in an experiment, trace = "durations.csv"'
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

    @property
    def scv(self) -> float:
        """Squared coefficient of variation: the variance, the mean being 1."""
        return float(_LAWS[self.name].scv(**dict(self.parameters)))

    def sample(self, random: np.random.Generator, size: int) -> FloatArray:
        """``size`` service times of mean 1."""
        return _LAWS[self.name].draw(random, size, **dict(self.parameters))

    def __str__(self) -> str:
        inner = ", ".join(f"{key}={value:g}" for key, value in self.parameters)
        return f"{self.name}({inner})" if inner else self.name

    def __repr__(self) -> str:
        return ", ".join([f"Law('{self.name}'", *(f"{k}={v:g}" for k, v in self.parameters)]) + ")"


@dataclass(frozen=True, init=False)
class Trace:
    """Observed durations, drawn from with replacement and rescaled to mean 1.

    The trace gives the shape of the service times and the fleet the speed; ``mean`` is what the
    durations were divided by.

    >>> Trace([1.0, 2.0, 3.0])
    Trace(3 durations, mean 2)
    """

    durations: tuple[float, ...]
    mean: float

    def __init__(self, durations: ArrayLike) -> None:
        values = np.asarray(durations, dtype=np.float64)
        if values.ndim != 1 or not values.size or not np.all(np.isfinite(values) & (values > 0)):
            raise InvalidInput("the durations of a trace must be positive numbers, at least one")
        object.__setattr__(self, "durations", tuple(values.tolist()))
        object.__setattr__(self, "mean", float(np.mean(values)))

    @property
    def name(self) -> str:
        return "trace"

    @property
    def scv(self) -> float:
        """Squared coefficient of variation of the durations."""
        return float(np.var(self.durations)) / self.mean**2

    def sample(self, random: np.random.Generator, size: int) -> FloatArray:
        """``size`` of the durations, divided by their mean."""
        relative = np.array(self.durations) / self.mean
        return np.asarray(relative[(random.random(size) * relative.size).astype(np.int64)])

    def __str__(self) -> str:
        return f"trace({len(self.durations)} durations)"

    def __repr__(self) -> str:
        return f"Trace({len(self.durations)} durations, mean {self.mean:.4g})"


LawLike = str | Mapping[str, object] | ServiceLaw
"""A law by name, as a table or as it is."""
Laws = LawLike | Sequence[LawLike]
"""One law for all clients, or a list with one per class of the fleet."""


def as_laws(given: Laws, where: str = "law", folder: Path | None = None) -> tuple[ServiceLaw, ...]:
    """One law for all clients, or one per class of the fleet.

    >>> as_laws(["deterministic", {"name": "lognormal", "sigma": 0.5}])
    (Law('deterministic'), Law('lognormal', sigma=0.5))
    """
    if isinstance(given, Sequence) and not isinstance(given, str):
        if not given:
            raise InvalidInput(f"{where}: a list of laws needs one law per class of the fleet")
        return tuple(_law(one, where, folder) for one in given)
    return (_law(given, where, folder),)


def as_law(given: LawLike | None, where: str, folder: Path | None = None) -> ServiceLaw:
    """One law, the exponential one if none is given.

    >>> as_law("lognormal", "link_law"), as_law(None, "link_law")
    (Law('lognormal', sigma=1), Law('exponential'))
    """
    if given is None:
        return Law("exponential")
    laws = as_laws(given, where, folder)
    if len(laws) > 1:
        raise InvalidInput(f"{where}: there is one law for all; {len(laws)} were given")
    return laws[0]


def class_laws(network: Network, law: Laws | None = None) -> list[ServiceLaw] | None:
    """The law of every class of ``network``, by default the fleet's own; ``None`` if it has none.

    >>> network = Network(Fleet([1.0, 2.0]), [0.5, 0.5], 2)
    >>> class_laws(network, "deterministic"), class_laws(network)
    ([Law('deterministic'), Law('deterministic')], None)
    """
    laws = fleet_laws(network.whole_fleet()) if law is None else as_laws(law)
    if laws is None:
        return None
    check_law_per_class(laws, network)
    return [laws[k if len(laws) > 1 else 0] for k in network.parents.tolist()]


def check_law_per_class(laws: Sequence[ServiceLaw], network: Network) -> None:
    """Raise unless there is one law, or one for every class of the whole fleet."""
    if len(laws) not in (1, network.whole_classes):
        raise InvalidInput(
            "there must be one law for all clients or one for every class of the fleet, which has "
            f"{network.whole_classes}; there are {len(laws)}"
        )


def fleet_laws(fleet: Fleet) -> tuple[ServiceLaw, ...] | None:
    """The laws in the fleet's column ``law``, one for all where they agree; ``None`` without it.

    >>> fleet_laws(Fleet([1.0, 2.0], law=["exponential", "lognormal(sigma=0.5)"]))
    (Law('exponential'), Law('lognormal', sigma=0.5))
    """
    if fleet.law is None:
        return None
    laws = as_laws(list(fleet.law), "the fleet's column law")
    return laws[:1] if len(set(fleet.law)) == 1 else laws


def law_to_table(law: ServiceLaw) -> dict[str, object]:
    """What `as_laws` reads back.

    >>> law_to_table(Law("pareto"))
    {'name': 'pareto', 'shape': 2.5}
    """
    if isinstance(law, Law):
        return {"name": law.name, **dict(law.parameters)}
    if isinstance(law, Trace):
        return {"name": law.name, "durations": list(law.durations)}
    return to_table(law, {})


def _law(given: object, where: str, folder: Path | None) -> ServiceLaw:
    if isinstance(given, str | Mapping):
        parameters = _in_words(given, where) if isinstance(given, str) else dict(given)
        name = parameters.pop("name", None)
        if not isinstance(name, str):
            raise InvalidInput(f"{where}: a table must have a 'name', such as lognormal")
        if is_extension(name):
            given = from_table({"name": name, **parameters}, {}, "law", where=where, folder=folder)
        elif name == "trace" and "durations" in parameters:
            given = Trace(parameters["durations"])
        else:
            given = Law(name, **parameters)
    if not isinstance(given, ServiceLaw):
        raise InvalidInput(f"{where}: a law must have a name and a method 'sample': {given!r}")
    return given


def _in_words(text: str, where: str) -> dict[str, Any]:
    """The table of a law written as ``name`` or ``name(parameter=value)``, as `Law` prints itself."""
    match = re.fullmatch(r"\s*([\w-]+)\s*\((.*)\)\s*", text)
    if match is None:
        return {"name": text.strip()}
    table: dict[str, object] = {"name": match[1]}
    for part in filter(None, (piece.strip() for piece in match[2].split(","))):
        key, _, value = part.partition("=")
        try:
            table[key.strip()] = float(value)
        except ValueError:
            raise InvalidInput(
                f"{where}: a law is written like lognormal(sigma=0.5); it is '{text}'"
            ) from None
    return table


def _check_parameter(law: str, key: str, value: float, row: _Row) -> None:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= row.above:
        raise InvalidInput(
            f"{key} of the law {law} must be a number above {row.above:g}; it is {value!r}"
        )
    if not row.least <= value <= row.most:
        raise InvalidInput(
            f"{key} of the law {law} must lie between {row.least or row.above:g} and {row.most:g}, "
            f"where its mean can be had in floating point; it is {value:g}"
        )
    if row.whole and value != int(value):
        raise InvalidInput(f"{key} of the law {law} must be a whole number; it is {value!r}")


def read_laws(given: Laws, fleet: Fleet, *, folder: Path | None = None) -> tuple[ServiceLaw, ...]:
    """`as_laws`, where ``{"name": "trace", "file": "durations.csv"}`` is a law, too.

    Files and modules are looked for in ``folder``.

    >>> read_laws(["deterministic", "exponential"], Fleet([1.0, 2.0]))
    (Law('deterministic'), Law('exponential'))
    """
    if not isinstance(given, list | tuple):
        return _observed(given, fleet, folder) or as_laws(given, folder=folder)
    laws: list[LawLike] = []
    for k, one in enumerate(given):
        traces = _observed(one, fleet, folder)
        laws.append(traces[k % len(traces)] if traces else one)
    return as_laws(laws, folder=folder)


def _observed(given: object, fleet: Fleet, folder: Path | None) -> tuple[Trace, ...]:
    """The durations in the file that a table names, if it names one."""
    if not isinstance(given, Mapping) or given.get("name") != "trace" or "file" not in given:
        return ()
    if set(given) != {"name", "file"}:
        raise InvalidInput(f"a trace is {{name, file}} and nothing else; it is {dict(given)}")
    return read_trace((folder or Path()) / str(given["file"]), fleet)


SHORTEST, LONGEST = 1e-100, 1e100
"""Durations between which sums and ratios do not overflow."""


def read_trace(path: str | os.PathLike[str], fleet: Fleet) -> tuple[Trace, ...]:
    """Durations observed, in a column ``duration``, as laws to draw from with replacement.

    A column ``class`` says to which class of the fleet each belongs, by name or number (from 1);
    without it all classes share the durations, and one law. Each class is rescaled so that its mean
    stays 1/mu: the trace gives the shape, the fleet the speed; `trace_factors` says by how much,
    and `trace_fleet` takes the speeds from the trace. A missing, negative or unreadable duration
    raises ``InvalidFile`` with its line.
    """
    rows = list(read_csv(path, ("class", "duration"), required=["duration"]).rows())
    by_class = bool(rows) and "class" in rows[0][1]
    labels = [fleet.label(k) for k in range(fleet.classes)]
    observed: list[list[float]] = [[] for _ in labels] if by_class else [[]]
    for where, fields in rows:
        k = class_in(fields["class"], labels, where) if by_class else 0
        observed[k].append(_duration(fields["duration"], where))
    for k, durations in enumerate(observed):
        if not durations:
            whom = f" for {labels[k]}" if by_class else ""
            raise InvalidFile(f"{path}: there are no durations{whom}")
    return tuple(Trace(durations) for durations in observed)


def trace_factors(fleet: Fleet, laws: Sequence[Trace]) -> FloatArray:
    r"""What the durations of every class are multiplied by to have the fleet's speed.

    .. math:: 1 / (\mu_k \bar d_k)

    for a mean duration :math:`\bar d_k`; ``(k,)``. A factor of 1 leaves them as they were observed.

    >>> trace_factors(Fleet([1.0]), [Trace([4.0, 6.0])]).tolist()
    [0.2]
    """
    return np.asarray(1.0 / (fleet.service_rates * _means(fleet, laws)))


def trace_fleet(fleet: Fleet, laws: Sequence[Trace]) -> Fleet:
    """The fleet at the speeds in the trace: service rates are one over the mean durations.

    >>> trace_fleet(Fleet([1.0], uplink=[0.5]), [Trace([4.0, 6.0])]).service_rates.tolist()
    [0.2]
    """
    return fleet.with_rates(1.0 / _means(fleet, laws))


def _means(fleet: Fleet, laws: Sequence[Trace]) -> FloatArray:
    return np.broadcast_to([law.mean for law in laws], (fleet.classes,))


def _duration(field: str, where: str) -> float:
    value = number_in(field, "duration", where)
    if value <= 0:
        raise InvalidFile(f"{where}: the duration must be positive; it is {value:g}")
    if not SHORTEST <= value <= LONGEST:
        raise InvalidFile(
            f"{where}: the duration must lie between {SHORTEST:g} and {LONGEST:g}; it is {value:g}"
        )
    return value

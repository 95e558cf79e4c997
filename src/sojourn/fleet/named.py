"""What people name, turned into values: fleets, those built in among them, and routings.

One reading for the command line, experiments and deployments. Paths are relative to ``folder``, by
default the current one, and a file beats a built-in name.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Final

import numpy as np

from sojourn._support.csv_table import read_csv
from sojourn._support.files import is_file
from sojourn.errors import InvalidFile, UnknownName, reading
from sojourn.fleet.fleet import Fleet
from sojourn.fleet.laws import fleet_laws
from sojourn.fleet.network import ROUTINGS, Network, named_routing
from sojourn.types import FloatArray

FLASH_MILLISECONDS: Final = (1642.0, 588.0, 179.0)
JETSON_TIMES: Final = (1.0, 1.81, 11.6)
AI_BENCHMARK_MILLISECONDS: Final = (213.0, 1548.0, 3695.0)


def split_lognormal_quantiles(
    p5: float, p50: float, p95: float, probabilities: FloatArray
) -> FloatArray:
    """Quantiles of a population with these three, log times normal on either side of the median.

    >>> split_lognormal_quantiles(213.0, 1548.0, 3695.0, np.array([0.05, 0.5, 0.95])).round(6).tolist()
    [213.0, 1548.0, 3695.0]
    """
    z = np.array([NormalDist().inv_cdf(q) for q in probabilities.tolist()])
    far = NormalDist().inv_cdf(0.95)
    low, high = np.log(p50 / p5) / far, np.log(p95 / p50) / far
    return np.asarray(p50 * np.exp(z * np.where(z < 0.0, low, high)))


def _ai_benchmark() -> tuple[list[float], list[int], list[str]]:
    shares = np.arange(1, 40, 2) / 40
    times = split_lognormal_quantiles(*AI_BENCHMARK_MILLISECONDS, probabilities=shares)
    return (1000.0 / times).tolist(), [5] * 20, [f"at {100 * q:g} %" for q in shares.tolist()]


DEVICES: Mapping[str, tuple[list[float], list[int], list[str]]] = {
    "flash-phones": (
        [1000.0 / t for t in FLASH_MILLISECONDS],
        [53, 46, 1],
        ["slow phones", "middle phones", "fast phones"],
    ),
    "jetson": (
        [1.0 / t for t in JETSON_TIMES],
        [10, 10, 10],
        ["Jetson TX2", "Jetson Nano", "Raspberry Pi"],
    ),
    "ai-benchmark-phones": _ai_benchmark(),
}
"""Speeds of real devices, from published measurements: rates, counts and names of the classes.

``flash-phones``: three classes of phones training the CNN of FEMNIST, in batches per second, from the
mean times per batch that FLASH reports, 1642 ± 99.5, 588 ± 23.9 and 179 ± 2.3 ms, in its
proportions 18820 : 16428 : 159, to a hundred clients or so. C. Yang et al., "Characterizing impacts of
heterogeneity in federated learning upon large-scale smartphone data", The Web Conference 2021.

``jetson``: Jetson TX2, Jetson Nano and Raspberry Pi, ten each, whose times per round are as
1 : 1.81 : 11.6; the time unit is a TX2's.

``ai-benchmark-phones``: twenty classes of five phones at the quantiles 2.5, 7.5, ..., 97.5 % of a
population whose times spread as the AI Benchmark's, p5 : p50 : p95 = 213 : 1548 : 3695 ms; log times
are interpolated between these three as two halves of normal laws. In tasks per second. A. Ignatov et
al., "AI Benchmark: all about deep learning on smartphones in 2019".
"""


def built_in_fleet(name: str) -> Fleet:
    """A fleet of the paper by name, to try things on without a file.

    ``three-clusters`` (section 4.3: ten clients each at 0.01, 0.1 and 1), ``twenty`` (section 3.3:
    :math:`\\mu_i = e^{i/100}`) and ``fifty`` (section 4.2: the same law, 50 clients). And real
    devices, from published figures (`DEVICES`): ``flash-phones``, ``jetson`` and
    ``ai-benchmark-phones``.

    >>> built_in_fleet("three-clusters")
    Fleet(30 clients in 3 classes, rates 0.01 to 1)
    """
    if name not in BUILT_IN_FLEETS:
        raise UnknownName("built-in fleet", name, BUILT_IN_FLEETS)
    return BUILT_IN_FLEETS[name]


BUILT_IN_FLEETS = {
    "three-clusters": Fleet(
        [0.01, 0.1, 1.0], counts=[10, 10, 10], names=["slow", "medium", "fast"]
    ),
    "twenty": Fleet(np.exp(np.arange(1, 21) / 100)),
    "fifty": Fleet(np.exp(np.arange(1, 51) / 100)),
    **{name: Fleet(rates, counts, names) for name, (rates, counts, names) in DEVICES.items()},
}


def read_fleet(text: str, folder: Path | None = None) -> Fleet:
    """The fleet in the CSV file ``text``, or the built-in fleet of that name.

    >>> read_fleet("three-clusters")
    Fleet(30 clients in 3 classes, rates 0.01 to 1)
    """
    path = _located(text, folder)
    if path.suffix == ".toml":
        raise InvalidFile(
            f"{path}: a plan, a strategy or an experiment; a fleet is a CSV file with a column service_rate"
        )
    if is_file(path) or path.suffix == ".csv":
        fleet = Fleet.from_csv(path)
        with reading(path):
            fleet_laws(fleet)
        return fleet
    if text in BUILT_IN_FLEETS:
        return built_in_fleet(text)
    if path.is_dir():
        raise InvalidFile(f"{path} is a folder, not a fleet's file")
    raise InvalidFile(
        f"{path}: no such file, and {UnknownName('built-in fleet', text, BUILT_IN_FLEETS)}"
    )


def is_built_in(text: str, fleet: Fleet) -> bool:
    """Whether ``text`` names ``fleet`` wherever there is no file of that name."""
    return text in BUILT_IN_FLEETS and fleet == BUILT_IN_FLEETS[text]


def read_routing(text: str, fleet: Fleet, folder: Path | None = None) -> FloatArray:
    """A CSV file with a column ``routing``, one row per class, or a closed-form routing by name.

    >>> read_routing("balanced", Fleet([1.0, 4.0])).tolist()
    [0.2, 0.8]
    """
    path = _located(text, folder)
    if not is_file(path):
        if text in ROUTINGS:
            return named_routing(fleet, text)
        raise InvalidFile(f"{path}: no such file, and {UnknownName('routing', text, ROUTINGS)}")
    table = read_csv(path, ["routing"], required=["routing"], may_add=lambda *_: True)
    with reading(path):
        return Network(fleet, table.numbers("routing"), 1).routing


def is_named_routing(text: str, fleet: Fleet, routing: FloatArray) -> bool:
    """Whether ``text`` names ``routing`` wherever there is no file of that name."""
    return text in ROUTINGS and np.array_equal(routing, named_routing(fleet, text))


def _located(text: str, folder: Path | None) -> Path:
    return Path(text) if folder is None else folder / text

"""Speeds of real devices, from published measurements: rates, numbers and names of classes.

``flash-phones``: three classes of phones training the CNN of FEMNIST, in batches per second, from the
mean times per batch that FLASH reports, 1642 ± 99.5, 588 ± 23.9 and 179 ± 2.3 ms, in its
proportions 18820 : 16428 : 159, to a hundred clients or so. C. Yang et al., "Characterizing impacts of heterogeneity in
federated learning upon large-scale smartphone data", The Web Conference 2021.

``jetson``: Jetson TX2, Jetson Nano and Raspberry Pi, ten each, whose times per round are as
1 : 1.81 : 11.6; the unit of time is a TX2's.

``ai-benchmark-phones``: twenty classes of five phones at the quantiles 2.5, 7.5, ..., 97.5 % of a
population whose times spread as the AI Benchmark's, p5 : p50 : p95 = 213 : 1548 : 3695 ms; log times
are interpolated between these three as two halves of normal laws. In tasks per second. A. Ignatov et al., "AI Benchmark: all about deep
learning on smartphones in 2019".
"""

from collections.abc import Mapping
from statistics import NormalDist
from typing import Final

import numpy as np

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
"""Rates, counts and names of the classes of each fleet."""

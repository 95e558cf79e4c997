"""Whether a service-time law keeps what the simulator relies on."""

import json
import math

import numpy as np

from sojourn.laws import ServiceLaw, as_laws, law_to_table
from sojourn.testing.requirement import require

SAMPLES = 200_000
ERRORS = 4.0
"""Standard errors that a mean may be away from what it should be."""


def check_law_conforms(law: ServiceLaw, *, seed: int = 1) -> None:
    """Raise ``AssertionError``, saying what is wrong, unless ``law`` conforms to `ServiceLaw`.

    Its mean must be 1 within four standard errors of 200 000 samples. That of a law whose variance
    is infinite has no standard error, and cannot be told from another so.

    >>> from sojourn.laws import Law
    >>> check_law_conforms(Law("weibull", shape=2.0))
    """
    require(isinstance(law, ServiceLaw), "a law must have a name and a method 'sample'")
    require(isinstance(law.name, str) and bool(law.name), "name must be text")
    times = law.sample(np.random.default_rng(seed), SAMPLES)
    require(isinstance(times, np.ndarray), "sample must return a NumPy array")
    require(times.dtype == np.float64, f"times must be float64; they are {times.dtype}")
    require(times.shape == (SAMPLES,), f"sample must return as many times as asked: {times.shape}")
    require(bool(np.isfinite(times).all()), "every time must be finite")
    require(bool((times > 0).all()), "every time must be positive")
    again = law.sample(np.random.default_rng(seed), SAMPLES)
    require(np.array_equal(times, again), "the same generator must give the same times")
    other = law.sample(np.random.default_rng(seed + 1), SAMPLES)
    constant = bool((times == times[0]).all())
    require(
        constant or not np.array_equal(times, other), "times must come from the generator given"
    )
    for size in (0, 1, 3):
        require(
            law.sample(np.random.default_rng(seed), size).shape == (size,), f"{size} times asked"
        )
    mean, error = float(times.mean()), float(times.std()) / math.sqrt(SAMPLES)
    require(
        abs(mean - 1.0) <= ERRORS * error + 1e-12,
        f"the mean must be 1; it is {mean:.6g} ± {error:.2g}. Divide by the law's own mean.",
    )
    check_table(law)


def check_table(law: ServiceLaw) -> None:
    """What is written down in an experiment is read back as the same law."""
    if type(law).__module__ == "__main__":  # cannot be found again by name
        return
    table = json.loads(json.dumps(law_to_table(law)))
    (read,) = as_laws(table)
    require(
        read == law,
        f"{table} must be read back as the same law; it is {read!r}. A frozen dataclass whose fields "
        "are its parameters will do.",
    )

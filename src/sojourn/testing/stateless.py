"""Whether laws and objectives, which hold no state, keep what the simulator and the planner rely on."""

import json
import math

import numpy as np
import tomli_w

from sojourn._support.configuration import Table
from sojourn.fleet import Fleet, Network
from sojourn.fleet.laws import ServiceLaw, as_laws, law_to_table
from sojourn.planning.objectives import (
    Evaluation,
    Objective,
    objective_from_table,
    objective_to_table,
)
from sojourn.planning.search.routing import optimize_routing
from sojourn.types import FloatArray


def require(condition: bool, message: str) -> None:
    """Raise ``AssertionError`` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise AssertionError(message)


SAMPLES = 200_000
ERRORS = 4.0
"""Standard errors that a mean may be away from what it should be."""


def check_law_conforms(law: ServiceLaw, *, seed: int = 1) -> None:
    """Raise ``AssertionError``, saying what is wrong, unless ``law`` conforms to `ServiceLaw`.

    Its mean must be 1 within four standard errors of 200 000 samples. A law of infinite variance
    says so with ``scv = math.inf``; its mean is estimated with a tail fitted by `tail_mean`, since
    that of the samples converges too slowly to be tested.

    >>> from sojourn.fleet.laws import Law
    >>> check_law_conforms(Law("weibull", shape=2.0))
    >>> check_law_conforms(Law("pareto", shape=1.2))
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
    if getattr(law, "scv", 1.0) == math.inf:
        mean, error = tail_mean(times)
    else:
        mean, error = float(times.mean()), float(times.std()) / math.sqrt(SAMPLES)
    require(
        abs(mean - 1.0) <= ERRORS * error + 1e-12,
        f"the mean must be 1; it is {mean:.6g} ± {error:.2g}. Divide by the law's own mean.",
    )
    check_law_table(law)


def tail_mean(times: FloatArray) -> tuple[float, float]:
    r"""The mean of a law with a power tail, and its standard error.

    .. math:: \frac1n \sum_{j \le n-k} x_{(j)} + \frac kn \frac{\alpha u}{\alpha - 1}, \qquad
       \frac1\alpha = \frac1k \sum_{j > n-k} \log\frac{x_{(j)}}{u}, \quad u = x_{(n-k)}

    The k = n/20 largest samples are replaced by the mean of the Pareto tail that fits them (Hill's
    estimator of :math:`\alpha`). The error is that of the body, of :math:`\alpha` and of :math:`u`.
    Infinite for :math:`\alpha \le 1`. J. Johansson, "Estimating the mean of heavy-tailed
    distributions", Extremes, 2003.
    """
    ordered = np.sort(times)
    n, k = ordered.size, ordered.size // 20
    body, tail, edge = ordered[: n - k], ordered[n - k :], float(ordered[n - k - 1])
    alpha = 1.0 / float(np.log(tail / edge).mean())
    if alpha <= 1.0:
        return math.inf, 0.0
    mean = float(body.sum()) / n + k / n * edge * alpha / (alpha - 1.0)
    of_body = float(body.std()) * math.sqrt(n - k) / n
    of_alpha = k / n * edge * alpha / (alpha - 1.0) ** 2 / math.sqrt(k)
    of_edge = k / n * edge * alpha / (alpha - 1.0) / math.sqrt(k)
    return mean, math.hypot(of_body, of_alpha, of_edge)


def check_law_table(law: ServiceLaw) -> None:
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


FLEET = Fleet([0.5, 1.0, 3.0], counts=[2, 1, 2])
ROUTING = (0.1, 0.2, 0.3)
CONCURRENCY = 4
GRADIENT_ERROR = 1e-5
"""Largest difference from central differences, relative to the largest entry."""


def check_objective_conforms(objective: Objective) -> None:
    """Raise ``AssertionError``, saying what is wrong, unless ``objective`` conforms.

    Its gradient, if it gives one, is that of the logarithm of its value by the routing probability
    of one client of each class.

    >>> from sojourn.planning.objectives import Throughput
    >>> check_objective_conforms(Throughput())
    """
    require(isinstance(objective, Objective), "it must have the attributes of sojourn.Objective")
    require(isinstance(objective.name, str) and bool(objective.name), "name must be text")
    require(type(objective.maximize) is bool, "maximize must be true or false")
    network = Network(FLEET, ROUTING, CONCURRENCY)
    found = objective.evaluate(network)
    require(isinstance(found, Evaluation), "evaluate must return an Evaluation")
    require(math.isfinite(found.value) and found.value > 0, f"values are positive: {found.value}")
    require(objective.evaluate(network).value == found.value, "the same network, the same value")
    rate = found.learning_rate
    require(rate is None or rate > 0, f"a learning rate must be positive; it is {rate}")
    rounds = objective.rounds_at(network)
    require(rounds is None or rounds >= 0, f"rounds must not be negative; they are {rounds}")
    if rate is not None:
        fixed = objective.with_learning_rate(rate).evaluate(network)
        same = math.isclose(fixed.value, found.value, rel_tol=1e-9)
        require(same, "with the learning rate that it chose itself the value must be the same")
    if found.log_gradient is not None:
        check_gradient(objective, found.log_gradient)
    check_table(objective)
    check_sense(objective, network, found.value)


def check_gradient(objective: Objective, gradient: object) -> None:
    """The gradient along directions that keep the routing's sum, against central differences."""
    given = np.asarray(gradient)
    require(given.shape == (FLEET.classes,), f"log_gradient must be one per class: {given.shape}")
    p, counts = np.array(ROUTING), FLEET.counts
    step = float(np.finfo(float).eps) ** (1 / 3)
    for k in range(1, FLEET.classes):
        along = np.zeros(FLEET.classes)
        along[0], along[k] = -1.0 / counts[0], 1.0 / counts[k]
        ends = [
            math.log(objective.evaluate(Network(FLEET, p + h * along, CONCURRENCY)).value)
            for h in (-step, step)
        ]
        slope = (ends[1] - ends[0]) / (2 * step)
        said = float((counts * given) @ along)
        size = float(np.abs(given).max())
        require(
            abs(slope - said) <= GRADIENT_ERROR * max(size, 1e-6),
            f"log_gradient must be the derivative of log(value): from class 0 to class {k} it says "
            f"{said:.6g}, differences say {slope:.6g}",
        )


def check_table(objective: Objective) -> None:
    """What a plan file says of it is read back as the same objective."""
    if type(objective).__module__ == "__main__":  # cannot be found again by name
        return
    written = objective_to_table(objective)
    tomli_w.dumps(written)
    read = objective_from_table(Table(written, "plan.toml"), objective.constants)
    require(objective_to_table(read) == written, f"{written} must be read back as the same")


def check_sense(objective: Objective, network: Network, value: float) -> None:
    """A search from every simple routing finds nothing worse than they are."""
    solution = optimize_routing(FLEET, CONCURRENCY, objective)
    sign = 1.0 if objective.maximize else -1.0
    best = sign * solution.value
    require(
        best >= sign * value - 1e-9 * abs(value),
        f"the search for a {'larger' if objective.maximize else 'smaller'} value found "
        f"{solution.value:g} where {value:g} was known",
    )

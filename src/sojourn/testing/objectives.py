"""Whether an objective keeps what the planner and plan files rely on."""

import math

import numpy as np
import tomli_w

from sojourn.config import Table
from sojourn.network import Fleet, Network
from sojourn.optimize.objectives import Evaluation, Objective
from sojourn.optimize.registry import objective_from_table, objective_to_table
from sojourn.optimize.routing import optimize_routing
from sojourn.testing.requirement import require

FLEET = Fleet([0.5, 1.0, 3.0], counts=[2, 1, 2])
ROUTING = (0.1, 0.2, 0.3)
CONCURRENCY = 4
GRADIENT_ERROR = 1e-5
"""Largest difference from central differences, relative to the largest entry."""


def check_objective_conforms(objective: Objective) -> None:
    """Raise ``AssertionError``, saying what is wrong, unless ``objective`` conforms.

    Its gradient, if it gives one, is that of the logarithm of its value by the routing probability
    of one client of each class.

    >>> from sojourn.optimize import Throughput
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

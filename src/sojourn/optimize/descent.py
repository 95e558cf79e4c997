"""Descent over routings: softmax coordinates, the logarithm of the objective, exact gradients."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from sojourn.errors import Unreachable
from sojourn.network import Fleet, Network
from sojourn.optimize.objectives import Objective
from sojourn.types import FloatArray

FARTHEST = 60.0
"""Bound on the softmax coordinates around zero: a probability is e^-120 of another, or more."""
UNREACHABLE = 1e4
"""What the logarithm of an objective is taken for where it is not defined."""


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a descent ended, and the path of values it took."""

    network: Network
    value: float
    gradient_norm: float
    steps: int
    path: FloatArray


def softmax(fleet: Fleet, theta: FloatArray) -> FloatArray:
    r"""Routing :math:`p_k = e^{\theta_k} / \sum_j c_j e^{\theta_j}` of each client of a class."""
    weights = np.exp(np.maximum(theta - theta.max(), -2.0 * FARTHEST))
    return np.asarray(weights / (fleet.counts @ weights), dtype=np.float64)


class SoftmaxObjective:
    """The logarithm of an objective (its negative, if it is maximised) in softmax coordinates."""

    def __init__(self, fleet: Fleet, concurrency: int, objective: Objective) -> None:
        self.fleet, self.concurrency, self.objective = fleet, concurrency, objective
        self.reached = False
        self._sign = -1.0 if objective.maximize else 1.0

    def network(self, theta: FloatArray) -> Network:
        return Network(self.fleet, softmax(self.fleet, theta), self.concurrency)

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        r"""Value and gradient, :math:`\partial/\partial\theta_j = c_j p_j (g_j - \sum_i c_i p_i g_i)`."""
        network = self.network(theta)
        try:
            evaluation = self.objective.evaluate(network)
        except Unreachable:
            if not self.reached:
                raise
            # A step too far: the line search comes back.
            return UNREACHABLE, np.zeros(theta.size)
        self.reached = True
        mass = self.fleet.counts * network.routing
        g = evaluation.log_gradient
        gradient = mass * (g - mass @ g)
        return self._sign * float(np.log(evaluation.value)), self._sign * gradient


def lbfgs(
    fleet: Fleet,
    concurrency: int,
    objective: Objective,
    start: FloatArray,
    *,
    tolerance: float = 1e-9,
    most_steps: int = 1000,
) -> Descent:
    """L-BFGS from the routing ``start`` until the gradient of the log objective is ``tolerance``."""
    function = SoftmaxObjective(fleet, concurrency, objective)
    theta = np.log(start)
    theta -= theta.mean()
    path: list[float] = [function(theta)[0]]
    result = minimize(
        function,
        theta,
        jac=True,
        method="L-BFGS-B",
        callback=lambda intermediate_result: path.append(float(intermediate_result.fun)),
        options={"maxiter": most_steps, "gtol": tolerance, "ftol": 1e-15, "maxcor": 20},
    )
    return _ended(function, np.asarray(result.x), path)


def adam(
    fleet: Fleet,
    concurrency: int,
    objective: Objective,
    start: FloatArray,
    *,
    steps: int = 3000,
    step_size: float = 1e-3,
    decay: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> Descent:
    """The paper's descent: Adam with its default settings on the objective itself, in softmax.

    A class of identical clients moves as its members would one by one, since their gradients agree.
    """
    function = SoftmaxObjective(fleet, concurrency, objective)
    theta = np.log(start)
    theta -= theta.mean()
    first, second = np.zeros(theta.size), np.zeros(theta.size)
    path = []
    for step in range(1, steps + 1):
        log_value, log_gradient = function(theta)
        path.append(log_value)
        # d value/d theta of one client: the objective's own gradient, not its logarithm's.
        gradient = np.exp(log_value) * log_gradient / fleet.counts
        first = decay[0] * first + (1 - decay[0]) * gradient
        second = decay[1] * second + (1 - decay[1]) * gradient**2
        corrected = first / (1 - decay[0] ** step)
        spread = np.sqrt(second / (1 - decay[1] ** step))
        theta = theta - step_size * corrected / (spread + epsilon)
    return _ended(function, theta, path)


def _ended(function: SoftmaxObjective, theta: FloatArray, path: list[float]) -> Descent:
    log_value, gradient = function(theta)
    values = np.exp(np.array([*path, log_value]) * (-1.0 if function.objective.maximize else 1.0))
    return Descent(
        network=function.network(theta),
        value=float(values[-1]),
        gradient_norm=float(np.linalg.norm(gradient)),
        steps=len(path),
        path=values,
    )

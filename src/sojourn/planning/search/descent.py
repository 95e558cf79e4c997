"""Descent over routings: softmax coordinates, the logarithm of the objective, exact gradients."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from sojourn.errors import Unreachable
from sojourn.fleet import ROUTINGS, Fleet, Network
from sojourn.planning.objectives import Objective
from sojourn.types import FloatArray

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

FARTHEST = 60.0
"""Bound on the softmax coordinates around zero: a probability is e^-120 of another, or more."""
UNREACHABLE = 1e4
"""What the logarithm of an objective is taken for where it is not defined."""
FEW_CLASSES = 8
"""Up to so many classes are searched one by one without a gradient."""
SIMPLEX_STEPS = 100
TOLERANCE, MOST_STEPS = 1e-9, 1000
"""The norm of the gradient of the log objective at which a descent ends, and the most steps."""
FEW_STEPS = 30
"""Steps after which a descent goes on in coordinates of equal curvature."""
PROBES, PROBE_STEP = 4, 1e-4
"""Vectors of signs that tell the curvature of every coordinate, and how far along them to look."""
FLATTEST = 1e-8
"""The least curvature of a coordinate, relative to the largest."""

Measure: TypeAlias = Callable[[Network], tuple[float, FloatArray]]


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a descent ended, and the path of values it took; without a gradient its norm is NaN."""

    network: Network
    value: float
    gradient_norm: float
    steps: int
    path: FloatArray


def softmax(fleet: Fleet, theta: FloatArray) -> FloatArray:
    r"""Routing :math:`p_k = e^{\theta_k} / \sum_j c_j e^{\theta_j}` of each client of a class."""
    weights = np.exp(np.maximum(theta - theta.max(), -2.0 * FARTHEST))
    return np.asarray(weights / (fleet.counts @ weights), dtype=np.float64)


class OverRoutings:
    """A function of a network, and its gradient in the routing, in softmax coordinates."""

    def __init__(self, start: Network, measure: Measure) -> None:
        self.start, self._measure = start, measure

    def network(self, theta: FloatArray) -> Network:
        """The network at these coordinates, with the fleet, tasks and server of ``start``."""
        start = self.start
        p = softmax(start.fleet, theta)
        return Network(start.fleet, p, start.concurrency, server_rate=start.server_rate)

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        r"""Value and gradient, :math:`\partial/\partial\theta_j = c_j p_j (g_j - \sum_i c_i p_i g_i)`."""
        network = self.network(theta)
        value, g = self._measure(network)
        mass = network.fleet.counts * network.routing
        return value, mass * (g - mass @ g)

    def scale(self, theta: FloatArray) -> FloatArray:
        r"""Roots of the curvature of each coordinate, by which descents are scaled.

        Classes of a thousand clients and of one differ in curvature a thousandfold and more, and
        the Hessian is nearly diagonal where clients are many. Its diagonal is the mean of
        :math:`v \circ H v` over vectors of signs, products with it being differences of gradients.
        """
        random = np.random.default_rng(0)
        diagonal = np.zeros(theta.size)
        for _ in range(PROBES):
            signs = random.choice([-1.0, 1.0], theta.size)
            ahead, behind = (self(theta + step * signs)[1] for step in (PROBE_STEP, -PROBE_STEP))
            diagonal += signs * (ahead - behind) / (2.0 * PROBE_STEP * PROBES)
        curvature = np.abs(diagonal)
        if not np.isfinite(curvature).all() or curvature.max() == 0.0:
            return np.ones(theta.size)
        return np.asarray(np.sqrt(np.maximum(curvature, FLATTEST * curvature.max())))

    def minimize(
        self,
        theta: FloatArray,
        *,
        gtol: float,
        ftol: float,
        maxiter: int,
        maxcor: int = 10,
        bounded: bool = False,
        scale: FloatArray | float = 1.0,
        callback: Callable[..., None] | None = None,
    ) -> FloatArray:
        """Where L-BFGS from ``theta`` ends, descending in the coordinates ``scale * theta``."""
        from scipy.optimize import Bounds, minimize  # slow to import: a command's help needs none

        def scaled(x: FloatArray) -> tuple[float, FloatArray]:
            value, gradient = self(x / scale)
            return value, gradient / scale

        result = minimize(
            scaled,
            theta * scale,
            jac=True,
            method="L-BFGS-B",
            bounds=Bounds(-FARTHEST, FARTHEST) if bounded else None,
            callback=callback,
            options=cast(Any, {"gtol": gtol, "ftol": ftol, "maxiter": maxiter, "maxcor": maxcor}),
        )
        return np.asarray(result.x / scale)


class LogObjective:
    """The logarithm of an objective, its negative if it is maximised, and the gradient."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self._reached = False
        self._sign = -1.0 if objective.maximize else 1.0

    def __call__(self, network: Network) -> tuple[float, FloatArray]:
        try:
            evaluation = self.objective.evaluate(network)
        except Unreachable:
            if not self._reached:
                raise
            # A step too far: the line search comes back.
            return UNREACHABLE, np.zeros(network.routing.size)
        self._reached = True
        log_value = self._sign * float(np.log(evaluation.value))
        if evaluation.log_gradient is None:
            return log_value, np.full(network.routing.size, np.nan)
        return log_value, self._sign * evaluation.log_gradient


def has_gradient(network: Network, objective: Objective) -> bool:
    """Whether the objective has a gradient, wherever a closed-form routing reaches it."""
    for routing in ROUTINGS.values():
        try:
            evaluation = objective.evaluate(replace(network, routing=routing(network.fleet)))
        except Unreachable:
            continue
        return evaluation.log_gradient is not None
    return True


def descend(
    start: Network,
    objective: Objective,
    *,
    tolerance: float = TOLERANCE,
    most_steps: int = MOST_STEPS,
) -> Descent:
    """L-BFGS from the routing of ``start``, or a simplex where the objective has no gradient."""
    if objective.evaluate(start).log_gradient is None:
        return simplex(start, objective)
    return lbfgs(start, objective, tolerance=tolerance, most_steps=most_steps)


def lbfgs(
    start: Network,
    objective: Objective,
    *,
    tolerance: float = TOLERANCE,
    most_steps: int = MOST_STEPS,
) -> Descent:
    """L-BFGS from the routing of ``start`` until the gradient of the log objective is ``tolerance``."""
    function = OverRoutings(start, LogObjective(objective))
    theta = _coordinates(start.routing)
    path: list[float] = [function(theta)[0]]

    def descended(theta: FloatArray, steps: int, scale: FloatArray | float = 1.0) -> FloatArray:
        return function.minimize(
            theta,
            gtol=tolerance,
            ftol=1e-15,
            maxiter=steps,
            maxcor=20,
            scale=scale,
            callback=_recorder(path),
        )

    few = min(most_steps, FEW_STEPS)
    theta = descended(theta, few)
    if few <= len(path) - 1 < most_steps:
        theta = descended(theta, most_steps - few, function.scale(theta))
    return _ended(function, objective, theta, path)


def simplex(start: Network, objective: Objective) -> Descent:
    """Nelder and Mead's method on the classes' probabilities, for at most ``FEW_CLASSES`` classes.

    With more classes, or a single one, the descent ends where it began. Cost: at most
    ``SIMPLEX_STEPS`` evaluations per class.
    """
    function = OverRoutings(start, LogObjective(objective))
    theta, classes = _coordinates(start.routing), start.fleet.classes
    path = [function(theta)[0]]
    if 1 < classes <= FEW_CLASSES:
        from scipy.optimize import minimize

        def value(free: FloatArray) -> float:
            # One coordinate is superfluous: the last is held.
            return function(np.append(free, held))[0]

        held = theta[-1]
        result = minimize(
            value,
            theta[:-1],
            method="Nelder-Mead",
            callback=_recorder(path),
            options=cast(Any, {"maxfev": SIMPLEX_STEPS * classes, "xatol": 1e-4, "fatol": 1e-9}),
        )
        theta = np.append(np.asarray(result.x), theta[-1])
    return _ended(function, objective, theta, path)


def adam(
    start: Network,
    objective: Objective,
    *,
    steps: int = 3000,
    step_size: float = 1e-3,
    decay: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> Descent:
    """The paper's descent: Adam with its default settings on the objective itself, in softmax.

    A class of identical clients moves as its members would one by one, since their gradients agree.
    """
    function = OverRoutings(start, LogObjective(objective))
    theta = _coordinates(start.routing)
    first, second = np.zeros(theta.size), np.zeros(theta.size)
    path = []
    for step in range(1, steps + 1):
        log_value, log_gradient = function(theta)
        path.append(log_value)
        # d value/d theta of one client: the objective's own gradient, not its logarithm's.
        gradient = np.exp(log_value) * log_gradient / start.fleet.counts
        first = decay[0] * first + (1 - decay[0]) * gradient
        second = decay[1] * second + (1 - decay[1]) * gradient**2
        corrected = first / (1 - decay[0] ** step)
        spread = np.sqrt(second / (1 - decay[1] ** step))
        theta = theta - step_size * corrected / (spread + epsilon)
    return _ended(function, objective, theta, path)


def _recorder(path: list[float]) -> Callable[..., None]:
    def record(intermediate_result: "OptimizeResult") -> None:
        path.append(float(intermediate_result.fun))

    return record


def _coordinates(routing: FloatArray) -> FloatArray:
    theta = np.log(routing)
    return np.asarray(theta - theta.mean())


def _ended(
    function: OverRoutings, objective: Objective, theta: FloatArray, path: list[float]
) -> Descent:
    log_value, gradient = function(theta)
    values = np.exp(np.array([*path, log_value]) * (-1.0 if objective.maximize else 1.0))
    return Descent(
        network=function.network(theta),
        value=float(values[-1]),
        gradient_norm=float(np.linalg.norm(gradient)),
        steps=len(path),
        path=values,
    )

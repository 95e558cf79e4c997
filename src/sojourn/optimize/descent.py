"""Descent over routings: softmax coordinates, the logarithm of the objective, exact gradients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from scipy.optimize import Bounds, minimize

from sojourn.errors import Unreachable
from sojourn.network import ROUTINGS, Fleet, Network
from sojourn.optimize.objectives import Objective
from sojourn.types import FloatArray

FARTHEST = 60.0
"""Bound on the softmax coordinates around zero: a probability is e^-120 of another, or more."""
UNREACHABLE = 1e4
"""What the logarithm of an objective is taken for where it is not defined."""
FEW_CLASSES = 8
"""Up to so many classes are searched one by one without a gradient."""
SIMPLEX_STEPS = 100
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

    def __init__(
        self, fleet: Fleet, concurrency: int, measure: Measure, *, server_rate: float | None = None
    ) -> None:
        self.fleet, self.concurrency, self._measure = fleet, concurrency, measure
        self.server_rate = server_rate

    def network(self, theta: FloatArray) -> Network:
        p = softmax(self.fleet, theta)
        return Network(self.fleet, p, self.concurrency, server_rate=self.server_rate)

    def __call__(self, theta: FloatArray) -> tuple[float, FloatArray]:
        r"""Value and gradient, :math:`\partial/\partial\theta_j = c_j p_j (g_j - \sum_i c_i p_i g_i)`."""
        network = self.network(theta)
        value, g = self._measure(network)
        mass = self.fleet.counts * network.routing
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
        bounded: bool = False,
        scale: FloatArray | float = 1.0,
        callback: Callable[..., Any] | None = None,
        **options: Any,
    ) -> FloatArray:
        """Where L-BFGS from ``theta`` ends, descending in the coordinates ``scale * theta``."""

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
            options=cast(Any, options),
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


def has_gradient(
    fleet: Fleet, concurrency: int, objective: Objective, *, server_rate: float | None = None
) -> bool:
    """Whether the objective tells its gradient, wherever a closed-form routing reaches it."""
    for routing in ROUTINGS.values():
        try:
            network = Network(fleet, routing(fleet), concurrency, server_rate=server_rate)
            evaluation = objective.evaluate(network)
        except Unreachable:
            continue
        return evaluation.log_gradient is not None
    return True


def descend(
    fleet: Fleet,
    concurrency: int,
    objective: Objective,
    start: FloatArray,
    *,
    server_rate: float | None = None,
    **ending: Any,
) -> Descent:
    """L-BFGS from the routing ``start``, or a simplex where the objective tells no gradient."""
    network = Network(fleet, start, concurrency, server_rate=server_rate)
    if objective.evaluate(network).log_gradient is None:
        return simplex(fleet, concurrency, objective, start, server_rate=server_rate)
    return lbfgs(fleet, concurrency, objective, start, server_rate=server_rate, **ending)


def lbfgs(
    fleet: Fleet,
    concurrency: int,
    objective: Objective,
    start: FloatArray,
    *,
    server_rate: float | None = None,
    tolerance: float = 1e-9,
    most_steps: int = 1000,
) -> Descent:
    """L-BFGS from the routing ``start`` until the gradient of the log objective is ``tolerance``."""
    function = OverRoutings(fleet, concurrency, LogObjective(objective), server_rate=server_rate)
    theta = _coordinates(start)
    path: list[float] = [function(theta)[0]]
    ending: dict[str, Any] = {
        "callback": _recorder(path),
        "gtol": tolerance,
        "ftol": 1e-15,
        "maxcor": 20,
    }
    few = min(most_steps, FEW_STEPS)
    theta = function.minimize(theta, maxiter=few, **ending)
    if few <= len(path) - 1 < most_steps:
        scale = function.scale(theta)
        theta = function.minimize(theta, scale=scale, maxiter=most_steps - few, **ending)
    return _ended(function, objective, theta, path)


def simplex(
    fleet: Fleet,
    concurrency: int,
    objective: Objective,
    start: FloatArray,
    *,
    server_rate: float | None = None,
) -> Descent:
    """Nelder and Mead's method on the classes' probabilities, for at most ``FEW_CLASSES`` classes.

    With more classes, or a single one, the descent ends where it began. Cost: at most
    ``SIMPLEX_STEPS`` evaluations per class.
    """
    function = OverRoutings(fleet, concurrency, LogObjective(objective), server_rate=server_rate)
    theta = _coordinates(start)
    path = [function(theta)[0]]
    if 1 < fleet.classes <= FEW_CLASSES:
        ending: Any = {"maxfev": SIMPLEX_STEPS * fleet.classes, "xatol": 1e-4, "fatol": 1e-9}

        def value(free: FloatArray) -> float:
            # One coordinate is superfluous: the last is held.
            return function(np.append(free, held))[0]

        held = theta[-1]
        result = minimize(
            value,
            theta[:-1],
            method="Nelder-Mead",
            callback=_recorder(path),
            options=ending,
        )
        theta = np.append(np.asarray(result.x), theta[-1])
    return _ended(function, objective, theta, path)


def adam(
    fleet: Fleet,
    concurrency: int,
    objective: Objective,
    start: FloatArray,
    *,
    server_rate: float | None = None,
    steps: int = 3000,
    step_size: float = 1e-3,
    decay: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
) -> Descent:
    """The paper's descent: Adam with its default settings on the objective itself, in softmax.

    A class of identical clients moves as its members would one by one, since their gradients agree.
    """
    function = OverRoutings(fleet, concurrency, LogObjective(objective), server_rate=server_rate)
    theta = _coordinates(start)
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
    return _ended(function, objective, theta, path)


def _recorder(path: list[float]) -> Callable[..., Any]:
    return lambda intermediate_result: path.append(float(intermediate_result.fun))


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

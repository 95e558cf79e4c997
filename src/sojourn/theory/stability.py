r"""How large a step delayed gradients bear, and the noise they leave, on a quadratic.

The model: curvature h, step :math:`a = \eta h`, and m tasks in flight whose service is memoryless
and equally fast, so that the next to complete is any of them (never-queue with m = n equal
clients). The updates' weights have mean 1 and mean square :math:`\kappa`, independently of the
rest. In steady state let :math:`u = E[x^2]`, :math:`c = E[x y]` for the weights :math:`y` that a
task was sent with, and :math:`d = E[y y']` for two tasks. A completion makes :math:`x - a w y` of
:math:`x` and sends it, so :math:`d = c - a d` and :math:`c = u/m + (1 - 1/m)(c - a d)`; hence
:math:`c = u (1 + a)/(1 + a m)`, and u is stationary where :math:`2 a c = a^2 \kappa u` plus the noise.
"""

import math

from sojourn._support.checks import check_number
from sojourn.errors import InvalidInput
from sojourn.fleet import check_concurrency


def largest_stable_step(tasks: int, weight_square: float = 1.0) -> float:
    r"""The step :math:`a = \eta h` below which delayed gradient descent is stable in mean square.

    .. math::

        a < \frac{2 - \kappa + \sqrt{(2 - \kappa)^2 + 8 \kappa m}}{2 \kappa m}
        \approx \sqrt{\frac{2}{\kappa m}}

    ``tasks`` is m, ``weight_square`` :math:`\kappa \ge 1` (``Analysis.weight_square``; 1 for equal
    weights). It falls with the root of m, not with m: tasks in flight are nearly free up to
    :math:`m \approx 1/a`. Exact for the model of this module; a guide where speeds differ, since
    there weights go with speed.

    >>> largest_stable_step(1), round(largest_stable_step(30), 4)
    (2.0, 0.2754)
    """
    m, kappa = check_concurrency(tasks), _weight_square(weight_square)
    lead = 2.0 - kappa
    return (lead + math.sqrt(lead * lead + 8.0 * kappa * m)) / (2.0 * kappa * m)


def stationary_variance(step: float, tasks: int, weight_square: float = 1.0) -> float:
    r"""The variance that gradient noise leaves, :math:`E[x^2]/(\eta^2 s^2)`, at ``step`` a.

    .. math:: \frac{\kappa (1 + a m)}{a (2 + 2 a - \kappa a (1 + a m))}

    With :math:`\kappa = 1` the loss above its minimum, :math:`h E[x^2]/2`, is
    :math:`\frac12 \eta s^2 (1 + a m)/(2 + a - a^2 m)`.

    >>> round(stationary_variance(0.2, 10), 3), round(stationary_variance(0.05, 30), 2)
    (8.333, 25.32)
    """
    a, m = check_number("step", step, above=0.0), check_concurrency(tasks)
    kappa = _weight_square(weight_square)
    left = 2.0 + 2.0 * a - kappa * a * (1.0 + a * m)
    if left <= 0.0:
        raise InvalidInput(
            f"a step of {a:g} with {m} tasks in flight is unstable: the largest stable one is "
            f"{largest_stable_step(m, kappa):.4g}"
        )
    return kappa * (1.0 + a * m) / (a * left)


def _weight_square(value: float) -> float:
    return check_number("weight_square", value, least=1.0 - 1e-9)

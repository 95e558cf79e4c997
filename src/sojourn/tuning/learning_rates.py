r"""Where to look for learning rates: a grid around the stable step for the measured curvature."""

import math

from sojourn.rules import Rule

STEPS_BELOW, STEPS_ABOVE = 5, 2
"""Grid points on either side of the stable step."""
FACTOR = 2.0
MOST_EXTENSIONS = 3


def stable_step(tasks: int, weight_square: float = 1.0) -> float:
    r"""The largest step times curvature at which delayed steps do not blow up.

    .. math:: a < \frac{1 + \sqrt{1 + 8 m}}{2 m}

    for m memoryless tasks in flight, none of which waits; with weights of mean square
    :math:`\kappa` about :math:`\sqrt{2/(\kappa m)}`.

    >>> round(stable_step(1), 3), round(stable_step(30), 3)
    (2.0, 0.275)
    """
    plain = (1.0 + math.sqrt(1.0 + 8.0 * tasks)) / (2.0 * tasks)
    return min(plain, math.sqrt(2.0 / (weight_square * tasks))) if weight_square > 1 else plain


def grid(
    rule: Rule, curvature: float, *, tasks: int, weight_square: float, number: int
) -> tuple[float, ...]:
    """``number`` learning rates for ``rule``, a factor of two apart, around its stable step.

    Momentum multiplies a step by 1/(1 - beta) in the long run, and Adam's steps have a size of their
    own, whatever the curvature.
    """
    server = getattr(rule, "server", None)
    kind = getattr(server, "name", "plain")
    if kind == "adam" or rule.name == "fadas":
        centre = 3e-3
    else:
        centre = stable_step(tasks, weight_square) / max(curvature, 1e-12)
        if kind == "momentum":
            centre *= 1.0 - float(getattr(server, "beta", 0.9))
    below = round(STEPS_BELOW / (STEPS_BELOW + STEPS_ABOVE) * (number - 1))
    exponents = range(-below, number - below)
    return tuple(rounded(centre * FACTOR**k) for k in exponents)


def extended(rates: tuple[float, ...], side: str, number: int = 2) -> tuple[float, ...]:
    """``number`` further learning rates beyond an edge of ``rates``.

    >>> extended((0.1, 0.2), "above")
    (0.4, 0.8)
    """
    if side == "above":
        return tuple(rounded(max(rates) * FACTOR ** (k + 1)) for k in range(number))
    return tuple(rounded(min(rates) / FACTOR ** (k + 1)) for k in range(number))


def rounded(rate: float) -> float:
    """Two significant digits: nobody wants to read more, and nothing depends on them."""
    return float(f"{rate:.2g}")

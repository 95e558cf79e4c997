r"""Where to look for learning rates: a grid around the stable step for the measured curvature."""

from sojourn.rules import Rule
from sojourn.stability import largest_stable_step

STEPS_BELOW, STEPS_ABOVE = 5, 2
"""Grid points on either side of the stable step."""
FACTOR = 2.0
MOST_EXTENSIONS = 4


def grid(
    rule: Rule, curvature: float, *, tasks: int, weight_square: float, number: int
) -> tuple[float, ...]:
    """``number`` learning rates for ``rule``, a factor of two apart, around its stable step.

    Momentum multiplies a step by 1/(1 - beta) in the long run, a gradient of several local steps is
    their sum, and Adam's steps have a size of their own, whatever the curvature.

    >>> from sojourn.rules import AsyncSGD
    >>> [grid(AsyncSGD(local_steps=k), 1.0, tasks=1, weight_square=1.0, number=3) for k in (1, 4)]
    [(1.0, 2.0, 4.0), (0.25, 0.5, 1.0)]
    """
    server = getattr(rule, "server", None)
    kind = getattr(server, "name", "plain")
    if kind == "adam" or rule.name == "fadas":
        centre = 5e-3
    else:
        centre = largest_stable_step(tasks, weight_square) / max(curvature, 1e-12)
        if rule.sends == "gradient":
            centre /= rule.local_steps
        if kind == "momentum":
            centre *= 1.0 - float(getattr(server, "beta", 0.9))
    below = round(STEPS_BELOW / (STEPS_BELOW + STEPS_ABOVE) * (number - 1))
    exponents = range(-below, number - below)
    return tuple(rounded(centre * FACTOR**k) for k in exponents)


def extended(rates: tuple[float, ...], side: str) -> tuple[float, ...]:
    """``rates`` with one more beyond an edge.

    >>> extended((0.1, 0.2), "above"), extended((0.1, 0.2), "below")
    ((0.1, 0.2, 0.4), (0.05, 0.1, 0.2))
    """
    if side == "above":
        return *rates, rounded(max(rates) * FACTOR)
    return rounded(min(rates) / FACTOR), *rates


def rounded(rate: float) -> float:
    """Two significant digits: nobody wants to read more, and nothing depends on them."""
    return float(f"{rate:.2g}")

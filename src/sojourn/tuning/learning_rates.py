r"""Which learning rates to try: a grid around the stable step for the measured curvature."""

from collections.abc import Sequence

from sojourn.rules import Rule, learning_rate_scale
from sojourn.theory.stability import largest_stable_step

STEPS_BELOW, STEPS_ABOVE = 5, 2
"""Grid points on either side of the stable step."""
FACTOR = 2.0
"""The ratio of neighbouring learning rates."""


def grid(
    rule: Rule, curvature: float, *, tasks: int, weight_square: float, number: int
) -> tuple[float, ...]:
    """``number`` learning rates for ``rule``, a factor of two apart, around its stable step.

    The rule says how its learning rate scales with that step: `sojourn.rules.learning_rate_scale`.

    >>> from sojourn.rules import AsyncSGD
    >>> [grid(AsyncSGD(local_steps=k), 1.0, tasks=1, weight_square=1.0, number=3) for k in (1, 4)]
    [(1.0, 2.0, 4.0), (0.25, 0.5, 1.0)]
    """
    stable = largest_stable_step(tasks, weight_square) / max(curvature, 1e-12)
    centre = learning_rate_scale(rule, stable)
    below = round(STEPS_BELOW / (STEPS_BELOW + STEPS_ABOVE) * (number - 1))
    exponents = range(-below, number - below)
    return tuple(rounded(centre * FACTOR**k) for k in exponents)


def next_rate(rates: Sequence[float], rate: float, *, up: bool) -> float:
    """The next larger or smaller of ``rates``; beyond their edge, twice or half of ``rate``.

    >>> next_rate((0.1, 0.2), 0.1, up=True), next_rate((0.1, 0.2), 0.1, up=False)
    (0.2, 0.05)
    """
    if up:
        return min((r for r in rates if r > rate), default=rounded(rate * FACTOR))
    return max((r for r in rates if r < rate), default=rounded(rate / FACTOR))


def rounded(rate: float) -> float:
    """Two significant digits: nobody wants to read more, and nothing depends on them."""
    return float(f"{rate:.2g}")

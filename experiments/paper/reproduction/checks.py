"""From numbers to outcomes: the few comparisons by which statements are judged."""

import math
from collections.abc import Sequence

from reproduction.intervals import Interval
from reproduction.verdict import OUTCOMES, Outcome


def holds(condition: bool) -> Outcome:
    """A statement that exact computation decides.

    >>> holds(2 > 1)
    'reproduces'
    """
    return "reproduces" if condition else "does not reproduce"


def close(found: float, said: float, *, relative: float) -> Outcome:
    """Whether a number is the one that was said, up to a relative difference.

    >>> close(16_932, 17_000, relative=0.05), close(104, 145, relative=0.05)
    ('reproduces', 'does not reproduce')
    """
    return holds(math.isfinite(found) and abs(found - said) <= relative * abs(said))


def above(interval: Interval, bound: float = 0.0) -> Outcome:
    """Whether something is larger than ``bound``, as far as its interval tells.

    >>> above(Interval(2.0, 1.0, 3.0, 4)), above(Interval(2.0, -1.0, 5.0, 4))
    ('reproduces', 'inconclusive')
    >>> above(Interval(2.0, 1.0, 3.0, 4), bound=5.0)
    'does not reproduce'
    """
    side = interval.side(of=bound)
    return "inconclusive" if side == 0 else holds(side > 0)


def alike(interval: Interval, within: float) -> Outcome:
    """Whether a difference is surely small, or surely not.

    Its interval wholly inside ``within`` on either side reproduces, wholly outside does not. A mean
    near zero of differences that scatter proves nothing.

    >>> alike(Interval(0.0, -0.02, 0.02, 4), within=0.05), alike(Interval(0.0, -0.2, 0.2, 4), 0.05)
    ('reproduces', 'inconclusive')
    >>> alike(Interval(0.2, 0.1, 0.3, 4), within=0.05)
    'does not reproduce'
    """
    low, high = interval.side(of=-within), interval.side(of=within)
    if low > 0 > high:
        return "reproduces"
    return "does not reproduce" if low < 0 or high > 0 else "inconclusive"


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """Several comparisons that must all hold, as one outcome."""
    for outcome in ("does not reproduce", "data not found", "inconclusive"):
        if outcome in outcomes:
            return OUTCOMES[OUTCOMES.index(outcome)]
    return "reproduces" if outcomes else "inconclusive"

"""From numbers to outcomes: the few comparisons by which statements are judged."""

import math
import statistics
from collections.abc import Sequence

from scipy import stats

from sojourn.report.verdict import Outcome

CONFIDENCE = 0.95


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


def greater(differences: Sequence[float]) -> Outcome:
    """Whether paired differences are positive in the mean, beyond chance.

    A one-sided t-test on the differences over seeds, at 95 %: significantly above zero reproduces,
    significantly below does not, and anything between cannot be told with so few seeds.

    >>> greater([0.06, 0.05, 0.07]), greater([0.06, -0.05, 0.0]), greater([-0.06, -0.05, -0.07])
    ('reproduces', 'cannot be told here', 'does not reproduce')
    """
    if len(differences) < 2 or not all(math.isfinite(value) for value in differences):
        return "cannot be told here"
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    margin = float(stats.t.ppf(CONFIDENCE, len(differences) - 1)) * error
    if mean - margin > 0:
        return "reproduces"
    return "does not reproduce" if mean + margin < 0 else "cannot be told here"


def clearly_greater(ratio: float, *, factor: float) -> Outcome:
    """Whether a ratio is clearly above one: beyond ``factor`` yes, below its inverse no.

    >>> clearly_greater(2.0, factor=1.5), clearly_greater(1.2, factor=1.5)
    ('reproduces', 'cannot be told here')
    """
    if not math.isfinite(ratio):
        return "cannot be told here"
    if ratio >= factor:
        return "reproduces"
    return "does not reproduce" if ratio <= 1 / factor else "cannot be told here"

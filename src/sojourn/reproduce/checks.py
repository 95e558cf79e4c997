"""From numbers to outcomes: the few comparisons by which statements are judged."""

import math
from collections.abc import Sequence

from scipy import stats

from sojourn.estimate import Estimate
from sojourn.reproduce.verdict import Outcome

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
    mean, margin = Estimate.from_samples(differences).mean, margin_of(differences)
    if mean - margin > 0:
        return "reproduces"
    return "does not reproduce" if mean + margin < 0 else "cannot be told here"


def alike(differences: Sequence[float], *, within: float) -> Outcome:
    """Whether paired differences are surely small, or surely not.

    The mean with its one-sided 95 % margin on either side: wholly inside ``within`` reproduces,
    wholly outside does not. A mean near zero of differences that scatter proves nothing.

    >>> alike([0.01, 0.02, 0.0], within=0.05), alike([0.4, -0.4, 0.0], within=0.05)
    ('reproduces', 'cannot be told here')
    >>> alike([0.10, 0.11, 0.12], within=0.05)
    'does not reproduce'
    """
    if len(differences) < 2 or not all(math.isfinite(value) for value in differences):
        return "cannot be told here"
    mean, margin = abs(Estimate.from_samples(differences).mean), margin_of(differences)
    if mean + margin <= within:
        return "reproduces"
    return "does not reproduce" if mean - margin > within else "cannot be told here"


def less_variance(own: float, rival: float, *, runs: int) -> Outcome:
    """Whether a variance estimated from ``runs`` runs is below another, beyond chance.

    An F-test at 95 % with ``runs - 1`` degrees of freedom on either side.

    >>> less_variance(1.0, 30.0, runs=3), less_variance(1.0, 5.0, runs=3)
    ('reproduces', 'cannot be told here')
    >>> less_variance(5.0, 1.0, runs=10)
    'does not reproduce'
    """
    told = math.isfinite(own) and math.isfinite(rival) and max(own, rival) > 0
    if runs < 2 or not told:
        return "cannot be told here"
    critical = float(stats.f.ppf(CONFIDENCE, runs - 1, runs - 1))
    if rival >= critical * own:
        return "reproduces"
    return "does not reproduce" if own >= critical * rival else "cannot be told here"


def margin_of(differences: Sequence[float]) -> float:
    """How far the mean of differences may be off to one side, at 95 %: ``nan`` for a single one."""
    if len(differences) < 2:
        return math.nan
    error = float(Estimate.from_samples(differences).standard_error)
    return float(stats.t.ppf(CONFIDENCE, len(differences) - 1)) * error

"""Protection against clients that lie, fail or change their speed: a `Guard` and its parts."""

from sojourn.deployment.guard.guard import Guard, GuardState, screens_named
from sojourn.deployment.guard.norm import Norm
from sojourn.deployment.guard.screens import Median, Reference, Screen, Submission, Verdict

__all__ = [
    "Guard",
    "GuardState",
    "Median",
    "Norm",
    "Reference",
    "Screen",
    "Submission",
    "Verdict",
    "screens_named",
]

"""Fleets from what was seen: a log of who took how long becomes rates, laws and classes."""

from sojourn.observed.estimate import ClassEstimate, estimate_fleet
from sojourn.observed.fit import Fit, fit_law
from sojourn.observed.log import Durations, read_log, read_run

__all__ = [
    "ClassEstimate",
    "Durations",
    "Fit",
    "estimate_fleet",
    "fit_law",
    "read_log",
    "read_run",
]

"""Fleets from what was seen: a log of who took how long becomes rates, laws and classes."""

from sojourn.observed.estimate import ClassEstimate, estimate_fleet
from sojourn.observed.fit import Fit, fit_law
from sojourn.observed.log import Durations, read_log, read_run
from sojourn.observed.presence import Presence, read_presence

__all__ = [
    "ClassEstimate",
    "Durations",
    "Fit",
    "Presence",
    "estimate_fleet",
    "fit_law",
    "read_log",
    "read_presence",
    "read_run",
]

"""Fleets from what was seen: a log of who took how long becomes rates, laws and classes."""

from sojourn.fleet.from_logs.estimate import ClassEstimate, estimate_fleet
from sojourn.fleet.from_logs.fit import Fit, fit_law
from sojourn.fleet.from_logs.log import Durations, TaskLog, read_log, read_tasks
from sojourn.fleet.from_logs.presence import Presence, read_presence
from sojourn.fleet.from_logs.rows import BadRow

__all__ = [
    "BadRow",
    "ClassEstimate",
    "Durations",
    "Fit",
    "Presence",
    "TaskLog",
    "estimate_fleet",
    "fit_law",
    "read_log",
    "read_presence",
    "read_tasks",
]

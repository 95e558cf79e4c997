"""Fleets from what was seen: a log of who took how long becomes rates, laws and classes."""

from sojourn.fleet.from_logs.columns import BadRow as BadRow
from sojourn.fleet.from_logs.estimate import (
    ClassEstimate as ClassEstimate,
    Fit as Fit,
    estimate_fleet as estimate_fleet,
    fit_law as fit_law,
)
from sojourn.fleet.from_logs.log import (
    Durations as Durations,
    TaskLog as TaskLog,
    read_log as read_log,
    read_tasks as read_tasks,
)
from sojourn.fleet.from_logs.presence import Presence as Presence, read_presence as read_presence

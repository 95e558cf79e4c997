"""Times and spans as logs write them: numbers, epoch times of any unit, dates, clock readings."""

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo

import numpy as np

from sojourn._support.csv_table import as_number
from sojourn.errors import InvalidInput
from sojourn.types import FloatArray

EPOCH_UNITS = {1e17: 1e-9, 1e14: 1e-6, 1e11: 1e-3}
"""Times since 1970 from these numbers on are in nanoseconds, microseconds and milliseconds."""
UNITS = {
    1e-9: ("ns", "nanos", "nanoseconds"),
    1e-6: ("us", "µs", "μs", "micros", "microseconds"),
    1e-3: ("ms", "msec", "msecs", "millis", "milliseconds"),
    1.0: ("s", "sec", "secs", "second", "seconds"),
    60.0: ("min", "mins", "minute", "minutes"),
    3600.0: ("h", "hr", "hrs", "hour", "hours"),
}
"""Seconds of a unit, and what it is called in a column's name or behind a number."""
SECONDS = {name: seconds for seconds, names in UNITS.items() for name in names}
MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
_YEAR_FIRST = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ]+|$)(.*)")
_YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})(?:[,T ]+|$)(.*)")
_DAY_MONTH_NAME = re.compile(
    r"(?:[A-Za-z]{3},? )?(\d{1,2})[-/ ]([A-Za-z]{3})[a-z]*[-/ ](\d{4})[,: T]*(.*)"
)
_MONTH_NAME_DAY = re.compile(
    r"(?:[A-Za-z]{3},? )?([A-Za-z]{3})[a-z]* (\d{1,2}),? (\d{4})[,@ ]*(.*)"
)
_CLOCK = re.compile(
    r"(\d{1,2}):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?\s*([AaPp])?(?:\.?[Mm]\.?)?\s*"
    r"(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?(?: ?(?:UTC|GMT|\[[\w/+-]+\]|\([\w ]+\)))?"
)
_DATED = re.compile(
    r"\d{4}[-/]\d|\d{4}\.\d{1,2}\.\d|\d{8}T\d|\d{1,2}([-/.])\d{1,2}\1\d{4}|.*[A-Za-z]{3}"
)
_CLOCK_SPAN = re.compile(
    r"(?:(\d+) days?,? )?(\d+):([0-5]?\d):([0-5]?\d(?:[.,]\d+)?)", re.IGNORECASE
)
_ISO_SPAN = re.compile(r"P(?:(\d+)D)?T?(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:[.,]\d+)?)S)?")
_BETWEEN = ("/", "-")
_WITH_UNIT = re.compile(r"([+-]?[\d.,]+(?:[eE][+-]?\d+)?)\s*([a-zµμ]+)")


class Ambiguous(ValueError):
    """A date such as 3/4/2025, of which nothing says whether the day or the month comes first."""


class TimeReader:
    """Reads the times of one file, and counts those without a time zone.

    ``form`` is a format of ``strptime`` for all of them; ``zone`` that of times without one. Dates that
    begin with the day or the month are read by what `learn` saw in the file.
    """

    def __init__(
        self, form: str | None = None, zone: tzinfo = UTC, *, decimal_comma: bool = False
    ) -> None:
        self.form, self.zone, self.decimal_comma = form, zone, decimal_comma
        self.without_zone = 0
        self.day_first: bool | None = None

    def learn(self, fields: Iterable[str]) -> None:
        """Find out whether days or months come first: a number above 12 is a day."""
        first = second = False
        for given in fields:
            # Most logs have no such date: a look at its second or third letter saves the rest.
            if (given[1:2] in _BETWEEN or given[2:3] in _BETWEEN) and (
                found := _YEAR_LAST.match(given)
            ):
                first |= int(found[1]) > 12
                second |= int(found[3]) > 12
        self.day_first = None if first == second else first

    def is_date(self, given: str) -> bool:
        """Whether a field is a date rather than a number."""
        if len(given) >= 10 and given[4] == "-" and given[:4].isdecimal():
            return True
        return self.form is not None or _DATED.match(given) is not None

    def parse(self, given: str) -> float:
        """A number as it is, or a date in seconds since 1970; else ``ValueError``.

        >>> reader = TimeReader()
        >>> reader.parse("2024-05-01T12:00:00+02:00") - reader.parse("2024-05-01T10:00:00Z")
        0.0
        >>> reader.parse("May 1, 2024 @ 10:00:00.500") - reader.parse("01.05.2024 10:00")
        0.5
        """
        if not self.is_date(given):
            return finite_number(given, self.decimal_comma)
        if self.form is not None:
            moment = datetime.strptime(given, self.form)
        else:
            try:
                moment = datetime.fromisoformat(given)
            except ValueError:
                moment = self._dated(given)
        if moment.tzinfo is None:
            self.without_zone += 1
            moment = moment.replace(tzinfo=self.zone)
        return moment.timestamp()

    def _dated(self, given: str) -> datetime:
        if found := _YEAR_FIRST.fullmatch(given):
            year, month, day = int(found[1]), int(found[2]), int(found[3])
        elif found := _YEAR_LAST.fullmatch(given):
            # With dots the day comes first wherever dates are written so.
            day_first = True if found[2] == "." else self.day_first
            if day_first is None:
                raise Ambiguous(given)
            day, month = (int(found[1]), int(found[3]))[:: 1 if day_first else -1]
            year = int(found[4])
        elif found := _DAY_MONTH_NAME.fullmatch(given):
            day, month, year = int(found[1]), MONTHS.get(found[2].lower(), 0), int(found[3])
        elif found := _MONTH_NAME_DAY.fullmatch(given):
            day, month, year = int(found[2]), MONTHS.get(found[1].lower(), 0), int(found[3])
        else:
            raise ValueError(given)
        rest = found[found.re.groups].strip()
        return _with_clock(datetime(year, month, day), rest) if rest else datetime(year, month, day)


def _with_clock(day: datetime, text: str) -> datetime:
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(text)
    hour, minute, second = int(found[1]), int(found[2]), int(found[3] or 0)
    if found[5]:
        if not 1 <= hour <= 12:
            raise ValueError(text)
        hour = hour % 12 + (12 if found[5] in "Pp" else 0)
    micro = int(f"{found[4] or '0':0<6.6}")
    moment = day.replace(hour=hour, minute=minute, second=second, microsecond=micro)
    zone = found[6]
    if zone is None:
        return moment
    if zone in ("Z", "UTC", "GMT"):
        return moment.replace(tzinfo=UTC)
    return moment.replace(tzinfo=datetime.strptime(f"{zone:0<5}".replace(":", ""), "%z").tzinfo)


def clock_format(given: str) -> str:
    """How the time of day behind a date is written, as for ``strptime``.

    >>> clock_format("06/10/2024 06:13:20 AM"), clock_format("6/10/2024 18:13")
    ('%I:%M:%S %p', '%H:%M')
    """
    found = re.search(r"\d:\d\d(:\d\d)?([.,]\d+)?( ?[AaPp][Mm])?", given)
    seconds, fraction, half = found.groups(default="") if found else ("", "", "")
    clock = f"%{'I' if half else 'H'}:%M{':%S' if seconds else ''}"
    return f"{clock}{f'{fraction[0]}%f' if fraction else ''}{' ' * (half[:1] == ' ')}{'%p' if half else ''}"


def time_zone(name: str) -> tzinfo:
    """The zone of a name such as ``Europe/Paris``."""
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise InvalidInput(
            f"--time-zone '{name}' is not known here: give a name such as UTC or Europe/Paris"
        ) from error


def seconds_per_unit(times: FloatArray) -> float:
    """The unit of most numbers: epoch times tell theirs by their size, others are seconds.

    >>> seconds_per_unit(np.array([1.7e12, 1.7e12, 3.0])), seconds_per_unit(np.array([0.0, 50.0]))
    (0.001, 1.0)
    """
    known = np.abs(times[np.isfinite(times)])
    middle = float(np.median(known)) if known.size else 0.0
    return next((unit for least, unit in EPOCH_UNITS.items() if middle >= least), 1.0)


def parse_moment(given: str, zone: tzinfo = UTC) -> float:
    """One time in seconds, such as the end of a log given on the command line."""
    reader = TimeReader(zone=zone)
    value = reader.parse(given)
    return value if reader.is_date(given) else value * seconds_per_unit(np.array([value]))


def parse_span(given: str, scale: float = 1.0, decimal_comma: bool = False) -> float:
    """A span in seconds: a number of units of ``scale`` seconds, or one with a unit of its own.

    >>> [parse_span(text) for text in ("1.5", "298 ms", "0:01:30.5", "1 days 00:00:01", "PT2M")]
    [1.5, 0.298, 90.5, 86401.0, 120.0]
    """
    try:
        return scale * finite_number(given, decimal_comma)
    except ValueError:
        if (found := _WITH_UNIT.fullmatch(given)) and found[2] in SECONDS:
            return SECONDS[found[2]] * finite_number(found[1], decimal_comma)
        found = _CLOCK_SPAN.fullmatch(given) or _ISO_SPAN.fullmatch(given)
        if found is None or not any(found.groups()):
            raise
        days, hours, minutes = (int(found[k] or 0) for k in (1, 2, 3))
        seconds = float((found[4] or "0").replace(",", "."))
        return timedelta(days, 0, 0, 0, minutes, hours).total_seconds() + seconds


def finite_number(given: str, decimal_comma: bool = False) -> float:
    """A finite number, or ``ValueError``; with ``decimal_comma``, 1.234,5 is 1234.5."""
    if decimal_comma and "," in given:
        given = given.replace(".", "").replace(",", ".")
    value = as_number(given)
    if not math.isfinite(value):
        raise ValueError(given)
    return value

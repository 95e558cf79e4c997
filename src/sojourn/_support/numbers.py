"""How numbers are written, in tables, sentences, pages and notebooks alike."""

import math
import re
from collections.abc import Mapping

DIGITS = 3
"""Significant digits of a number that was measured or computed."""
MOST_PLACES = 6
"""Digits after the point beyond which a number is written with its power of ten."""
UNKNOWN = "–"
PLUS_MINUS = " ± "


def or_null(value: float | None) -> float | None:
    """A number as JSON has it, which knows neither infinity nor ``nan``: both become null.

    >>> or_null(0.5), or_null(math.inf)
    (0.5, None)
    """
    return None if value is None or not math.isfinite(value) else value


def finite(values: object) -> object:
    """Values of tables and lists as `or_null` has them.

    >>> finite({"a": [1.0, math.inf]})
    {'a': [1.0, None]}
    """
    if isinstance(values, float):
        return or_null(values)
    if isinstance(values, Mapping):
        return {key: finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [finite(value) for value in values]
    return values


def number(value: float, digits: int = DIGITS, *, zeros: bool = False) -> str:
    """A number with so many significant digits, thousands apart, powers of ten where it is far from 1.

    With ``zeros`` a value that was rounded keeps its last zeros, so that it does not look exact.

    >>> [number(x) for x in (0.123456, 47_968.4, 5.39e5, 2.5e9, 1.23e-5, 30.0, math.nan)]
    ['0.123', '48,000', '539,000', '2.5e9', '1.23e-5', '30', '–']
    >>> number(1.0004, 4), number(1.0004, 4, zeros=True), number(1.0, 4, zeros=True)
    ('1', '1.000', '1')
    """
    if math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    rounded = float(f"{value:.{digits}g}")
    if rounded and not 1e-4 <= abs(rounded) < 1e9:
        mantissa, power = f"{rounded:.{digits - 1}e}".split("e")
        return f"{float(mantissa):g}e{int(power)}"
    places = digits - 1 - math.floor(math.log10(abs(rounded))) if rounded else 0
    text = f"{rounded:,.{max(0, places)}f}"
    if zeros and not math.isclose(rounded, value, rel_tol=1e-9):
        return text
    return text.rstrip("0").rstrip(".") if "." in text else text


def unbroken(text: str, space: str = "\u00a0") -> str:
    """Text with ``space`` wherever no line may break: inside "a ± b", and before a percent sign.

    >>> unbroken("0.12 ± 0.01 is 5 % worse", "_")
    '0.12_±_0.01 is 5_% worse'
    """
    return re.sub(r" (?=[±%])|(?<=±) ", space, text)


def plus_minus(mean: float, margin: float, form: str = "g") -> str:
    """A mean and its standard error, both in the format ``form``; a percent sign stands once.

    With significant digits (``g``) the error has two, and the mean ends at the same place.

    >>> plus_minus(1.25, 0.5, "+.1f"), plus_minus(0.47, 0.00694, "+.3g"), plus_minus(653.3, 4.2)
    ('+1.2 ± 0.5', '+0.4700 ± 0.0069', '653.3 ± 4.2')
    >>> plus_minus(12_345.6, 432.1), plus_minus(0.801, 0.01, ".1%"), plus_minus(0.5, math.nan)
    ('12,350 ± 430', '80.1 ± 1.0%', '0.5')
    """
    sign = "+" if form.startswith("+") and mean >= 0 else ""
    if not form.endswith("g"):
        error = "" if math.isnan(margin) else PLUS_MINUS + format(margin, form.lstrip("+"))
        return format(mean, form).removesuffix("%" if error else "") + error
    if math.isnan(margin):
        return sign + number(mean, int(form.lstrip("+")[1:-1] or DIGITS))
    places = 1 - math.floor(math.log10(margin)) if 0.0 < margin < math.inf else -1
    if places > MOST_PLACES or not 0.0 < margin < math.inf:
        return f"{sign}{number(mean)}{PLUS_MINUS}{number(margin, 2)}"
    mean, margin = round(mean, places), round(margin, places)
    return f"{sign}{mean:,.{max(0, places)}f}{PLUS_MINUS}{margin:,.{max(0, places)}f}"

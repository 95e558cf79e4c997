"""Reading TOML with full validation: wrong types and unknown keys are said, never ignored."""

import json
import sys
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

from sojourn._support.files import printable, read_text
from sojourn.errors import InvalidFile, UnknownName


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """What TOML says; ``InvalidFile`` if it is none, or beyond what Python can take in."""
    try:
        return cast("dict[str, Any]", without_control(tomllib.loads(text)))
    except tomllib.TOMLDecodeError as error:
        raise InvalidFile(f"{where}: not valid TOML: {error}") from error
    except RecursionError:
        raise InvalidFile(f"{where}: not valid TOML: values are nested too deeply") from None
    except ValueError:
        raise InvalidFile(f"{where}: not valid TOML: a number or date is out of range") from None


def parse_json(text: str, where: str) -> Any:
    """What JSON says; ``InvalidFile`` as for TOML."""
    try:
        values = json.loads(text)
        # Control characters stand in JSON behind a backslash, or above 0x7e.
        return without_control(values) if "\\" in text or not text.isascii() else values
    except json.JSONDecodeError as error:
        raise InvalidFile(f"{where}: not valid JSON: {error.msg}") from error
    except RecursionError:
        raise InvalidFile(f"{where}: not valid JSON: values are nested too deeply") from None
    except ValueError:
        raise InvalidFile(f"{where}: not valid JSON: a number is out of range") from None


def without_control(value: object) -> object:
    r"""Values of a file with control characters in its texts and keys escaped; line ends stay.

    Files come from others, and what they say is printed: it must not reach the terminal as commands.

    >>> without_control({"name": ["\x1b[2J"]})
    {'name': ['\\x1b[2J']}
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [without_control(entry) for entry in value]
    if isinstance(value, dict):
        return {printable(key): without_control(entry) for key, entry in value.items()}
    return value


def check_shape(value: object, shape: object, where: str) -> None:
    """Raise ``InvalidFile`` unless ``value``, out of a JSON file, looks like ``shape``.

    A shape is ``str``, ``int`` or ``float`` (a finite number) or a tuple of these and ``None``, a list
    of one shape for lists of it, or a dictionary of shapes by key; a key that ends in a question mark
    may be missing, and other keys are left alone.

    >>> check_shape({"scores": [1.0, "x"]}, {"scores": [(float, None)]}, "tune.json")
    Traceback (most recent call last):
    sojourn.errors.InvalidFile: tune.json: scores[1] must be a number or null; it is 'x'
    >>> check_shape("{1}", {}, "{0}.json")
    Traceback (most recent call last):
    sojourn.errors.InvalidFile: {0}.json: what it holds must be a table; it is '{1}'
    """
    _check_shape(value, shape, where, "")


def _check_shape(value: object, shape: object, where: str, place: str) -> None:
    def wrong(wanted: str) -> InvalidFile:
        what = place or "what it holds"
        return InvalidFile(f"{where}: {what} must be {wanted}; it is {_shown(value)}")

    if isinstance(shape, dict):
        if not isinstance(value, dict):
            raise wrong("a table")
        for key, inner in shape.items():
            name = key.removesuffix("?")
            if name in value:
                _check_shape(value[name], inner, where, f"{place}.{name}".lstrip("."))
            elif name == key:
                raise InvalidFile(f"{where}: {f'{place}.{name}'.lstrip('.')} is missing")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise wrong("a list")
        for i, entry in enumerate(value):
            _check_shape(entry, shape[0], where, f"{place}[{i}]")
    else:
        kinds = shape if isinstance(shape, tuple) else (shape,)
        if not any(_is_of(value, kind) for kind in kinds):
            names = " or ".join("null" if kind is None else _NAMES[kind] for kind in kinds)
            raise wrong(names)


def _is_of(value: object, kind: type | None) -> bool:
    if kind is None or isinstance(value, bool):
        return value is None if kind is None else kind is bool
    if kind is float:
        return isinstance(value, int | float) and -LARGEST_FLOAT <= value <= LARGEST_FLOAT
    if kind is int:
        return isinstance(value, int) and -(2**63) <= value < 2**63  # what an array holds
    return isinstance(value, kind)


class Table:
    """One table of a TOML file, read key by key; ``close`` refuses what was not asked for.

    >>> table = Table({"concurrency": 30, "learning-rat": 0.1}, "plan.toml")
    >>> table.take("concurrency", int)
    30
    >>> table.take("learning-rate", float, default=None)
    >>> table.close()
    Traceback (most recent call last):
    sojourn.errors.InvalidFile: plan.toml: unknown key 'learning-rat': did you mean 'learning-rate'? \
Offered: concurrency, learning-rate.
    """

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = dict(values)
        self.where = where
        self._asked: list[str] = []

    @classmethod
    def read(cls, path: str | Path) -> "Table":
        """The whole file as one table; unreadable or malformed files raise ``InvalidFile``."""
        return cls(parse_toml(read_text(path, encoding="utf-8"), str(path)), str(path))

    def take(
        self,
        key: str,
        kind: type | tuple[type, ...],
        *,
        least: float | None = None,
        most: float | None = None,
        **default: object,
    ) -> Any:
        """The value of ``key``, of type ``kind``; missing without ``default=`` is an error.

        Whole numbers are taken where a float is wanted; true and false are never numbers. A number
        must lie between ``least`` and ``most``.

        >>> Table({"threads": 0}, "mine.toml").take("threads", int, least=1)
        Traceback (most recent call last):
        sojourn.errors.InvalidFile: mine.toml: 'threads' must be at least 1; it is 0
        """
        self._asked.append(key)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if key not in self.values:
            if "default" in default:
                return default["default"]
            raise InvalidFile(f"{self.where}: the key '{key}' is missing")
        value = self.values.pop(key)
        if isinstance(value, bool) and bool not in kinds:
            matches = False
        else:
            matches = isinstance(value, kinds) or (float in kinds and isinstance(value, int))
        if not matches:
            wanted = " or ".join(_NAMES.get(k, k.__name__) for k in kinds)
            raise InvalidFile(f"{self.where}: '{key}' must be {wanted}; it is {_shown(value)}")
        if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
            raise InvalidFile(f"{self.where}: '{key}' is too large: {_shown(value)}")
        bounds = {"at least": least, "at most": most}
        given = [f"{words} {bound:,.10g}" for words, bound in bounds.items() if bound is not None]
        if isinstance(value, int | float) and not (
            (least is None or value >= least) and (most is None or value <= most)
        ):
            must = " and ".join(given)
            raise InvalidFile(f"{self.where}: '{key}' must be {must}; it is {_shown(value)}")
        if float in kinds and isinstance(value, int) and int not in kinds:
            return float(value)
        return value

    def table(self, key: str, **default: Any) -> "Table":
        """The sub-table ``key`` as a ``Table`` of its own."""
        return Table(self.take(key, dict, **default), f"{self.where}: [{key}]")

    def optional_table(self, key: str) -> "Table | None":
        """The sub-table ``key``, or ``None`` where there is none."""
        values = self.take(key, dict, default=None)
        return None if values is None else Table(values, f"{self.where}: [{key}]")

    def tables(self, key: str, **default: Any) -> "list[Table]":
        """The array of tables ``[[key]]``."""
        entries = self.take(key, list, **default)
        for entry in entries:
            if not isinstance(entry, dict):
                raise InvalidFile(f"{self.where}: '{key}' must be written as [[{key}]] tables")
        return [
            Table(entry, f"{self.where}: [[{key}]] number {i}")
            for i, entry in enumerate(entries, start=1)
        ]

    def close(self, inside: Mapping[str, Collection[str]] | None = None) -> None:
        """Raise if any key was never asked for, naming the nearest one that exists.

        ``inside`` maps tables of this one to the keys that belong there.
        """
        for key in self.values:
            for table, keys in (inside or {}).items():
                if key in keys and key not in self._asked:
                    raise InvalidFile(
                        f"{self.where}: '{key}' belongs inside '{table}': {table} = "
                        f'{{ name = "...", {key} = ... }}'
                    )
            raise InvalidFile(f"{self.where}: {UnknownName('key', key, self._asked)}")


LARGEST_FLOAT = sys.float_info.max
LARGEST = 10**30
"""The largest whole number: anything larger is a slip, and beyond what floating point can do."""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:60]}... ({len(text)} characters)"


_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}

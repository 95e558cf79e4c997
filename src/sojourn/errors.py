"""Every error that Sojourn raises on purpose.

    SojournError
    ├── InvalidInput (ValueError)      a value, file or name given by the user is wrong
    │   ├── InvalidFile                a file is unreadable, malformed or has unknown keys
    │   ├── UnknownName                a name is not one of those offered
    │   └── Unreachable                what was asked for cannot be attained; says what can
    ├── DataNotFound (FileNotFoundError)   a data set is not on this machine; says where to get it
    └── MissingExtra (ImportError)     an optional dependency is not installed

Each message says what was given, what is wrong with it, and what to do.
The command line prints the message alone and exits with code 2.
"""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


class SojournError(Exception):
    """Base of all errors raised by Sojourn."""


class InvalidInput(SojournError, ValueError):
    """A value given by the user is wrong."""


class InvalidFile(InvalidInput):
    """A file given by the user cannot be read as what it should be."""


class UnknownName(InvalidInput):
    """A name given by the user is not one of those offered.

    >>> raise UnknownName("law", "lognormall", ["exponential", "lognormal"])
    Traceback (most recent call last):
    sojourn.errors.UnknownName: unknown law 'lognormall': did you mean 'lognormal'? Offered: exponential, lognormal.
    >>> str(UnknownName("law", "?", ["exponential"]))
    "unknown law '?'. Offered: exponential."
    """

    def __init__(self, kind: str, given: str, offered: Iterable[str]) -> None:
        names = list(offered)
        self._given = kind, given, names
        near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.5)
        hint = f": did you mean '{near[0]}'?" if near else "."
        super().__init__(f"unknown {kind} '{given}'{hint} Offered: {', '.join(names)}.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors come back from other processes, pickled."""
        return UnknownName, self._given


@contextmanager
def reading(where: object) -> Iterator[None]:
    """Read the file, or the place in one, ``where``: what is found invalid meanwhile is invalid there.

    The message opens with the place, unless it does already, or there is none.

    >>> with reading("fleet.csv"):
    ...     raise InvalidInput("the law is missing")
    Traceback (most recent call last):
    sojourn.errors.InvalidFile: fleet.csv: the law is missing
    """
    try:
        yield
    except InvalidInput as error:
        place, text = str(where), str(error)
        if not place or (isinstance(error, InvalidFile) and text.startswith(place)):
            raise
        raise InvalidFile(text if text.startswith(place) else f"{place}: {text}") from error


class Unreachable(InvalidInput):
    """What was asked for cannot be attained; the message says what can."""


class DataNotFound(SojournError, FileNotFoundError):
    """A data set is not on this machine."""


EXTRAS = {
    "torch": "train",
    "sklearn": "train",
    "joblib": "train",
    "safetensors": "train",
    "distributed": "dask",
    "jinja2": "report",
    "markupsafe": "report",
    "matplotlib": "report",
    "plotly": "report",
    "flwr": "deploy",
    "psutil": "deploy",
    "prometheus_client": "metrics",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
}
"""Which extra brings a package that may be missing."""


class MissingExtra(SojournError, ImportError):
    """An optional dependency is not installed.

    >>> raise MissingExtra("torch", extra="train")
    Traceback (most recent call last):
    sojourn.errors.MissingExtra: this needs torch, which is not installed: pip install 'sojourn[train]'
    """

    def __init__(self, package: str, *, extra: str) -> None:
        self._given = package, extra
        super().__init__(
            f"this needs {package}, which is not installed: pip install 'sojourn[{extra}]'"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """As for `UnknownName`."""
        package, extra = self._given
        return partial(MissingExtra, extra=extra), (package,)


@contextmanager
def naming_extras() -> Iterator[None]:
    """Within, or in what it decorates, a package that is missing is said with the extra that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in EXTRAS:
            raise MissingExtra(package, extra=EXTRAS[package]) from error
        raise

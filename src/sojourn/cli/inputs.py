"""Command-line arguments turned into values: fleets, routings, learning constants."""

import csv
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from sojourn.bounds import LearningConstants
from sojourn.config import Table
from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.network import BUILT_IN_FLEETS, ROUTINGS, Fleet, Network, built_in_fleet, named_routing
from sojourn.types import FloatArray

FleetArgument = Annotated[
    str,
    typer.Argument(
        metavar="FLEET",
        help="CSV with a column service_rate and, optionally, count and name; or a built-in fleet: "
        + ", ".join(BUILT_IN_FLEETS)
        + ".",
    ),
]

DEFAULT_CONSTANTS = LearningConstants(
    initial_gap=2.3, smoothness=10.0, gradient_noise=1.0, heterogeneity=1.0
)
"""Typical of a ten-class classifier at its start: the loss is ln 10, the rest of order one to ten."""


def read_fleet(text: str) -> Fleet:
    """The fleet in the CSV file ``text``, or the built-in fleet of that name."""
    if text in BUILT_IN_FLEETS and not Path(text).exists():
        return built_in_fleet(text)
    if not Path(text).exists() and not text.endswith(".csv"):
        raise InvalidFile(
            f"{text}: no such file, and {UnknownName('built-in fleet', text, BUILT_IN_FLEETS)}"
        )
    return Fleet.from_csv(text)


def read_routing(text: str, fleet: Fleet) -> FloatArray:
    """A closed-form routing by name, or a CSV file with a column ``routing``, one row per class."""
    if text in ROUTINGS:
        return named_routing(fleet, text)
    path = Path(text)
    if not path.exists():
        raise InvalidFile(f"{text}: no such file, and {UnknownName('routing', text, ROUTINGS)}")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidFile(f"{text}: cannot be read as CSV ({error})") from error
    values = []
    for line, row in enumerate(rows, start=2):
        field = row.get("routing")
        try:
            values.append(float(field or ""))
        except ValueError:
            raise InvalidFile(
                f"{text}, line {line}: the column 'routing' must hold a number; it holds {field!r}"
            ) from None
    try:
        return Network(fleet, values, 1).routing
    except InvalidInput as error:
        raise InvalidFile(f"{text}: {error}") from error


def read_constants(text: str) -> LearningConstants:
    """Constants from ``L,sigma,M,A``, from a TOML file with a table ``[constants]``, or 'default'."""
    if text == "default":
        return DEFAULT_CONSTANTS
    if Path(text).exists() or text.endswith(".toml"):
        return _constants_from_file(text)
    try:
        smoothness, noise, heterogeneity, gap = (float(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput(
            "constants must be four numbers L,sigma,M,A separated by commas, a TOML file "
            f"written by `sojourn calibrate`, or 'default'; they are '{text}'"
        ) from None
    return LearningConstants(
        initial_gap=gap, smoothness=smoothness, gradient_noise=noise, heterogeneity=heterogeneity
    )


def _constants_from_file(text: str) -> LearningConstants:
    table = Table.read(text).table("constants")
    constants = LearningConstants.from_table(table)
    table.close()
    return constants


def printed(value: float) -> str:
    """A number for a table: four significant digits, plainly written where that is short."""
    if not np.isfinite(value):
        return str(value)
    return f"{value:.4g}"

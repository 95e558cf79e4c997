"""What people name, turned into values: fleets, routings and learning constants.

One reading for the command line, experiments and deployments. Paths are relative to ``folder``, by
default the current one, and a file beats a built-in name.
"""

import csv
import io
from pathlib import Path

import numpy as np

from sojourn.config import Table
from sojourn.constants import LearningConstants
from sojourn.errors import InvalidFile, InvalidInput, UnknownName
from sojourn.files import is_file, read_text
from sojourn.laws import fleet_laws
from sojourn.network import BUILT_IN_FLEETS, ROUTINGS, Fleet, Network, built_in_fleet, named_routing
from sojourn.types import FloatArray

DEFAULT_CONSTANTS = LearningConstants(
    initial_gap=2.3, smoothness=10.0, gradient_noise=1.0, heterogeneity=1.0
)
"""Typical of a ten-class classifier at its start: the loss is ln 10, the rest of order one to ten."""


def read_fleet(text: str, folder: Path | None = None) -> Fleet:
    """The fleet in the CSV file ``text``, or the built-in fleet of that name.

    >>> read_fleet("three-clusters")
    Fleet(30 clients in 3 classes, rates 0.01 to 1)
    """
    path = _located(text, folder)
    if is_file(path) or path.suffix == ".csv":
        fleet = Fleet.from_csv(path)
        try:
            fleet_laws(fleet)
        except InvalidInput as error:
            raise InvalidFile(f"{path}: {error}") from error
        return fleet
    if text in BUILT_IN_FLEETS:
        return built_in_fleet(text)
    raise InvalidFile(
        f"{path}: no such file, and {UnknownName('built-in fleet', text, BUILT_IN_FLEETS)}"
    )


def is_built_in(text: str, fleet: Fleet) -> bool:
    """Whether ``text`` names ``fleet`` wherever there is no file of that name."""
    return text in BUILT_IN_FLEETS and fleet == BUILT_IN_FLEETS[text]


def read_routing(text: str, fleet: Fleet, folder: Path | None = None) -> FloatArray:
    """A CSV file with a column ``routing``, one row per class, or a closed-form routing by name.

    >>> read_routing("balanced", Fleet([1.0, 4.0])).tolist()
    [0.2, 0.8]
    """
    path = _located(text, folder)
    if not is_file(path):
        if text in ROUTINGS:
            return named_routing(fleet, text)
        raise InvalidFile(f"{path}: no such file, and {UnknownName('routing', text, ROUTINGS)}")
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    except csv.Error as error:
        raise InvalidFile(f"{path}: cannot be read as CSV ({error})") from error
    values = []
    for line, row in enumerate(rows, start=2):
        field = row.get("routing")
        try:
            values.append(float(field or ""))
        except ValueError:
            raise InvalidFile(
                f"{path}, line {line}: the column 'routing' must hold a number; it holds {field!r}"
            ) from None
    try:
        return Network(fleet, values, 1).routing
    except InvalidInput as error:
        raise InvalidFile(f"{path}: {error}") from error


def is_named_routing(text: str, fleet: Fleet, routing: FloatArray) -> bool:
    """Whether ``text`` names ``routing`` wherever there is no file of that name."""
    return text in ROUTINGS and np.array_equal(routing, named_routing(fleet, text))


def read_constants(text: str, folder: Path | None = None) -> LearningConstants:
    """Constants from a TOML file with a table ``[constants]``, from ``L,sigma,M,A``, or 'default'.

    >>> read_constants("1,3,10,15").noise
    209.0
    """
    path = _located(text, folder)
    if is_file(path) or path.suffix == ".toml":
        table = Table.read(path).table("constants")
        constants = LearningConstants.from_table(table)
        table.close()
        return constants
    if text == "default":
        return DEFAULT_CONSTANTS
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


def _located(text: str, folder: Path | None) -> Path:
    return Path(text) if folder is None else folder / text

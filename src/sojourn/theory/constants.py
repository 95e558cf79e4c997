"""What the bounds need to know of a learning problem."""

import math
from dataclasses import dataclass, fields
from pathlib import Path

from sojourn._support.checks import check_scale
from sojourn._support.configuration import Table
from sojourn._support.files import is_file
from sojourn.errors import InvalidInput, reading


@dataclass(frozen=True)
class LearningConstants:
    r"""What the bounds need to know of the learning problem.

    ``initial_gap`` is :math:`A = f(w_0) - f^*`, ``smoothness`` :math:`L`, ``gradient_noise``
    :math:`\sigma`, ``heterogeneity`` :math:`M` (Assumptions A1 to A4 of the paper).

    >>> LearningConstants(initial_gap=1.0, smoothness=1.0, gradient_noise=3.0, heterogeneity=10.0).noise
    209.0
    """

    initial_gap: float
    smoothness: float
    gradient_noise: float
    heterogeneity: float

    def __post_init__(self) -> None:
        for name in ("initial_gap", "smoothness"):
            check_scale(name, getattr(self, name))
        for name in ("gradient_noise", "heterogeneity"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidInput(f"{name} must be zero or positive, and finite; it is {value!r}")
            if value > 0:
                check_scale(name, value)

    @classmethod
    def from_table(cls, table: Table) -> "LearningConstants":
        """Take ``initial-gap``, ``smoothness``, ``gradient-noise`` and ``heterogeneity`` from TOML.

        Other keys of the table are left to the caller.

        >>> values = {"initial-gap": 1.0, "smoothness": 1, "gradient-noise": 3, "heterogeneity": 10}
        >>> LearningConstants.from_table(Table(values, "plan.toml")).noise
        209.0
        """
        values = {
            field.name: table.take(field.name.replace("_", "-"), float) for field in fields(cls)
        }
        with reading(table.where):
            return cls(**values)

    @property
    def noise(self) -> float:
        r""":math:`B = \sigma^2 + 2 M^2`."""
        return self.gradient_noise**2 + 2.0 * self.heterogeneity**2


DEFAULT_CONSTANTS = LearningConstants(
    initial_gap=2.3, smoothness=10.0, gradient_noise=1.0, heterogeneity=1.0
)
"""Typical of a ten-class classifier at its start: the loss is ln 10, the rest of order one to ten."""


def read_constants(text: str, folder: Path | None = None) -> LearningConstants:
    """Constants from a TOML file with a table ``[constants]``, from ``L,sigma,M,A``, or 'default'.

    >>> read_constants("1,3,10,15").noise
    209.0
    """
    path = Path(text) if folder is None else folder / text
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

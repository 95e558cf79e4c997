"""What the bounds need to know of a learning problem."""

import math
from dataclasses import dataclass, fields

from sojourn.checks import check_scale
from sojourn.config import Table
from sojourn.errors import InvalidFile, InvalidInput


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
        try:
            return cls(**values)
        except InvalidInput as error:
            raise InvalidFile(f"{table.where}: {error}") from error

    @property
    def noise(self) -> float:
        r""":math:`B = \sigma^2 + 2 M^2`."""
        return self.gradient_noise**2 + 2.0 * self.heterogeneity**2

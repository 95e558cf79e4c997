"""A law of two parameters: mostly alike, now and then a task that takes much longer."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Bimodal:
    """A task is slow with probability ``often``, and then takes ``slow`` times as long."""

    often: float = 0.1
    slow: float = 10.0

    @property
    def name(self):
        return "bimodal"

    def __str__(self):
        return f"bimodal(often={self.often:g}, slow={self.slow:g})"

    def sample(self, random, size):
        factor = np.where(random.random(size) < self.often, self.slow, 1.0)
        mean = 1.0 + self.often * (self.slow - 1.0)
        return random.standard_exponential(size) * factor / mean

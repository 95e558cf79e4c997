"""Every law conforms, and the suite finds what does not."""

from dataclasses import dataclass

import numpy as np
import pytest

from sojourn.fleet.laws import LAW_NAMES, Law, Trace
from sojourn.testing import check_law_conforms

BUILT_IN = [
    *(Law(name) for name in LAW_NAMES if name != "trace"),
    Law("lognormal", sigma=0.3),
    Law("erlang", stages=5),
    Law("pareto", shape=1.2),
    Law("pareto", shape=1.9),
    Trace([1.0, 2.0, 9.0]),
]


@pytest.mark.parametrize("law", BUILT_IN, ids=str)
def test_every_law_conforms(law):
    check_law_conforms(law)


@dataclass(frozen=True)
class Own:
    """Uniform times that go wrong as a test says."""

    fault: str = ""
    name = "own"

    def sample(self, random, size):
        times = 0.5 + random.random(size)
        if self.fault == "mean":
            times *= 1.01
        if self.fault == "negative":
            times -= 0.9
        if self.fault == "infinite" and size:
            times[0] = np.inf
        if self.fault == "own generator":
            times = 0.5 + np.random.default_rng(1).random(size)
        if self.fault == "erratic":
            times = 0.5 + np.random.default_rng().random(size)
        return times[:-1] if self.fault == "short" else times


def test_one_of_ones_own_conforms():
    check_law_conforms(Own())


@pytest.mark.parametrize(
    ("law", "words"),
    [
        (Own("mean"), "the mean must be 1"),
        (Own("negative"), "must be positive"),
        (Own("infinite"), "must be finite"),
        (Own("own generator"), "from the generator given"),
        (Own("erratic"), "must give the same times"),
        (Own("short"), "as many times as asked"),
        ("exponential", "a method 'sample'"),
    ],
    ids=str,
)
def test_what_does_not_conform_is_found(law, words):
    with pytest.raises(AssertionError, match=words):
        check_law_conforms(law)


@dataclass(frozen=True)
class HeavyTailed:
    """Pareto times of infinite variance, of mean ``scale``; or uniform ones that claim to be."""

    scale: float = 1.0
    uniform: bool = False
    name = "heavy-tailed"
    scv = np.inf

    def sample(self, random, size):
        if self.uniform:
            return self.scale * (0.5 + random.random(size))
        return self.scale * (1.0 - 1.0 / 1.3) * (1.0 - random.random(size)) ** (-1.0 / 1.3)


def test_a_wrong_mean_is_found_without_a_variance():
    check_law_conforms(HeavyTailed())
    for law in (HeavyTailed(1.2), HeavyTailed(0.8), HeavyTailed(1.1, uniform=True)):
        with pytest.raises(AssertionError, match="the mean must be 1"):
            check_law_conforms(law)

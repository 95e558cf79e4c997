"""Every objective conforms, and the suite finds what does not."""

from dataclasses import dataclass, replace

import pytest

import sojourn as sj
from sojourn.testing import check_objective_conforms

CONSTANTS = sj.LearningConstants(15.0, 1.0, 3.0, 10.0)
BUILT_IN = [
    sj.PerRound(CONSTANTS, None, 1000.0),
    sj.PerRound(CONSTANTS, 0.01, 1000.0),
    sj.PerTime(CONSTANTS, None, 1000.0),
    sj.TimeToAccuracy(CONSTANTS, 0.5),
    sj.TimeToAccuracy(CONSTANTS, 0.5, guaranteed=True),
    sj.TimeBudget(CONSTANTS, 1000.0),
    sj.Throughput(),
]


@pytest.mark.parametrize("objective", BUILT_IN, ids=lambda one: type(one).__name__)
def test_every_objective_conforms(objective):
    check_objective_conforms(objective)


@dataclass(frozen=True)
class Own(sj.Throughput):
    """The throughput, gone wrong as a test says."""

    fault: str = ""

    def evaluate(self, network):
        found = super().evaluate(network)
        if self.fault == "gradient":
            return replace(found, log_gradient=2 * found.log_gradient)
        if self.fault == "negative":
            return replace(found, value=-found.value)
        if self.fault == "shape":
            return replace(found, log_gradient=found.log_gradient[:-1])
        return found

    def to_table(self):
        return {} if self.fault == "table" else {"fault": self.fault}

    @classmethod
    def from_table(cls, table, constants):
        return cls(table.take("fault", str, default="something"))


def test_one_of_ones_own_conforms():
    check_objective_conforms(Own())


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("gradient", "must be the derivative"),
        ("negative", "values are positive"),
        ("shape", "must be one per class"),
        ("table", "read back as the same"),
    ],
)
def test_what_does_not_conform_is_found(fault, words):
    with pytest.raises(AssertionError, match=words):
        check_objective_conforms(Own(fault))


def test_what_is_no_objective_is_found():
    with pytest.raises(AssertionError, match="attributes of"):
        check_objective_conforms("throughput")

"""An objective without formula: how many rounds a simulated fleet completes in a given time."""

from dataclasses import dataclass

from sojourn.planning.objectives import Evaluation
from sojourn.simulation.simulate import simulate


@dataclass(frozen=True)
class MeasuredPace:
    time: float = 200.0
    name, maximize, constants, learning_rate = "measured-pace", True, None, None

    def with_learning_rate(self, learning_rate):
        return self

    def evaluate(self, network):
        schedule = simulate(network, law="lognormal", time=self.time, seed=1)
        return Evaluation((schedule.rounds + 1) / self.time)

    def rounds_at(self, network):
        return None

    def to_table(self):
        return {"time": self.time}

    @classmethod
    def from_table(cls, table, constants):
        return cls(table.take("time", float, default=200.0))

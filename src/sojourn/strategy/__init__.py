"""What is run: a network, a scenario, a server rule and learning rates, as one value.

Simulation, training, tuning, reports, the explorer and deployments all read it here. A choice is
taken from the strategy's own table (or a command's options), then from the file that it names, then
from the experiment, then it is the rule's usual one.
"""

from sojourn.strategy.choices import Choices, at_location
from sojourn.strategy.file import read_strategy_file, write_strategy_file
from sojourn.strategy.strategy import Origin, Strategy, read_strategies

__all__ = [
    "Choices",
    "Origin",
    "Strategy",
    "at_location",
    "read_strategies",
    "read_strategy_file",
    "write_strategy_file",
]

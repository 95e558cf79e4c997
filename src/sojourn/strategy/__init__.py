"""What is run: a network, a scenario, a server rule and learning rates, as one value.

Simulation, training, tuning, reports, the explorer and deployments all read it here. A choice is
taken from the strategy's own table (or a command's options), then from the file that it names, then
from the experiment, then it is the rule's usual one.
"""

from sojourn.strategy.choices import (
    Choices as Choices,
    at_location as at_location,
)
from sojourn.strategy.file import (
    modules_named as modules_named,
    read_strategy_file as read_strategy_file,
    write_strategy_file as write_strategy_file,
)
from sojourn.strategy.strategy import (
    Origin as Origin,
    Strategy as Strategy,
    read_strategies as read_strategies,
)

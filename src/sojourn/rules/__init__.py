"""Server rules: what the server does with the result of a task.

Each is a small frozen value; `Rule` says what one of your own must have.
"""

from sojourn.rules.attempts import (
    MindFlayer,
    Shadowheart,
    equilibrium_time,
    mindflayer_attempts,
    shadowheart_numbers,
)
from sojourn.rules.differences import FADAS, FedAsync, FedAvg, FedBuff, FedFa
from sojourn.rules.gradients import (
    DCASGD,
    AsyncSGD,
    DelayAdaptive,
    GeneralizedAsyncSGD,
    MinibatchSGD,
    MSynchronousSGD,
    PickySGD,
    Rennala,
    Ringmaster,
    ShuffledAsyncSGD,
)
from sojourn.rules.registry import RULES, check_rule, rule_from_table, rule_to_table
from sojourn.rules.rounds import Malenia, Ringleader
from sojourn.rules.schedules import Constant, Cosine, InverseSquareRoot, Steps
from sojourn.rules.server import Adam, Momentum, Move, Plain, Server
from sojourn.rules.state import (
    Arrival,
    Rule,
    ServerState,
    local_learning_rate,
    one_gradient,
    sent_back,
)
from sojourn.rules.tables import ACE, ACED, AREA, CA2FL, RoutedSAGA
from sojourn.rules.weighting import Weighting

__all__ = [
    "ACE",
    "ACED",
    "AREA",
    "CA2FL",
    "DCASGD",
    "FADAS",
    "RULES",
    "Adam",
    "Arrival",
    "AsyncSGD",
    "Constant",
    "Cosine",
    "DelayAdaptive",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedFa",
    "GeneralizedAsyncSGD",
    "InverseSquareRoot",
    "MSynchronousSGD",
    "Malenia",
    "MindFlayer",
    "MinibatchSGD",
    "Momentum",
    "Move",
    "PickySGD",
    "Plain",
    "Rennala",
    "Ringleader",
    "Ringmaster",
    "RoutedSAGA",
    "Rule",
    "Server",
    "ServerState",
    "Shadowheart",
    "ShuffledAsyncSGD",
    "Steps",
    "Weighting",
    "check_rule",
    "equilibrium_time",
    "local_learning_rate",
    "mindflayer_attempts",
    "one_gradient",
    "rule_from_table",
    "rule_to_table",
    "sent_back",
    "shadowheart_numbers",
]

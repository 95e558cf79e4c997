"""Server rules: what the server does with the result of a task.

Each is a small frozen value; `Rule` says what one of your own must have.
"""

from sojourn.rules.differences import FedAsync, FedAvg, FedBuff
from sojourn.rules.gradients import (
    AsyncSGD,
    DelayAdaptive,
    GeneralizedAsyncSGD,
    MinibatchSGD,
    Ringmaster,
    ShuffledAsyncSGD,
)
from sojourn.rules.registry import RULES, check_rule, rule_from_table, rule_to_table
from sojourn.rules.schedules import Constant, Cosine, InverseSquareRoot, Steps
from sojourn.rules.server import Adam, Momentum, Move, Plain, Server
from sojourn.rules.state import Arrival, Rule, ServerState, local_learning_rate
from sojourn.rules.weighting import Weighting

__all__ = [
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
    "GeneralizedAsyncSGD",
    "InverseSquareRoot",
    "MinibatchSGD",
    "Momentum",
    "Move",
    "Plain",
    "Ringmaster",
    "Rule",
    "Server",
    "ServerState",
    "ShuffledAsyncSGD",
    "Steps",
    "Weighting",
    "check_rule",
    "local_learning_rate",
    "rule_from_table",
    "rule_to_table",
]

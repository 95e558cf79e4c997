"""Server rules: what the server does with the result of a task.

Each is a small frozen value; `Rule` says what one of your own must have.
"""

from sojourn.rules.attempts import (
    MindFlayer as MindFlayer,
    Shadowheart as Shadowheart,
    equilibrium_time as equilibrium_time,
    mindflayer_attempts as mindflayer_attempts,
    shadowheart_numbers as shadowheart_numbers,
)
from sojourn.rules.differences import (
    FADAS as FADAS,
    FedAsync as FedAsync,
    FedAvg as FedAvg,
    FedBuff as FedBuff,
    FedFa as FedFa,
)
from sojourn.rules.gradients import (
    DCASGD as DCASGD,
    AsyncSGD as AsyncSGD,
    DelayAdaptive as DelayAdaptive,
    GeneralizedAsyncSGD as GeneralizedAsyncSGD,
    MinibatchSGD as MinibatchSGD,
    MSynchronousSGD as MSynchronousSGD,
    PickySGD as PickySGD,
    Rennala as Rennala,
    Ringmaster as Ringmaster,
    ShuffledAsyncSGD as ShuffledAsyncSGD,
)
from sojourn.rules.local_work import (
    DelayedNesterov as DelayedNesterov,
    HeLoCo as HeLoCo,
    MomentumLookAhead as MomentumLookAhead,
    OrMo as OrMo,
    RingmasterLMO as RingmasterLMO,
    dynamic_local_steps as dynamic_local_steps,
    epoch_steps as epoch_steps,
)
from sojourn.rules.registry import (
    RULES as RULES,
    check_pair as check_pair,
    check_rule as check_rule,
    rule_from_table as rule_from_table,
    rule_parameters as rule_parameters,
    rule_to_table as rule_to_table,
)
from sojourn.rules.server import (
    Adam as Adam,
    Constant as Constant,
    Cosine as Cosine,
    InverseSquareRoot as InverseSquareRoot,
    Momentum as Momentum,
    Move as Move,
    Plain as Plain,
    Server as Server,
    Steps as Steps,
)
from sojourn.rules.state import (
    Arrival as Arrival,
    Rule as Rule,
    ServerState as ServerState,
    begin_state as begin_state,
    learning_rate_scale as learning_rate_scale,
    local_learning_rate as local_learning_rate,
    one_gradient as one_gradient,
    sent_back as sent_back,
)
from sojourn.rules.tables import (
    ACE as ACE,
    ACED as ACED,
    AREA as AREA,
    CA2FL as CA2FL,
    Malenia as Malenia,
    Ringleader as Ringleader,
    RoutedSAGA as RoutedSAGA,
)
from sojourn.rules.weighting import Weighting as Weighting

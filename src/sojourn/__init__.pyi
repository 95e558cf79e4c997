from . import rules as rules, train as train, training as training
from ._support.estimate import Estimate as Estimate
from .dispatch import (
    FirstOf as FirstOf,
    Idle as Idle,
    NeverQueue as NeverQueue,
    Policy as Policy,
    Restart as Restart,
    Routed as Routed,
    Shuffled as Shuffled,
    Synchronous as Synchronous,
)
from .dispatch.analysis import analyze as analyze
from .errors import (
    DataNotFound as DataNotFound,
    InvalidFile as InvalidFile,
    InvalidInput as InvalidInput,
    MissingExtra as MissingExtra,
    SojournError as SojournError,
    UnknownName as UnknownName,
    Unreachable as Unreachable,
)
from .figures.figure import Figure as Figure
from .fleet import (
    Fleet as Fleet,
    Network as Network,
    balanced_routing as balanced_routing,
    built_in_fleet as built_in_fleet,
    named_routing as named_routing,
    square_root_routing as square_root_routing,
    uniform_routing as uniform_routing,
)
from .fleet.calendars import (
    Drift as Drift,
    Hours as Hours,
    read_drift as read_drift,
    read_hours as read_hours,
)
from .fleet.from_logs import estimate_fleet as estimate_fleet, read_log as read_log
from .fleet.laws import Law as Law, Trace as Trace, read_trace as read_trace
from .planning import (
    EnergyFrontier as EnergyFrontier,
    Frontier as Frontier,
    Plan as Plan,
    Prediction as Prediction,
    Sensitivity as Sensitivity,
    energy_frontier as energy_frontier,
    frontier as frontier,
    plan as plan,
    sensitivity as sensitivity,
    time_and_energy as time_and_energy,
)
from .planning.objectives import (
    Energy as Energy,
    Evaluation as Evaluation,
    NoiseRate as NoiseRate,
    Objective as Objective,
    PerRound as PerRound,
    PerTime as PerTime,
    Throughput as Throughput,
    TimeAndEnergy as TimeAndEnergy,
    TimeBudget as TimeBudget,
    TimeToAccuracy as TimeToAccuracy,
)
from .planning.search import (
    Attempt as Attempt,
    Grouping as Grouping,
    Solution as Solution,
    group_clients as group_clients,
    optimize_buffer as optimize_buffer,
    optimize_concurrency as optimize_concurrency,
    optimize_routing as optimize_routing,
)
from .report import Report as Report
from .report.plan import plan_report as plan_report
from .report.runs import report_of as report_of
from .runs.folder import RunFolder as RunFolder
from .runs.history import History as History
from .simulation.scenario import Scenario as Scenario
from .simulation.schedule import Schedule as Schedule
from .simulation.simulate import (
    Estimates as Estimates,
    replicate as replicate,
    simulate as simulate,
)
from .strategy import Choices as Choices, Strategy as Strategy
from .theory.bounds import (
    Bound as Bound,
    Form as Form,
    Horizon as Horizon,
    max_learning_rate as max_learning_rate,
    per_round_bound as per_round_bound,
    per_time_bound as per_time_bound,
    rounds_to_accuracy as rounds_to_accuracy,
    time_to_accuracy as time_to_accuracy,
)
from .theory.constants import LearningConstants as LearningConstants
from .theory.energy import RoundEnergy as RoundEnergy, energy_per_round as energy_per_round
from .theory.floor import (
    duty_cycles as duty_cycles,
    noise_floor as noise_floor,
    noise_rate as noise_rate,
    target_rates as target_rates,
)
from .theory.jackson import Analysis as Analysis, covariance as covariance
from .training.replay.replay import replay as replay
from .tuning.tune import Tuned as Tuned, tune as tune
from .version import __version__ as __version__

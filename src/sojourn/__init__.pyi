from . import rules as rules, train as train
from .analysis import analyze as analyze
from .boundforms import Form as Form
from .bounds import (
    Bound as Bound,
    Horizon as Horizon,
    max_learning_rate as max_learning_rate,
    per_round_bound as per_round_bound,
    per_time_bound as per_time_bound,
    rounds_to_accuracy as rounds_to_accuracy,
    time_to_accuracy as time_to_accuracy,
)
from .constants import LearningConstants as LearningConstants
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
from .energy import RoundEnergy as RoundEnergy, energy_per_round as energy_per_round
from .errors import (
    DataNotFound as DataNotFound,
    InvalidFile as InvalidFile,
    InvalidInput as InvalidInput,
    MissingExtra as MissingExtra,
    SojournError as SojournError,
    UnknownName as UnknownName,
    Unreachable as Unreachable,
)
from .estimate import Estimate as Estimate
from .figure import Figure as Figure
from .floor import (
    duty_cycles as duty_cycles,
    noise_floor as noise_floor,
    noise_rate as noise_rate,
    target_rates as target_rates,
)
from .history import History as History
from .jackson import Analysis as Analysis, covariance as covariance
from .laws import Law as Law, Trace as Trace
from .network import (
    Fleet as Fleet,
    Network as Network,
    balanced_routing as balanced_routing,
    built_in_fleet as built_in_fleet,
    named_routing as named_routing,
    square_root_routing as square_root_routing,
    uniform_routing as uniform_routing,
)
from .observed import estimate_fleet as estimate_fleet, read_log as read_log
from .optimize import (
    Attempt as Attempt,
    Energy as Energy,
    Evaluation as Evaluation,
    Grouping as Grouping,
    NoiseRate as NoiseRate,
    Objective as Objective,
    PerRound as PerRound,
    PerTime as PerTime,
    Solution as Solution,
    Throughput as Throughput,
    TimeAndEnergy as TimeAndEnergy,
    TimeBudget as TimeBudget,
    TimeToAccuracy as TimeToAccuracy,
    group_clients as group_clients,
    optimize_buffer as optimize_buffer,
    optimize_concurrency as optimize_concurrency,
    optimize_routing as optimize_routing,
)
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
from .planpage import plan_report as plan_report
from .report import Report as Report
from .reproduce.pages import report_of as report_of
from .runfolder import RunFolder as RunFolder
from .simulation.calendarfiles import read_drift as read_drift, read_hours as read_hours
from .simulation.calendars import Drift as Drift, Hours as Hours
from .simulation.estimates import Estimates as Estimates
from .simulation.replicate import replicate as replicate
from .simulation.scenario import Scenario as Scenario
from .simulation.schedule import Schedule as Schedule
from .simulation.simulate import simulate as simulate
from .simulation.traces import read_trace as read_trace
from .train.replay.replay import replay as replay
from .tuning.tune import Tuned as Tuned, tune as tune
from .version import __version__ as __version__

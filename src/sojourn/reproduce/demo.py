"""The demonstration: from a fleet to a page to look at, on data that come with scikit-learn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sojourn.constants import LearningConstants
from sojourn.errors import InvalidInput
from sojourn.estimate import Estimate
from sojourn.jackson import analyze
from sojourn.network import Network, built_in_fleet
from sojourn.optimize import TimeToAccuracy
from sojourn.planning import plan
from sojourn.progress import shown
from sojourn.reproduce.pages import report_of
from sojourn.simulation.simulate import simulate
from sojourn.train.experiment.engines import LocalEngine
from sojourn.train.experiment.experiment import Experiment
from sojourn.train.experiment.run import run_experiment

FLEET = "three-clusters"
CONCURRENCY = 30
TIME = 100.0
GRADIENT_NORM = 0.5
TARGET = 0.8
EXPERIMENT = f"""\
# Four routings on scikit-learn's digits, each at the best of four learning rates.
fleet = "{FLEET}"
data = "digits"
partition = "dirichlet(0.5)"
model = "mlp"
time = {TIME:g}
concurrency = {CONCURRENCY}
learning-rate = [0.01, 0.03, 0.1, 0.3]
pilot-seeds = 3
seeds = 6
evaluate-every = 5
targets = [{TARGET}]
strategies = ["uniform", "balanced", "square-root"]

# The plan's routing with as many tasks in flight as clients: the bound's own concurrency and
# learning rate are cautious.
[[strategy]]
name = "plan"
routing = "plan.toml"
concurrency = {CONCURRENCY}
"""


def demonstrate(
    constants: LearningConstants, *, out: Path, jobs: int, say: Callable[[str], None]
) -> Path:
    """Plan, simulate, train and report into ``out``; tells ``say`` what it does, returns the page."""
    fleet = built_in_fleet(FLEET)
    best = plan(fleet, TimeToAccuracy(constants, gradient_norm=GRADIENT_NORM))
    best.write(out / "plan.toml")
    shares = ", ".join(f"{p:.2%}" for p in best.network.routing)
    say(f"plan: of all tasks, each slow, medium and fast client gets {shares}")

    network = Network(best.network.fleet, best.network.routing, CONCURRENCY)
    theory = analyze(network).throughput
    schedule = simulate(network, rounds=200_000, start="stationary", seed=1)
    seen = schedule.rounds / float(schedule.time[-1])
    say(f"simulate: {seen:.3f} rounds per unit of time, {theory:.3f} in theory")

    say(f"train: uniform, balanced, square-root and the plan, {TIME:g} units of time each")
    (out / "experiment.toml").write_text(EXPERIMENT, encoding="utf-8")
    run = out / "digits"
    try:
        with shown() as progress:
            summary = run_experiment(
                Experiment.read(out / "experiment.toml"),
                run,
                LocalEngine(jobs),
                resume=run.exists(),
                progress=progress,
            )
    except InvalidInput as error:
        raise InvalidInput(f"{error} Remove the folder {out} to begin anew.") from error

    say("report: drawing")
    report = report_of([run], title="Four ways to drive thirty clients")
    page = report.write(out / "report.html")
    for line in summary_lines(summary):
        say(line)
    return page


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """What the runs amount to, in three lines."""
    entries = summary["strategies"]
    return [
        f"time to {TARGET:.0%} accuracy: " + ", ".join(map(_time, entries)),
        f"accuracy averaged over the {TIME:g} units: " + ", ".join(map(_mean, entries)),
        "accuracy at the end: " + ", ".join(map(_final, entries)),
    ]


def _time(entry: dict[str, Any]) -> str:
    value = entry["time_to"][f"{TARGET:g}"]
    if value["mean"] is not None:
        return f"{entry['name']} {value['mean']:.0f}"
    return f"{entry['name']} reached by {value['reached']} of {len(entry['seeds'])} seeds"


def _mean(entry: dict[str, Any]) -> str:
    return f"{entry['name']} {_percent(entry['mean_accuracy'])}"


def _final(entry: dict[str, Any]) -> str:
    return f"{entry['name']} {_percent(entry['final_accuracy'])}"


def _percent(value: dict[str, float | None]) -> str:
    return "diverged" if value["mean"] is None else f"{Estimate.from_table(value):.1%}"

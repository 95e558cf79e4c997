"""The demonstration: from a fleet to a strategy that wins, on data that come with scikit-learn."""

from collections.abc import Callable
from pathlib import Path

from sojourn.analysis import analyze
from sojourn.network import Fleet, Network, built_in_fleet, uniform_routing
from sojourn.progress import shown
from sojourn.reproduce.pages import report_of
from sojourn.train.experiment.engines import LocalEngine
from sojourn.tuning.setting import read_setting
from sojourn.tuning.tune import Tuned, tune_setting

FLEET = "three-clusters"
TIME = 100.0
BUDGET = 120.0
EXPERIMENT = f"""\
# Thirty clients, of which ten are a hundred times as slow as ten others, learn scikit-learn's digits.
# No strategies are listed: `sojourn tune` proposes them.
fleet = "{FLEET}"
data = "digits"
partition = "dirichlet(0.5)"
model = "mlp"
time = {TIME:g}
targets = [0.8]
"""


def demonstrate(*, out: Path, jobs: int, say: Callable[[str], None]) -> Path:
    """Analyse, tune, confirm and report into ``out``; tells ``say`` what it does, returns the page."""
    fleet = built_in_fleet(FLEET)
    say(f"the fleet: {fleet.size} clients in three clusters of ten, with rates 0.01, 0.1 and 1")
    say(cost_of_queueing(fleet))
    out.mkdir(parents=True, exist_ok=True)
    path = out / "experiment.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    folder = out / "digits"
    with shown() as progress:
        tuned = tune_setting(
            read_setting(path),
            folder,
            engine=LocalEngine(jobs),
            budget=BUDGET,
            progress=progress,
            say=lambda text: say(f"tune: {text}"),
        )
    for line in table_lines(tuned):
        say(line)
    say(tuned.sentence)
    page = report_of([folder], title="How to drive thirty clients").write(out / "report.html")
    return page


def cost_of_queueing(fleet: Fleet) -> str:
    """What random routing with queues costs a fleet, beside never letting a task queue."""
    network = Network(fleet, uniform_routing(fleet), fleet.size)
    queues, busy = analyze(network), analyze(network, "never-queue")
    return (
        f"never queueing: {busy.throughput:.3g} updates per unit of time, noise rate "
        f"{busy.noise_rate:.3g} (the least of any policy with {fleet.size} tasks in flight), and a task "
        f"takes {busy.mean_staleness_time:.0f} units of time on average; uniform routing with queues: "
        f"{queues.throughput:.3g}, {queues.noise_rate:.3g} and {queues.mean_staleness_time:.0f}"
    )


def table_lines(tuned: Tuned) -> list[str]:
    """The confirmed strategies, best first as pilots had it."""
    width = max(len(row.name) for row in tuned.table)
    head = f"{'strategy':{width}}  {tuned.setting.criterion.describe()} (test set, fresh seeds)"
    return [head, *(f"{row.name:{width}}  {row.score:.3g}" for row in tuned.table)]

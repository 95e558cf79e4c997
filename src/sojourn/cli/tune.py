"""``sojourn tune`` and ``demo``: the strategy that wins, with its evidence."""

import math
from importlib.resources import files
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import click
import typer
from rich.console import Console

from sojourn._support.memory import check_jobs
from sojourn._support.numbers import number
from sojourn._support.progress import Stages, duration, parse_duration, shown
from sojourn.cli import app
from sojourn.cli.options import (
    DataDirOption,
    EngineOption,
    JobsOption,
    SchedulerOption,
    TrackOption,
    check_experiment_file,
    check_out_folder,
)
from sojourn.cli.output import (
    CHOSEN,
    marked,
    page_line,
    plain_table,
    print_table,
    say_above,
    say_first,
    say_verdict,
    screen,
    stop_interrupted,
    wrapped,
)
from sojourn.dispatch.analysis import analyze
from sojourn.errors import InvalidInput
from sojourn.fleet import Fleet, Network, built_in_fleet, uniform_routing

if TYPE_CHECKING:
    from sojourn.tuning.setting import Setting
    from sojourn.tuning.tune import Tuned

FLEET = "three-clusters"
"""Of `sojourn demo`, as its experiment names it."""
BUDGET = 120.0
LOADING = 7.0
"""The libraries and the problem take about so many times as long to load as the command line did."""
DRAWING = "drawing the page"
STAGES = {"tune: rung": 0.6, "confirming": 0.25, "tune: other conditions": 0.08}
"""Phases of a tuning, with about the share of the time that each takes; writing takes the rest."""
ROBUST = {"tune: rung": 0.4, "tune: other conditions": 0.35, "confirming": 0.2}
"""The same where the conditions are part of the choice."""


@app.command()
def tune(
    experiment: Annotated[
        Path,
        typer.Argument(
            metavar="EXPERIMENT.toml",
            help="Fleet, data, model and horizon; strategies to choose among, or none: then "
            "Sojourn proposes them.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the answer.", show_default="runs/NAME-tuned")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Judge by the time to this value of the problem's measure, such as an accuracy of 0.8."
        ),
    ] = None,
    criterion: Annotated[
        str | None,
        typer.Option(
            help="final (the measure at the end; the loss where it is an accuracy), area (its mean over "
            "time), or target.",
            show_default="final",
        ),
    ] = None,
    time: Annotated[
        float | None,
        typer.Option(help="How long runs last, in virtual time, instead of the file's."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="How long runs last, in rounds, instead of the file's.")
    ] = None,
    virtual: Annotated[
        bool,
        typer.Option(
            "--virtual",
            help="Recommend also strategies that cannot be deployed, which run in virtual time only.",
        ),
    ] = False,
    robust: Annotated[
        bool,
        typer.Option(
            "--robust", help="Prefer the best worst case under other laws, speeds and absences."
        ),
    ] = False,
    budget: Annotated[str, typer.Option(help="How long tuning may take: 90s, 10m, 2h.")] = "10m",
    jobs: JobsOption = 1,
    engine: EngineOption = "local",
    scheduler: SchedulerOption = None,
    data_dir: DataDirOption = None,
    track: TrackOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Choose policy, rule and learning rate by pilot runs, and confirm the choice on fresh seeds.

    The same command goes on after an interruption: finished runs are not repeated.

    Example: sojourn tune experiments/digits.toml --target 0.8 --budget 5m --jobs 2
    """
    started = click.get_current_context().find_root().obj  # if this process runs one command
    begun = monotonic() if started is None else float(started)
    say_first(f"reading {experiment}")
    seconds = parse_duration(budget)
    check_loading(monotonic() - begun, seconds)
    check_experiment_file(experiment)
    folder = out or Path("runs") / f"{experiment.stem}-tuned"
    check_out_folder(folder)
    from sojourn.runs.folder import RunFolder
    from sojourn.training.experiment.engines import make_engine, tracked
    from sojourn.tuning.budget import check_time_left
    from sojourn.tuning.setting import read_setting
    from sojourn.tuning.tune import STRATEGY, tune_setting

    check_time_left(begun, seconds)
    chosen = make_engine(engine, jobs=jobs, scheduler=scheduler)
    with shown() as progress:
        progress.start("tune: reading the problem, proposing candidates")
        setting = read_setting(
            experiment,
            time=time,
            rounds=rounds,
            target=target,
            criterion=criterion,
            virtual=virtual,
            data_dir=None if data_dir is None else str(data_dir.resolve()),
        )
    try:
        with tracked(chosen, track) as engine_used, shown() as bar:
            progress = Stages(bar, ROBUST if robust else STAGES)
            tuned = tune_setting(
                setting,
                folder,
                engine=engine_used,
                budget=seconds,
                progress=progress,
                say=say_above,
                begun=begun,
                robust=robust,
            )
    except KeyboardInterrupt:
        _say_best_so_far(folder, setting)
        stop_interrupted(
            f"What is done is saved; run the same command again to go on with {folder}."
        )
    if as_json:
        typer.echo(RunFolder(folder).tuning_path.read_text(encoding="utf-8"))
        return
    console = screen()
    show_confirmed(tuned, console)
    say_verdict(tuned.verdict, console)
    console.print(
        f"written to {folder}; the strategy to deploy: {folder / STRATEGY}", soft_wrap=True
    )


def check_loading(spent: float, budget: float) -> None:
    """Raise if loading the libraries would exceed ``budget``: the command line took ``spent``.

    On a busy machine loading takes most of a short budget, and a budget that is too small is
    refused at once.

    >>> check_loading(1.0, 30.0)
    >>> check_loading(9.0, 30.0)
    Traceback (most recent call last):
    ...
    sojourn.errors.InvalidInput: a budget of 30 s is too small: to load the libraries and the problem takes
    about 63 s on this machine now. Give more --budget.
    """
    expected = LOADING * spent
    if expected > budget:
        raise InvalidInput(
            f"a budget of {duration(budget)} is too small: to load the libraries and the problem takes "
            f"about {duration(expected)} on this machine now. Give more --budget."
        )


def show_confirmed(tuned: "Tuned", console: Console) -> None:
    """Print the strategies that ran on fresh seeds, the pick marked, and what that took."""
    from sojourn.report.outcomes import final_text
    from sojourn.report.privacy import epsilon_of, epsilon_text

    measure = tuned.table[0].histories[0].measure
    criterion = tuned.setting.criterion
    spent = [epsilon_of(row.histories) for row in tuned.table]
    private = ["epsilon"] if any(math.isfinite(epsilon) for epsilon in spent) else []
    table = plain_table(
        ["strategy"], ["rate", criterion.describe(), f"final {measure.label}", *private]
    )
    ordered = [name for group in tuned.verdict.groups.values() for name in group]
    place = {name: k for k, name in enumerate(ordered)}
    rows = zip(tuned.table, spent, strict=True)
    for row, epsilon in sorted(rows, key=lambda entry: place.get(entry[0].name, len(place))):
        table.add_row(
            marked(row.name, tuned.pick.name),
            f"{row.learning_rate:g}",
            "no update made" if row.without_update else criterion.text_of(row.scores),
            final_text(row.histories, measure),
            *([epsilon_text(epsilon)] if private else []),
            style=CHOSEN if row is tuned.pick else None,
        )
    console.print()
    print_table(console, table, drop=("rate", f"final {measure.label}"))
    compared, seeds = tuned.halving.compared, len(tuned.pick.scores)
    text = (
        f"{compared:,} candidate{'s' * (compared != 1)} compared with {tuned.gradients:,} gradients in "
        f"{tuned.seconds:,.0f} s. Scores are on the test set, with {seeds} fresh "
        + ("seed." if seeds == 1 else "seeds (± standard error).")
    )
    console.print(wrapped(text, console.width), highlight=False)
    console.print()


def _say_best_so_far(folder: Path, setting: "Setting") -> None:
    from sojourn.tuning.runner import HALVING, read_halving

    path = folder / HALVING
    if not path.exists():
        return
    halving, _ = read_halving(path)
    for candidate in halving.podium()[:1]:
        name = setting.experiment.strategies[candidate.strategy].name
        fraction = halving.rungs[-1].fraction
        typer.echo(
            f"best so far, after {fraction:.3g} of the horizon and not confirmed: {name} at learning "
            f"rate {candidate.learning_rate:g}",
            err=True,
        )


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything that is made.")] = Path("demo"),
    jobs: JobsOption = 2,
) -> None:
    """Find the best strategy for thirty clients on a small data set, in two minutes, and write a page.

    Example: sojourn demo --out demo
    """
    check_jobs(jobs)
    console = screen()
    fleet = built_in_fleet(FLEET)
    typer.echo(
        f"the fleet: {fleet.size} clients in three clusters of ten, with rates 0.01, 0.1 and 1"
    )
    console.print(wrapped(cost_of_queueing(fleet), console.width))
    out.mkdir(parents=True, exist_ok=True)
    path = out / "experiment.toml"
    text = files("sojourn.cli").joinpath("template", "demo.toml").read_text("utf-8")
    path.write_text(text, encoding="utf-8")
    with shown() as bar:
        progress = Stages(bar, {**STAGES, DRAWING: 0.07})
        progress.start("loading")
        from sojourn.report.runs import report_of
        from sojourn.training.experiment.engines import LocalEngine
        from sojourn.tuning.setting import read_setting
        from sojourn.tuning.tune import tune_setting

        tuned = tune_setting(
            read_setting(path),
            out / "digits",
            engine=LocalEngine(jobs),
            budget=BUDGET,
            progress=progress,
            say=lambda text: say_above(f"{text.partition(':')[0]}, within {duration(BUDGET)}"),
        )
        progress.start(DRAWING)
        page = report_of([out / "digits"]).write(out / "report.html")
    show_confirmed(tuned, console)
    say_verdict(tuned.verdict, console)
    typer.echo("To move these clients: sojourn explore three-clusters", err=True)
    typer.echo("For your own: sojourn plan FLEET.csv --page plan.html", err=True)
    typer.echo(page_line(page))


def cost_of_queueing(fleet: Fleet) -> str:
    """What random routing with queues costs a fleet, beside never letting a task queue."""
    network = Network(fleet, uniform_routing(fleet), fleet.size)
    queues, busy = analyze(network), analyze(network, "never-queue")
    return (
        f"Never queueing makes {number(busy.throughput)} updates per time unit, "
        f"{number(busy.throughput / queues.throughput, 2)} times as many as uniform routing with "
        f"queues, and its noise is {number(queues.noise_rate / busy.noise_rate, 2)} times lower. A task "
        f"takes {number(busy.mean_staleness_time, 2)} time units on average, with queues "
        f"{number(queues.mean_staleness_time, 2)}."
    )

"""``sojourn new``, ``train`` and ``calibrate``: make an experiment, run it, measure its constants."""

import math
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sojourn._support.numbers import PLUS_MINUS, UNKNOWN, plus_minus
from sojourn._support.progress import shown
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
    plain_table,
    print_table,
    printed,
    say_first,
    say_next,
    say_verdict,
    screen,
    stop_interrupted,
    wrapped,
)
from sojourn.errors import InvalidInput
from sojourn.runs.measure import Measure
from sojourn.theory.bounds import max_learning_rate

if TYPE_CHECKING:
    from sojourn.runs.folder import Run
    from sojourn.training.experiment.calibrate import Calibration
    from sojourn.training.experiment.experiment import Experiment

COUNTS = ("updates", "gradients")
DROPPED = (*COUNTS, "mean", "rate")
"""Columns to do without where there is no room for all, the first one first."""
WIDE = 1000
FILES = {
    "fleet.csv": "who the clients are, and how fast",
    "log.csv": "a log to estimate a fleet from: sojourn fleet estimate log.csv",
    "problem.py": "what is learned: your model and data",
    "experiment.toml": "what is compared",
}
"""What `sojourn new` makes."""


@app.command()
def train(
    experiment: Annotated[
        Path,
        typer.Argument(
            metavar="EXPERIMENT.toml",
            help="Fleet, data, model, horizon and the strategies to compare; `sojourn new` writes one.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="runs/NAME")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on in the folder: with what was interrupted, and with seeds, strategies, "
            "learning rates and targets that have come since.",
        ),
    ] = False,
    jobs: JobsOption = 1,
    engine: EngineOption = "local",
    scheduler: SchedulerOption = None,
    data_dir: DataDirOption = None,
    track: TrackOption = None,
    partition_figure: Annotated[
        Path | None,
        typer.Option(
            help="Only draw how the data are divided among clients (first seed), as .png or .svg."
        ),
    ] = None,
) -> None:
    """Compare strategies on a learning problem, in virtual time.

    Example: sojourn train experiments/digits.toml --jobs 2
    """
    say_first(f"reading {experiment}")
    check_experiment_file(experiment)
    folder = out or Path("runs") / experiment.stem
    check_out_folder(folder)
    from sojourn.report.verdict import run_verdict
    from sojourn.runs.folder import RunFolder
    from sojourn.training.experiment.engines import LocalEngine, make_engine, tracked
    from sojourn.training.experiment.experiment import Experiment
    from sojourn.training.experiment.run import run_experiment

    definition = Experiment.read(experiment)
    if data_dir is not None:
        definition = replace(definition, data_dir=str(data_dir.resolve()))
    if partition_figure is not None:
        _draw_partition(definition, partition_figure)
        return
    chosen = make_engine(engine, jobs=jobs, scheduler=scheduler)
    if isinstance(chosen, LocalEngine):
        _say_notes(definition, jobs)
    try:
        with tracked(chosen, track) as engine_used, shown() as progress:
            progress.start("preparing the runs")
            run_experiment(definition, folder, engine_used, resume=resume, progress=progress)
    except KeyboardInterrupt:
        stop_interrupted(
            f"Finished runs are saved; continue with: sojourn train {experiment} --out {folder} "
            "--resume"
        )
    run = RunFolder(folder).read()
    verdict = run_verdict(run)
    _show(run, _console(), verdict.pick)
    say_verdict(verdict, _console())
    typer.echo(f"written to {folder}; its page: sojourn report {shlex.quote(str(folder))}")


def _say_notes(experiment: "Experiment", jobs: int) -> None:
    """Load the data once, so that what is wrong with it is said at once, with the size of the work."""
    from sojourn.training.experiment.build import partition_notes
    from sojourn.training.experiment.size import size_note

    for note in partition_notes(experiment):
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"train: {size_note(experiment, jobs=jobs)}", err=True)


def _draw_partition(experiment: "Experiment", path: Path) -> None:
    from sojourn.figures.matplotlib_figure import save_partition
    from sojourn.training.data.partition import partition_table
    from sojourn.training.experiment.build import dataset, partition_of

    if path.suffix not in (".png", ".svg"):
        raise InvalidInput(f"'{path}': the picture must end in .png or .svg")
    if experiment.problem is not None:
        raise InvalidInput("there is no built-in partition to draw: the experiment has a 'problem'")
    data = dataset(experiment.data, experiment.data_dir)
    seed = experiment.seeds[0]
    partition = partition_of(experiment, data, seed)
    table = partition_table(partition, data.train_labels)
    title = f"{experiment.data}, {experiment.partition}, seed {seed}"
    save_partition(table, path, title=title)
    typer.echo(f"written to {path}")


def _console() -> Console:
    """Standard output; wide enough for every number where it is a file or a pipe."""
    return screen() if sys.stdout.isatty() else Console(width=WIDE, highlight=False)


def _show(run: "Run", console: Console, pick: str) -> None:
    """The strategies as they ended, and what a reader should know of the columns."""
    from sojourn.report.outcomes import by_strategy

    columns = _columns(run)
    table = plain_table(["strategy"], list(columns))
    for k, name in enumerate(by_strategy(run.histories)):
        texts = [column[k].replace(PLUS_MINUS, "±") for column in columns.values()]
        table.add_row(marked(name, pick), *texts, style=CHOSEN if name == pick else None)
    print_table(console, table, drop=DROPPED)
    for line in [*_meanings(run), *_warnings(run)]:
        console.print(wrapped(line, console.width), highlight=False, markup=False)


def _columns(run: "Run") -> dict[str, list[str]]:
    """The values of every column but the names, by heading."""
    from sojourn.report.outcomes import by_strategy, final_text, finished, mean_text, time_text

    groups = list(by_strategy(run.histories).values())
    measure = run.histories[0].measure
    final = "final" if measure.percent else f"final {measure.name}"
    columns = {
        "rate": [f"{runs[0].learning_rate:g}" for runs in groups],
        final: [final_text(runs, measure) for runs in groups],
        "mean": [
            mean_text([history.mean for history in finished(runs)], measure) for runs in groups
        ],
    }
    for name in dict.fromkeys(name for history in run.histories for name in history.metrics):
        if name != measure.name:
            columns[name] = [final_text(runs, Measure(name)) for runs in groups]
    for target in run.targets:
        heading = measure.target(target) if measure.percent else f"{target:g}"
        columns[f"to {heading}"] = [time_text(runs, target) for runs in groups]
    for count in reversed(COUNTS):
        ends = [[float(getattr(h, count)[-1]) for h in finished(runs)] for runs in groups]
        columns[count] = [f"{sum(n) / len(n):.0f}" if n else UNKNOWN for n in ends]
    return columns


def _meanings(run: "Run") -> Iterator[str]:
    """What the columns mean."""
    measure, seeds = run.histories[0].measure, len({history.seed for history in run.histories})
    targets = (
        "to x%: time until the accuracy is x"
        if measure.percent
        else f"to x: time to {measure.name} x"
    )
    yield (
        f"rate: learning rate; final: {measure.label} at the end; mean: its average over time; "
        + targets
        + (f"; ± standard error over {seeds} seeds" if seeds > 1 else "")
    )
    ages = {
        target: [age for h in run.histories if math.isfinite(age := h.resolution(target))]
        for target in run.targets
    }
    within = [
        f"{measure.target(t)} {printed(max(known))}" for t, known in ages.items() if any(known)
    ]
    if within:
        yield f"times to a target are known to within: {', '.join(within)}"


def _warnings(run: "Run") -> Iterator[str]:
    """What a reader should be warned of, strategy by strategy."""
    from sojourn.report.outcomes import by_strategy, finished

    groups = by_strategy(run.histories)
    for name, runs in groups.items():
        if finished(runs) and not any(history.updates[-1] for history in finished(runs)):
            yield f"{name}: the server made no update; run longer, or let it wait for less."
        for history in runs:
            if history.diverged_at is not None:
                yield (
                    f"{name}: diverged in round {history.diverged_at} with seed {history.seed}; it "
                    "is left out of the means. Try a smaller learning rate."
                )
    edges = {str(e["name"]): e.get("learning_rate_at_edge") for e in run.summary["strategies"]}
    for edge, wider in (("largest", "larger"), ("smallest", "smaller")):
        at = [
            f"{name} ({groups[name][0].learning_rate:g})" for name in groups if edges[name] == edge
        ]
        if at:
            yield (
                f"warning: the best learning rate is the {edge} that was tried for {'; '.join(at)}. "
                f"A {wider} one may be better: add some to 'learning-rate' and go on with --resume."
            )


@app.command()
def calibrate(
    experiment: Annotated[
        Path, typer.Argument(metavar="EXPERIMENT.toml", help="As for `sojourn train`.")
    ],
    out: Annotated[Path, typer.Option(help="File for the constants.")] = Path("constants.toml"),
    seed: Annotated[int, typer.Option(help="Seed of partition, weights and batches.")] = 0,
    data_dir: DataDirOption = None,
) -> None:
    """Measure smoothness, noise and heterogeneity on your problem, for `sojourn plan`.

    Example: sojourn calibrate experiments/digits.toml --out constants.toml
    """
    say_first(f"reading {experiment}")
    check_experiment_file(experiment)
    import tomli_w

    from sojourn._support.files import write_text
    from sojourn._support.provenance import provenance
    from sojourn.training.experiment.build import build_problem, calibration_of
    from sojourn.training.experiment.experiment import Experiment
    from sojourn.training.experiment.jobs import threads_for, using_threads

    definition = Experiment.read(experiment)
    if data_dir is not None:
        definition = replace(definition, data_dir=str(data_dir.resolve()))
    rate = min(strategy.learning_rates[0] for strategy in definition.strategies)
    errors = Console(stderr=True)
    threads = using_threads(threads_for(definition, None))
    with threads, errors.status("measuring") as status:
        problem = build_problem(definition, seed)
        calibration = calibration_of(
            definition,
            problem,
            learning_rate=rate,
            seed=seed,
            progress=lambda step: status.update(f"measuring {step}"),
        )
    constants = {
        key.replace("_", "-"): value for key, value in asdict(calibration.constants).items()
    }
    record = {
        "constants": constants,
        "initial": asdict(calibration.initial),
        "warm": asdict(calibration.warm),
        "provenance": provenance(experiment=definition.to_table(), seed=seed, warm_up_rate=rate),
    }
    write_text(out, tomli_w.dumps(record))
    _show_constants(calibration, definition, screen())
    typer.echo(f"written to {out}")
    built_in = definition.fleet_is_built_in
    fleet = definition.fleet_name if built_in else experiment.parent / definition.fleet_name
    say_next("plan", fleet, "--constants", out)


def _show_constants(calibration: "Calibration", experiment: "Experiment", console: Console) -> None:
    table = plain_table(
        [""], ["at the start", f"after {calibration.warm_up_rounds} rounds", "used"]
    )
    first, warm, used = calibration.initial, calibration.warm, calibration.constants
    table.add_row("training loss f", printed(first.loss), printed(warm.loss), "")
    table.add_row("A, at most f at the start", "", "", printed(used.initial_gap))
    table.add_row(
        "L", printed(first.smoothness), printed(warm.smoothness), printed(used.smoothness)
    )
    for name, quantity, taken in (
        ("sigma squared", "gradient_variance", used.gradient_noise),
        ("M squared", "dissimilarity", used.heterogeneity),
    ):
        measured = [
            plus_minus(getattr(point, quantity), getattr(point, f"{quantity}_error"), ".4g")
            for point in (first, warm)
        ]
        table.add_row(name, *measured, printed(taken**2))
    console.print(table)
    strategy = experiment.strategies[0]
    largest = max_learning_rate(strategy.network, used)
    rate = min(strategy.learning_rates[0] for strategy in experiment.strategies)
    share = 2.0 * used.heterogeneity**2 / used.noise if used.noise else 0.0
    console.print(
        f"B = sigma^2 + 2 M^2 = {printed(used.noise)}, of which {share:.0%} comes from clients "
        f"holding different data.\nWith {strategy.name} routing and {strategy.network.concurrency} "
        f"tasks in flight the bounds are guarantees up to learning rate {printed(largest)}; "
        + (
            f"the experiment's {rate:g} is {rate / largest:.2g} times that, where they are a proxy."
            if rate > largest
            else f"the experiment's {rate:g} is within."
        ),
        highlight=False,
    )


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.")],
) -> None:
    """Make a folder with a fleet, a log, an experiment and a problem.py to edit; it runs at once.

    Example: sojourn new my-experiment
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{folder}: exists and is not empty: give another name")
    folder.mkdir(parents=True, exist_ok=True)
    for name, what in FILES.items():
        template = name if name.endswith(".csv") else f"{name}.template"
        text = files("sojourn.cli").joinpath("template", template).read_text("utf-8")
        (folder / name).write_text(text, encoding="utf-8")
        typer.echo(f"{folder / name}: {what}")
    say_next("train", folder / "experiment.toml", note="or sojourn tune, which finds a strategy")
